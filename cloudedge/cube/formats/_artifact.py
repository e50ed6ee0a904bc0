"""What travels to a replica: the files that make one version of one shard, and what they add up to.

    base     the shard's part as the builder writes it: index and data files, or one tar of them for upstream's agent
    delta    the shard's added, changed and removed rows between two versions, for a replica that has the first

Plain data; making artifacts is `_workshop`'s, bringing them somewhere is a replica's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cloudedge.errors import InputError

__all__ = ["DELTA_FILE", "NOTE", "Artifact", "ArtifactFile", "Form", "Kind", "Source", "is_version_name"]

DELTA_FILE = "delta.safetensors"
"""What a delta's file is called; `cloudedge.bundle` defines what is in it."""
NOTE = "artifact.json"
"""What stands beside an artifact's files once they are all there."""

Kind = Literal["base", "delta"]
Form = Literal["files", "tar"]
"""How a base travels: as it is loaded, or packed with an .md5 beside it as upstream's agent wants it."""

_MAX_FILES = 4096
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "checksum": re.compile(r"[0-9a-f]{32}")}


def is_version_name(text: object) -> bool:
    """Tell whether a text can name a version that is kept in files."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class ArtifactFile:
    """One file, by what it must be once it has arrived."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """Where an artifact's files can be had: each at ``url/<name>``."""

    url: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Artifact:
    """One version of one shard, as files."""

    kind: Kind
    shard: int
    shards: int
    width: int
    """Bytes of every value."""
    rows: int
    """Of the version, once loaded; also for a delta."""
    checksum: str
    """Of those rows."""
    files: tuple[ArtifactFile, ...]
    base: str = ""
    """The checksum of the rows that a delta applies to."""
    directory: Path = Path()
    """Where the files are on this machine."""
    sources: tuple[Source, ...] = ()
    """Where a replica may fetch them, the nearest first."""

    @property
    def size(self) -> int:
        """Bytes that travel."""
        return sum(file.size for file in self.files)

    def as_json(self) -> dict[str, Any]:
        """Return what a server needs to know: everything but this machine's paths and where to fetch."""
        names = ("kind", "shard", "shards", "width", "rows", "checksum", "base")
        return {
            **{name: getattr(self, name) for name in names},
            "files": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in self.files],
        }

    @classmethod
    def from_json(cls, found: Any, directory: Path = Path()) -> Artifact:
        """Read what `as_json` returned; every field is checked, since it may come from a network.

        Raises:
            InputError: it is not an artifact.
        """
        try:
            files = tuple(_file(each) for each in _list(found["files"]))
            artifact = cls(
                kind=found["kind"],
                width=_number(found["width"]),
                shard=_number(found["shard"]),
                shards=_number(found["shards"]),
                rows=_number(found["rows"]),
                checksum=_hex(found["checksum"], "checksum"),
                files=files,
                base=found["base"] and _hex(found["base"], "checksum"),
                directory=directory,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"this is not an artifact: {error}") from error
        fits = artifact.kind in ("base", "delta") and bool(artifact.base) == (artifact.kind == "delta")
        if not fits or len({file.name for file in files}) != len(files) or artifact.shard >= artifact.shards:
            raise InputError("this is not an artifact: its fields contradict each other")
        return artifact


def _file(found: Mapping[str, Any]) -> ArtifactFile:
    name = found["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a file")
    return ArtifactFile(name, _number(found["size"]), _hex(found["sha256"], "sha256"))


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list) or not 0 < len(found) <= _MAX_FILES:
        raise ValueError("it names no files, or too many")
    return found


def _number(found: Any) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 2**63:
        raise ValueError(f"{found!r} is not a count")
    return found


def _hex(found: Any, kind: str) -> str:
    if not isinstance(found, str) or not _HEX[kind].fullmatch(found):
        raise ValueError(f"{found!r} is not a {kind}")
    return found
