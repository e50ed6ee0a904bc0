"""Plan of a build: its inputs and outputs, decided before anything is written, with impossible builds refused."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudedge._renamed_arguments import renamed_arguments
from cloudedge.cube.builder._build_inputs import Input, find_inputs
from cloudedge.cube.formats import META_DIRECTORY, BuildName, PartLists, part_name
from cloudedge.errors import Conflict, InputError, StorageError

__all__ = ["BuildPlan", "plan_build"]

_MAX_SHARDS = 10_000  # a typing mistake, not a cluster


@renamed_arguments(dict_name="table")
@dataclass(frozen=True)
class BuildPlan:
    """The inputs and outputs of a build."""

    inputs: tuple[Input, ...]
    output: Path
    table: str
    name: BuildName
    before: tuple[PartLists, ...]
    """For each shard, the files it continues from; empty lists for a base."""
    tar: bool

    @property
    def shards(self) -> int:
        """The number of parts to make."""
        return len(self.before)

    @property
    def directory(self) -> Path:
        """The directory in which the version will appear."""
        return self.output / self.name.directory

    @property
    def input_bytes(self) -> int:
        """The bytes to read."""
        return sum(each.size_bytes for each in self.inputs)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "directory": str(self.directory),
            "version": self.name.current,
            "depend": self.name.depend,
            "shards": self.shards,
            "parts": [part_name(self.table, i) for i in range(self.shards)],
            "tar": self.tar,
            "input_bytes": self.input_bytes,
            "inputs": [{"path": str(i.path), "format": i.format, "bytes": i.size_bytes} for i in self.inputs],
        }


@renamed_arguments(dict_name="table")
def plan_build(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    table: str,
    shards: int,
    version: int,
    base: int | None = None,
    last: int | None = None,
    tar: bool = True,
) -> BuildPlan:
    """Plan a build and refuse one that cannot work; writes nothing.

    Args:
        inputs: SequenceFiles, directories of them, or safetensors tables.
        output: The directory of all versions of this table.
        table: The name of the table, with which the parts' names begin.
        shards: The number of parts to make.
        version: The version to build, 1 to 2^31 - 1.
        base: For a cumulative delta, the version of its base.
        last: For a cumulative delta, the version it continues from: `base`, or the delta before this one.
        tar: Also pack each part as it is delivered.

    Raises:
        InputError: an argument or an input cannot be used.
        Conflict: the version has been built already.
        StorageError: there is not enough space for certain.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", table):
        raise InputError(
            f"{table!r} cannot name a table",
            hint="Use letters, digits, '_', '.' and '-'.",
            table=table,
        )
    if not 1 <= shards <= _MAX_SHARDS:
        raise InputError(f"{shards} shards are not within 1 and {_MAX_SHARDS}", shards=shards)
    if base is None and last is not None:
        raise InputError("only a delta continues from another version: give its base too", last=last)
    name = BuildName.base(version) if base is None else BuildName(version, base)
    if base is not None and not name.is_delta:
        raise InputError(f"a delta needs a version other than its base's {base}", version=version)
    place = Path(output).absolute()
    plan = BuildPlan(
        inputs=tuple(find_inputs(inputs)),
        output=place,
        table=table,
        name=name,
        before=_continued(place, name, base if last is None else last, shards),
        tar=tar,
    )
    if plan.directory.exists():
        raise Conflict(
            f"{plan.directory} exists already",
            hint="Build a new version, or remove that directory; upstream would append to it and no server load it.",
            path=str(plan.directory),
        )
    _require_space(plan)
    return plan


def _continued(output: Path, name: BuildName, last: int | None, shards: int) -> tuple[PartLists, ...]:
    if last is None:
        return (PartLists(),) * shards
    before = BuildName(last, name.depend)
    meta = output / META_DIRECTORY
    if (meta / before.meta_file(shards)).exists():
        raise InputError(
            f"version {last} has more than {shards} shards",
            hint="A delta has as many shards as its base.",
            shards=shards,
        )
    return tuple(PartLists.read_meta(meta / before.meta_file(i)) for i in range(shards))


def _require_space(plan: BuildPlan) -> None:
    existing = plan.output
    while not existing.exists():
        existing = existing.parent
    # Records take a little more room in the output than in the input: less than the input's size is never enough.
    needed = plan.input_bytes * (2 if plan.tar else 1)
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise StorageError(
            f"{plan.output} has {free} bytes free, building there takes more than {needed}",
            hint="Free space, choose another output" + (", or leave the tar files out." if plan.tar else "."),
            path=str(plan.output),
        )
