"""The directory layout of a build's output, and the lists of files that are kept about each part.

    <output>/
      <depend>_<current>/
        <table>_part<i>/           index.<k> data.<j> index.n data.n
        <table>_part<i>.rows.json  the checksum of a base's rows; upstream's programs do not know this file
        <table>_part<i>.tar        the same files as delivered
        <table>_part<i>.tar.md5
      meta_info/
        <current>_<depend>_<i>_0.json

The two versions change places between the directory and the meta files, as upstream's programs expect.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudedge.errors import InputError

__all__ = ["META_DIRECTORY", "BuildName", "PartLists", "part_name", "version_hint"]

META_DIRECTORY = "meta_info"

_LARGEST_VERSION = 2**31 - 1  # upstream keeps versions in an int32


@dataclass(frozen=True)
class BuildName:
    """The pair of versions that names a build: its own, and that of the base it needs."""

    current: int
    depend: int

    def __post_init__(self) -> None:
        for version in (self.current, self.depend):
            if not 1 <= version <= _LARGEST_VERSION:
                raise InputError(
                    f"version {version} is not within 1 and {_LARGEST_VERSION}",
                    hint="Use a counter or a unix time in seconds; upstream's programs keep versions in 32 bits.",
                    version=version,
                )

    @classmethod
    def base(cls, version: int) -> BuildName:
        """Name a build that needs no other."""
        return cls(version, version)

    @classmethod
    def parse(cls, directory: str) -> BuildName | None:
        """Read the name of a version directory; None for any other name."""
        match = re.fullmatch(r"([1-9][0-9]{0,9})_([1-9][0-9]{0,9})", directory)
        if match is None or max(map(int, match.groups())) > _LARGEST_VERSION:
            return None
        return cls(int(match[2]), int(match[1]))

    @property
    def is_delta(self) -> bool:
        """True for a build that has to be put on a base."""
        return self.current != self.depend

    @property
    def directory(self) -> str:
        """The name of the build's directory."""
        return f"{self.depend}_{self.current}"

    def meta_file(self, shard: int) -> str:
        """Return the name of a part's meta file."""
        return f"{self.current}_{self.depend}_{shard}_0.json"


def version_hint(directory: Path) -> str:
    """Return the hint for a directory that is no version: the versions in it, if it is the output of builds."""
    versions = sorted({part.parents[1].name for part in directory.glob("*/*_part*/index.n")})
    if not versions:
        return "A part has index.n; a version has directories <table>_part<i>."
    return f"It holds versions. Name one of them: {', '.join(str(directory / name) for name in versions[-3:])}."


def part_name(table: str, shard: int) -> str:
    """Return the name of a part's directory."""
    return f"{table}_part{shard}"


@dataclass(frozen=True)
class PartLists:
    """The contents of data.n, index.n and the meta file of a part: all its files, those of its base included."""

    data_lengths: tuple[int, ...] = ()
    index_lengths: tuple[int, ...] = ()
    entries: int = 0

    @property
    def native(self) -> tuple[list[int], list[int], int]:
        """The form `_core` takes and returns."""
        return list(self.data_lengths), list(self.index_lengths), self.entries

    @classmethod
    def from_native(cls, lists: tuple[list[int], list[int], int]) -> PartLists:
        """Convert from the form that `_core` returns."""
        return cls(tuple(lists[0]), tuple(lists[1]), lists[2])

    def as_meta(self) -> dict[str, Any]:
        """Return the meta object; upstream writes all its numbers as strings."""
        return {
            "data_len_list": [str(n) for n in self.data_lengths],
            "index_len_list": [str(n) for n in self.index_lengths],
            "index_total_count": str(self.entries),
        }

    def meta_json(self, *, compact: bool = False) -> str:
        """Write the meta object: compact as posted to cube-transfer, or with tabs as kept in files."""
        if compact:
            return json.dumps(self.as_meta(), separators=(",", ":"))
        return json.dumps(self.as_meta(), indent="\t", separators=(",", " : ")) + "\n"

    @classmethod
    def read_meta(cls, path: Path) -> PartLists:
        """Read a meta file.

        Raises:
            InputError: the file is absent, or was not written by a builder.
        """
        try:
            text = path.read_bytes().decode()
            meta = json.loads(text)
            if not isinstance(meta, dict):
                raise TypeError("not an object")  # noqa: TRY301 - one handler words all of them
            lists = cls(
                tuple(_number(n, 2**32) for n in meta["data_len_list"]),
                tuple(_number(n, 2**64) for n in meta["index_len_list"]),
                _number(meta["index_total_count"], 2**32),
            )
        except OSError as error:
            raise InputError(
                f"cannot read the meta file {path}: {error.strerror}",
                hint="A delta continues from the meta files of the version before it; build that one first.",
                path=str(path),
            ) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(
                f"{path} is not a part's meta file: {error}",
                hint='It looks like {"data_len_list":["12"],"index_len_list":["16"],"index_total_count":"1"}.',
                path=str(path),
            ) from error
        return lists


def _number(text: Any, limit: int) -> int:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9]{1,20}", text) or int(text) >= limit:
        raise ValueError(f"{text!r} is not a number below {limit} written as a string")
    return int(text)
