"""Artifacts: the files that make one version of one shard, with their sizes and checksums, as they travel to a replica.

    base     the shard's part as the builder writes it: index and data files, or one tar of them for upstream's agent
    delta    the shard's added, changed and removed rows between two versions, for a replica that has the first

Plain data. `cloudedge.cube.delivery.ArtifactCache` makes artifacts; a replica stages them.
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
"""The name of a delta's file; `cloudedge.bundle` defines its content."""
NOTE = "artifact.json"
"""The file that stands beside an artifact's files once all of them are there."""

Kind = Literal["base", "delta"]
Form = Literal["files", "tar"]
"""The form of a base: files as they are loaded, or a tar with an .md5 beside it, as upstream's agent wants it."""

_MAX_FILES = 4096
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "checksum": re.compile(r"[0-9a-f]{32}")}


def is_version_name(text: object) -> bool:
    """Tell whether a text can name a version that is kept in files."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class ArtifactFile:
    """One file of an artifact: its name, size and SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """A place that serves an artifact's files: each at ``url/<name>``."""

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
    """Rows of the version once it is loaded; also for a delta."""
    checksum: str
    """The checksum of those rows."""
    files: tuple[ArtifactFile, ...]
    base: str = ""
    """The checksum of the rows that a delta applies to."""
    directory: Path = Path()
    """The directory of the files on this machine."""
    sources: tuple[Source, ...] = ()
    """The places that a replica may fetch the files from, the nearest first."""

    @property
    def size(self) -> int:
        """The bytes that travel."""
        return sum(file.size for file in self.files)

    def as_json(self) -> dict[str, Any]:
        """Return the fields that a server needs: everything but this machine's paths and the sources."""
        names = ("kind", "shard", "shards", "width", "rows", "checksum", "base")
        return {
            **{name: getattr(self, name) for name in names},
            "files": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in self.files],
        }

    @classmethod
    def from_json(cls, found: Any, directory: Path = Path()) -> Artifact:
        """Read the fields that `as_json` returned; each is checked, since they may come from a network.

        Raises:
            InputError: the fields do not describe an artifact.
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
