"""The JSON types of the control plane, with the behaviour of the Go structs behind them.

Reading drops unknown fields silently, and refuses a value of another type. Writing omits empty values, except where a
struct declares otherwise. Both are part of the contract: a misspelt field is lost silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from cloudedge.edge_bie.lab.state._errors import invalid

__all__ = ["ANY", "BOOL", "INT", "STR", "TIME", "Listed", "Mapped", "Shape", "Struct", "read", "write"]

ZERO_TIME = "0001-01-01T00:00:00Z"
_PLAIN: dict[str, tuple[type, Any]] = {"string": (str, ""), "int": (int, 0), "bool": (bool, False), "time": (str, "")}


@dataclass(frozen=True)
class Plain:
    """A string, a number, a boolean, a time, or any value."""

    kind: str


@dataclass(frozen=True)
class Listed:
    """An array."""

    of: Shape


@dataclass(frozen=True)
class Mapped:
    """An object with keys of the caller's choice."""

    of: Shape
    pointer: bool = False


@dataclass(frozen=True)
class Struct:
    """An object with fixed keys."""

    fields: Mapping[str, Shape]
    always: frozenset[str] = frozenset()
    """Written even when empty."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Replaces missing or empty values."""
    pointer: bool = True
    """True if a missing value differs from an empty one."""


Shape = Union[Plain, Listed, Mapped, Struct]  # noqa: UP007 - the classes refer to it before its definition

STR, INT, BOOL, TIME, ANY = Plain("string"), Plain("int"), Plain("bool"), Plain("time"), Plain("any")


def read(value: Any, shape: Shape, where: str = "body") -> Any:
    """Return the part of a JSON value that the server understands.

    Raises:
        ApiError: a value has another type than the struct's field.
    """
    if isinstance(shape, Plain):
        return _read_plain(value, shape, where)
    if value is None:
        return [] if isinstance(shape, Listed) else {}
    if isinstance(shape, Listed):
        _check(value, list, "array", where)
        return [read(item, shape.of, where) for item in value]
    _check(value, dict, "object", where)
    if isinstance(shape, Mapped):
        return {str(key): read(item, shape.of, f"{where}.{key}") for key, item in value.items()}
    found = {}
    for name, of in shape.fields.items():
        if value.get(name) is not None:
            item = read(value[name], of, f"{where}.{name}")
            if item or _is_pointer(of):
                found[name] = item
    for name, default in shape.defaults.items():
        if not found.get(name):
            found[name] = default
    return found


def _read_plain(value: Any, shape: Plain, where: str) -> Any:
    if shape.kind == "any":
        return value
    kind, empty = _PLAIN[shape.kind]
    if value is None:
        return empty
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) is not (kind is bool):
        raise _mismatch(value, shape.kind, where)
    _check(value, kind, shape.kind, where)
    return value


def _check(value: Any, kind: type, name: str, where: str) -> None:
    if not isinstance(value, kind):
        raise _mismatch(value, name, where)


def _mismatch(value: Any, name: str, where: str) -> Exception:
    return invalid(f"json: cannot unmarshal {type(value).__name__} into Go struct field {where} of type {name}")


def write(value: Any, shape: Shape) -> Any:
    """Return the JSON value that the server writes: only the struct's fields, and only declared ones if empty."""
    if isinstance(shape, Listed):
        return [write(item, shape.of) for item in value or ()]
    if isinstance(shape, Mapped):
        return {key: write(item, shape.of) for key, item in (value or {}).items()}
    if not isinstance(shape, Struct):
        return value
    written = {}
    for name, of in shape.fields.items():
        item = value.get(name)
        if of is TIME:
            written[name] = item or ZERO_TIME
        elif _is_pointer(of):
            if item is not None:
                written[name] = write(item, of)
        elif item or name in shape.always or (isinstance(of, Struct) and not of.pointer):
            written[name] = write(_empty(of) if item is None else item, of)
    return written


def _is_pointer(shape: Shape) -> bool:
    return isinstance(shape, Struct | Mapped) and shape.pointer


def _empty(shape: Shape) -> Any:
    if isinstance(shape, Plain):
        return _PLAIN[shape.kind][1] if shape.kind in _PLAIN else None
    return [] if isinstance(shape, Listed) else {}
