"""A Tensor as a client sent it, of either service, parsed from JSON or protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloudedge.serving.formats._tensors import (
    ELEM_TYPES,
    Malformed,
    data_of,
    from_base64,
    json_field,
    npy_array,
    shaped,
    string_array,
    typed_array,
)

__all__ = ["GENERAL", "PIPELINE", "WireTensor", "from_json", "from_message"]


@dataclass(frozen=True)
class Dialect:
    """The differences between the two services' Tensors."""

    strings: str
    content: str
    string_type: int
    bytes_type: int | None
    """Content of this type has the format of `numpy.save`; of every other type, it is the raw numbers."""


PIPELINE = Dialect("str_data", "byte_data", string_type=12, bytes_type=13)
GENERAL = Dialect("data", "tensor_content", string_type=20, bytes_type=None)


class WireTensor(NamedTuple):  # and not a frozen dataclass, which takes five times as long to make
    """One tensor, parsed but not yet checked."""

    name: str
    alias: str
    elem_type: int
    shape: Sequence[int]
    lod: Sequence[int]
    data: NDArray[Any]
    strings: Sequence[str]
    content: bytes
    dialect: Dialect

    def array(self) -> NDArray[Any]:
        """Make its array.

        Raises:
            Malformed: Its type cannot be fed, or type, shape and data do not fit together.
        """
        dialect, name = self.dialect, self.alias or self.name
        if self.elem_type == dialect.string_type:
            strings = string_array(name, self.strings)
            return shaped(name, strings, self.shape) if self.shape else strings
        if self.elem_type == dialect.bytes_type:
            return npy_array(name, self.content)
        return typed_array(name, self.elem_type, self.shape, self.data, b"" if dialect.bytes_type else self.content)


def from_message(tensor: Any, dialect: Dialect) -> WireTensor:
    """Parse a protobuf Tensor."""
    return WireTensor(
        name=tensor.name,
        alias=tensor.alias_name if dialect is GENERAL else "",
        elem_type=tensor.elem_type,
        shape=tensor.shape,
        lod=tensor.lod,
        data=data_of(tensor, tensor.elem_type),
        strings=getattr(tensor, dialect.strings),
        content=getattr(tensor, dialect.content),
        dialect=dialect,
    )


def from_json(raw: Any, dialect: Dialect) -> WireTensor:
    """Parse a JSON Tensor; unknown fields are ignored.

    Raises:
        TypeError: A field has the wrong type, which JSON made from the message could not have.
        Malformed: The numbers do not have their declared type.
    """
    if not isinstance(raw, dict):
        raise TypeError("a tensor is not an object")
    name, alias = (_field(raw, field, str, "") for field in ("name", "alias_name"))
    elem_type = _field(raw, "elem_type", int, 0)
    kind = ELEM_TYPES.get(elem_type)
    field = kind[1] if kind else ""
    numbers = _field(raw, field, list, [])
    content = _field(raw, dialect.content, str, "")
    try:
        data = json_field(alias or name, field, numbers) if field else np.empty(0)
    except Malformed as error:
        raise TypeError(error.message) from None
    return WireTensor(
        name=name,
        alias=alias if dialect is GENERAL else "",
        elem_type=elem_type,
        shape=_items(raw, "shape", int),
        lod=_items(raw, "lod", int),
        data=data,
        strings=_items(raw, dialect.strings, str),
        content=from_base64(alias or name, dialect.content, content) if content else b"",
        dialect=dialect,
    )


def _field(raw: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """Return one field, under its own name or in the spelling of JSON made from protobuf."""
    value = raw.get(name)
    if value is None:
        head, *rest = name.split("_")
        value = raw.get(head + "".join(part.capitalize() for part in rest))
    if value is None:
        return default
    if type(value) is not kind:
        raise TypeError(f"{name} is not {_KINDS[kind]}")
    return value


_KINDS = {str: "text", int: "a whole number", list: "a list"}


def _items(raw: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    items: list[Any] = _field(raw, name, list, [])
    if not set(map(type, items)) <= {kind}:
        raise TypeError(f"{name} holds something that is not {_KINDS[kind]}")
    return items
