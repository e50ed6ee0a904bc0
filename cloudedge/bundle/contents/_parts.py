"""The parts of a bundle that describe it: signature, probes, lineage and needs.

Each is a JSON layer of its own. A part keeps the fields that a newer cloudedge added when an older one reads and
writes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cloudedge.errors import InputError
from cloudedge.hub import canonical_json, parse_json

__all__ = [
    "Lineage",
    "Lookup",
    "Needs",
    "ParentRef",
    "Part",
    "ProbeRequest",
    "Probes",
    "Signature",
    "Variable",
    "parse_part",
    "read_part",
    "write_part",
]

PartT = TypeVar("PartT", bound="Part")
DTypeName = Literal["float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "string"]


class Part(BaseModel):
    """A description of a bundle: frozen, and it keeps unknown fields."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Variable(Part):
    """One input or output of the model."""

    name: str = Field(min_length=1, description="the variable's name in the program")
    alias: str = Field("", description="the name clients use; the variable's own if empty")
    dtype: DTypeName = "float32"
    shape: tuple[int, ...] = Field((), description="without the batch dimension; -1 where it varies")


class Lookup(Part):
    """An embedding look-up that was split off: clients feed ids, the dense program takes their rows."""

    feed: str = Field(min_length=1, description="the feed variable that holds the ids")
    input: str = Field(min_length=1, description="the dense program's input that takes the rows, shaped ids x dim")
    table: str = Field(min_length=1, description="the sparse table the rows come from")
    padding_id: int = Field(-1, description="the id whose row reads as zeros; -1: none")


class Signature(Part):
    """The model's inputs and outputs as clients see them: ids, not rows, where tables were split off."""

    feed: tuple[Variable, ...] = ()
    fetch: tuple[Variable, ...] = ()
    lookups: tuple[Lookup, ...] = ()


class ProbeRequest(Part):
    """A recorded request with its expected answer."""

    name: str = ""
    feed: Mapping[str, Any] = Field(description="one array or nested list per feed variable")
    expect: Mapping[str, Any] = Field(description="one array or nested list per fetch variable")
    tolerance: float = Field(1e-5, ge=0, description="largest absolute difference that still passes")


class Probes(Part):
    """Recorded requests and keys that show that a loaded bundle answers as it did at its trainer."""

    requests: tuple[ProbeRequest, ...] = ()
    keys: Mapping[str, tuple[int, ...]] = Field({}, description="by table: keys to read back from its shards")


class ParentRef(Part):
    """The bundle this one was trained or packed on."""

    name: str
    version: str
    digest: str


class Lineage(Part):
    """The origin of the model."""

    dataset: str = ""
    job: str = ""
    code: str = Field("", description="source revision")
    metrics: Mapping[str, float] = {}
    parent: ParentRef | None = None


class Needs(Part):
    """The requirements a place must meet to run the bundle."""

    framework: str = "paddlepaddle"
    framework_version: str = ""
    memory_one_bytes: int = Field(0, ge=0, description="estimate with this version loaded alone")
    memory_two_bytes: int = Field(0, ge=0, description="estimate while this and its parent are loaded side by side")


def installed_framework_version() -> str:
    """Return the version of paddlepaddle that is installed here, without importing it."""
    for package in ("paddlepaddle", "paddlepaddle-gpu"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return ""


def read_part(kind: type[PartT], raw: bytes, what: str) -> PartT:
    """Read a part from its layer or a file.

    Raises:
        InputError: the bytes are not JSON, or a field is wrong; names the field.
    """
    return parse_part(kind, parse_json(raw, what), what)


def parse_part(kind: type[PartT], value: Mapping[str, Any], what: str) -> PartT:
    """Make a part from plain data.

    Raises:
        InputError: a field is wrong; names the field.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise InputError(f"{what}: {where}: {first['msg']} (found {first['input']!r})", field=where) from error


def write_part(part: BaseModel) -> bytes:
    """Write a part without the fields that have their default."""
    return canonical_json(part.model_dump(mode="json", exclude_defaults=True))
