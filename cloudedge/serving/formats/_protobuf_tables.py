"""Protobuf message classes made from tables at import, in their own descriptor pool.

They need no compiler at build time and no generated file to keep in step, and they do not clash with upstream's
generated modules in the same process. They are the upb classes that generated code would give: parsing and writing run
in C.

A table lists the fields of each message: number, name, type. `*` repeats a field, `!` marks a required one, `%` is a
map from string to string, `=` gives a default; a type with a capital is an enum or a message of the same file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["make_messages"]

_Kinds = descriptor_pb2.FieldDescriptorProto
_LABELS = {"*": _Kinds.LABEL_REPEATED, "%": _Kinds.LABEL_REPEATED, "!": _Kinds.LABEL_REQUIRED}


def make_messages(
    package: str, messages: Mapping[str, str], *, syntax: str, enums: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any]:
    """Make the messages of one file; return their classes by name.

    Args:
        package: Their package; it names the file too.
        messages: The fields, by message.
        syntax: proto2, which writes a zero that was set, or proto3.
        enums: The value names in order, by enum.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    for enum, names in (enums or {}).items():
        described = file.enum_type.add(name=enum)
        for number, name in enumerate(names):
            described.value.add(name=name, number=number)
    for message, fields in messages.items():
        kind = file.message_type.add(name=message)
        for field in fields.split(", "):
            _add_field(kind, package, field.split(" "), enums or {})
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _add_field(
    message: descriptor_pb2.DescriptorProto, package: str, described: list[str], enums: Mapping[str, Sequence[str]]
) -> None:
    number, name, kind = described
    mark, (kind, _, default) = kind[0], kind.lstrip("!*%").partition("=")
    field = message.field.add(name=name, number=int(number), label=_LABELS.get(mark, _Kinds.LABEL_OPTIONAL))
    if mark == "%":
        # A map is a repeated message of key and value, named after the field in camel case.
        entry = message.nested_type.add(name=name.title().replace("_", "") + "Entry")
        entry.options.map_entry = True
        for place, part in enumerate(("key", "value"), start=1):
            entry.field.add(name=part, number=place, label=_Kinds.LABEL_OPTIONAL, type=_Kinds.TYPE_STRING)
        field.type, field.type_name = _Kinds.TYPE_MESSAGE, f".{package}.{message.name}.{entry.name}"
    elif kind[0].isupper():
        field.type = _Kinds.TYPE_ENUM if kind in enums else _Kinds.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"
    else:
        field.type = _Kinds.Type.Value(f"TYPE_{kind.upper()}")
    if default:
        field.default_value = default
