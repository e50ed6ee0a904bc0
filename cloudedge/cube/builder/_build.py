"""Building of a version's parts from rows: beside their final place, then published whole.

Two inputs are refused because upstream accepts them and then fails: an empty shard in a base, and a value above 1024
bytes. Of a key that comes twice, the last row in the order of the inputs counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudedge import _core
from cloudedge._renamed_arguments import renamed_arguments
from cloudedge.cube.builder._build_inputs import Input
from cloudedge.cube.builder._build_plan import BuildPlan, plan_build
from cloudedge.cube.formats import PartLists, Workspace, md5_line, pack, part_name, write_checksum_file
from cloudedge.errors import InputError, StorageError
from cloudedge.io import map_in_threads, sync_directory, write_synced
from cloudedge.native import file_errors

__all__ = ["DATA_FILE_LIMIT", "BuildReport", "PartReport", "build", "reserved_key", "run_build"]

DATA_FILE_LIMIT = 1 << 30
"""The most bytes of a data file; a record that would exceed it starts the next file."""

_STEP = 64 << 20  # bytes of input between two reports of progress and checks for Ctrl-C


@dataclass(frozen=True)
class PartReport:
    """One part that was built."""

    shard: int
    path: str
    added: int
    """Entries of this build."""
    duplicates: int
    """Entries among them whose key comes again later."""
    entries: int
    """Entries in all, those of the base included."""
    data_files: int
    reserved_key: int | None
    md5: str | None


@dataclass(frozen=True)
class BuildReport:
    """The parts that a build made."""

    directory: Path
    parts: tuple[PartReport, ...]
    skipped_bytes: int
    """Damaged bytes of SequenceFiles that were skipped."""

    @property
    def rows(self) -> int:
        """Keys added or changed."""
        return sum(part.added - part.duplicates for part in self.parts)

    @property
    def duplicates(self) -> int:
        """Rows that a later one of the same key replaced."""
        return sum(part.duplicates for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "directory": str(self.directory),
            "rows": self.rows,
            "duplicates": self.duplicates,
            "skipped_bytes": self.skipped_bytes,
            "parts": [asdict(part) for part in self.parts],
        }


@renamed_arguments(dict_name="table")
def build(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    table: str,
    shards: int,
    version: int,
    base: int | None = None,
    last: int | None = None,
    tar: bool = True,
    reserve_key: bool = False,
    skip_damage: bool = False,
) -> BuildReport:
    """Build a version in one call: `plan_build`, then `run_build`.

    Example:
        >>> build(["out/seq"], output="/data/cube", table="ctr", shards=2, version=100)  # doctest: +SKIP
    """
    plan = plan_build(
        inputs,
        output=output,
        table=table,
        shards=shards,
        version=version,
        base=base,
        last=last,
        tar=tar,
    )
    return run_build(plan, reserve_key=reserve_key, skip_damage=skip_damage)


def run_build(
    plan: BuildPlan,
    *,
    reserve_key: bool = False,
    skip_damage: bool = False,
    data_file_limit: int = DATA_FILE_LIMIT,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> BuildReport:
    """Build a version as planned.

    Args:
        plan: From `plan_build`.
        reserve_key: Give each shard that would be empty one row with a key that no model uses.
        skip_damage: Skip damaged stretches of SequenceFiles instead of refusing the file.
        data_file_limit: The most bytes of a data file.
        threads: The number of threads; one per processor when not given.
        progress: Called with the number of bytes of input that were used since the last call.

    Raises:
        InputError: an input is damaged or holds a value that is too long, or a shard is empty.
        Conflict: another build published the version meanwhile.
        StorageError: the output cannot be written.
    """
    threads = threads or os.cpu_count() or 1
    try:
        plan.output.mkdir(parents=True, exist_ok=True)
        with Workspace(plan.output, plan.name) as work, file_errors("build"):
            directories = [work.version / part_name(plan.table, i) for i in range(plan.shards)]
            for directory in directories:
                directory.mkdir()
            with _builder(plan, directories, data_file_limit, threads) as builder:
                skipped = sum(_take(builder, each, skip_damage, progress) for each in plan.inputs)
                reserved = _fill_empty(builder, plan, reserve=reserve_key)
                built = builder.finish()
            digests = _pack_all(plan, directories, threads) if plan.tar else [None] * plan.shards
            for i, (lists, _, _, _) in enumerate(built):
                write_synced(work.meta / plan.name.meta_file(i), PartLists.from_native(lists).meta_json())
            if not plan.name.is_delta:
                for directory, (_, added, duplicates, total) in zip(directories, built, strict=True):
                    if duplicates:  # the sum over all entries counts rows that later ones replace
                        total = _core.load_version(directory, "built", mapped=True).checksum  # noqa: PLW2901
                    write_checksum_file(directory, added - duplicates, total)
            directory = work.publish()
    except OSError as error:
        raise StorageError(
            f"cannot build in {plan.output}: {error.strerror}",
            hint="Free space there or choose another output; nothing was published.",
            path=str(plan.output),
        ) from error
    parts = tuple(
        PartReport(
            shard=i,
            path=str(directory / part_name(plan.table, i)),
            added=added,
            duplicates=duplicates,
            entries=lists[2],
            data_files=len(lists[0]),
            reserved_key=reserved.get(i),
            md5=digests[i],
        )
        for i, (lists, added, duplicates, _) in enumerate(built)
    )
    return BuildReport(directory, parts, skipped)


@contextmanager
def _builder(
    plan: BuildPlan, directories: Sequence[Path], data_file_limit: int, threads: int
) -> Iterator[_core.Builder]:
    """Open a builder whose threads have stopped when the workspace is removed."""
    builder = _core.Builder(directories, [lists.native for lists in plan.before], data_file_limit, threads)
    try:
        yield builder
    finally:
        builder.cancel()


def _take(builder: _core.Builder, each: Input, skip_damage: bool, progress: Callable[[int], None]) -> int:  # noqa: FBT001
    source = each.open(skip_damage=skip_damage)
    used, more = 0, True
    while more:
        more = builder.take(source, _STEP)
        progress(source.offset - used)
        used = source.offset
    return source.skipped_bytes if isinstance(source, _core.SequenceReader) else 0


def _fill_empty(builder: _core.Builder, plan: BuildPlan, *, reserve: bool) -> dict[int, int]:
    """Give empty shards of a base a reserved row, or refuse them; returns shard to key."""
    if plan.name.is_delta:
        return {}
    empty = [i for i, added in enumerate(builder.added) if added == 0]
    if empty and not reserve:
        named = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")  # noqa: PLR2004 - a line's worth
        raise InputError(
            f"no key belongs to shard {named} (of {plan.shards}), and no server loads an empty one",
            hint="Use fewer shards, or `--reserve-key` (reserve_key=True) to give each one row that no model asks for.",
            empty_shards=empty,
        )
    width = _first_width(plan.inputs) if empty else 0
    reserved = {shard: reserved_key(shard, plan.shards) for shard in empty}
    for key in reserved.values():
        builder.add(key, bytes(width))
    return reserved


def reserved_key(shard: int, shards: int) -> int:
    """Return the first key of a shard from 2^63 on: as signed ids, the most negative ones, which no model uses."""
    return 2**63 + (shard - 2**63) % shards


def _first_width(inputs: Sequence[Input]) -> int:
    """Return the length of the first value, so that a reserved row looks like its neighbours."""
    for each in inputs:
        if each.table is not None:
            return each.table.width
        for _, value in each.open(skip_damage=True).batch(1):  # type: ignore[union-attr]
            return len(value)
    return 0


def _pack_all(plan: BuildPlan, directories: Sequence[Path], threads: int) -> list[str | None]:
    def pack_one(directory: Path) -> str:
        tar = directory.with_name(directory.name + ".tar")
        digest = pack(directory, tar)
        write_synced(tar.with_name(tar.name + ".md5"), md5_line(digest, plan.directory / tar.name))
        return digest

    digests: list[str | None] = [*map_in_threads(pack_one, directories, threads)]
    sync_directory(directories[0].parent)
    return digests
