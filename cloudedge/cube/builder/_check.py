"""Integrity check of SequenceFiles, parts and versions: every byte is read and compared with lists and checksums.

Reports every fault it finds; changes nothing.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cloudedge import _core
from cloudedge.cube.builder._part_store import PartStore
from cloudedge.cube.formats import (
    META_DIRECTORY,
    BuildName,
    PartLists,
    packed_files,
    part_name,
    verify_md5,
    version_hint,
)
from cloudedge.errors import CloudEdgeError, InputError
from cloudedge.seqfile import Reader, is_sequence_file

__all__ = ["CheckReport", "check"]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class CheckReport:
    """The kind of a path's content, and its faults."""

    path: str
    kind: str
    """"SequenceFile", "part" or "version"."""
    facts: dict[str, Any]
    faults: list[str] = field(default_factory=list)
    parts: list[CheckReport] = field(default_factory=list)

    @property
    def all_faults(self) -> list[str]:
        """The faults of the path itself and of its parts."""
        return self.faults + [fault for part in self.parts for fault in part.all_faults]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        plain: dict[str, Any] = {"path": self.path, "kind": self.kind, **self.facts, "faults": self.faults}
        return plain | ({"parts": [part.as_json() for part in self.parts]} if self.parts else {})


def check(path: str | os.PathLike[str], *, shard: tuple[int, int] | None = None) -> CheckReport:
    """Read everything at a path and compare it with its lists and checksums.

    Args:
        path: A SequenceFile, a part's directory, or a version's directory as built.
        shard: For a part, ``(number, of)``: its keys must belong to that shard.

    Raises:
        InputError: the path holds neither a SequenceFile nor a part nor a version.
    """
    path = Path(path)
    if (path / "index.n").is_file():
        return _check_part(path, shard)
    if path.is_dir():
        return _check_version(path)
    try:
        if is_sequence_file(path):
            return _check_sequence_file(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    raise InputError(f"{path} is neither a SequenceFile nor a part nor a version", path=str(path))


def _check_sequence_file(path: Path) -> CheckReport:
    faults: list[str] = []
    lengths: set[int] = set()
    records = 0
    try:
        for records, (_, value) in enumerate(Reader(path), 1):  # noqa: B007 - counted after the loop
            lengths.add(len(value))
    except InputError as error:
        faults.append(error.message)
    facts = {
        "bytes": path.stat().st_size,
        "records": records,
        "shortest_value": min(lengths, default=None),
        "longest_value": max(lengths, default=None),
    }
    return CheckReport(str(path), "SequenceFile", facts, faults)


def _check_part(path: Path, shard: tuple[int, int] | None) -> CheckReport:
    try:
        store = PartStore.open(path, mapped=True, shard=shard)
    except CloudEdgeError as error:
        return CheckReport(str(path), "part", {}, [error.message])
    shortest, longest = store.native.lengths
    data, index, entries = store.native.files
    facts = {
        "rows": len(store),
        "entries": entries,
        "duplicates": store.duplicates,
        "data_files": len(data),
        "index_files": len(index),
        "data_bytes": sum(data),
        "shortest_value": shortest if len(store) else None,
        "longest_value": longest if len(store) else None,
        "checksum": store.checksum,
    }
    faults = []
    if store.long_values:
        faults.append(f"{path}: {store.long_values} values are longer than 1024 bytes; servers do not deliver them")
    return CheckReport(str(path), "part", facts, faults)


def _check_version(path: Path) -> CheckReport:
    parts = _parts(path)
    if not parts:
        raise InputError(
            f"{path} is no version: it holds no part",
            hint=version_hint(path),
            path=str(path),
        )
    table, numbers = parts
    faults: list[str] = []
    if numbers != list(range(len(numbers))):
        faults.append(f"{path}: parts {numbers} are not numbered 0 to {len(numbers) - 1}")
    name = BuildName.parse(path.name)
    reports = []
    for number in numbers:
        part = path / part_name(table, number)
        if name is not None and name.is_delta and not _is_complete(part):
            report = _check_delta_part(part)
        else:
            report = _check_part(part, (number, len(numbers)) if not faults else None)
        report.faults.extend(_delivery_faults(part))
        if name is not None:
            report.faults.extend(_meta_faults(part, path.parent / META_DIRECTORY / name.meta_file(number)))
        reports.append(report)
    sums = [int(r.facts["checksum"], 16) for r in reports if "checksum" in r.facts]
    facts = {
        "table": table,
        "dict_name": table,  # the old name of the field; 0.3.0 removes it
        "shards": len(numbers),
        "rows": sum(r.facts.get("rows", 0) for r in reports),
        "checksum": _total(sums) if len(sums) == len(reports) else None,
    }
    return CheckReport(str(path), "version", facts, faults, reports)


def _total(sums: list[int]) -> str:
    """Add checksums lane by lane; the sum is the checksum of all rows together."""
    low, high = sum(s % 2**64 for s in sums) % 2**64, sum(s >> 64 for s in sums) % 2**64
    return f"{high:016x}{low:016x}"


def _parts(path: Path) -> tuple[str, list[int]] | None:
    found: dict[str, list[int]] = {}
    for entry in path.iterdir():
        name, mark, number = entry.name.rpartition("_part")
        if entry.is_dir() and mark and number.isdecimal() and number.isascii():
            found.setdefault(name, []).append(int(number))
    if len(found) > 1:
        raise InputError(f"{path} holds parts of several tables: {', '.join(sorted(found))}", path=str(path))
    return next(((name, sorted(numbers)) for name, numbers in found.items()), None)


def _is_complete(part: Path) -> bool:
    """Tell whether every listed file is there: a delta's directory has its base's files only once they are added."""
    try:
        data, index, _ = _core.read_part_files(part)
    except _core.FileError:
        return True  # the full check reports it
    names = [f"data.{i}" for i in range(len(data))] + [f"index.{i}" for i in range(len(index))]
    return all((part / name).exists() for name in names)


def _check_delta_part(part: Path) -> CheckReport:
    """Compare the new files of a cumulative delta with its lists; its rows make sense on the base only."""
    data, index, entries = _core.read_part_files(part)
    faults = []
    listed = {f"data.{i}": n for i, n in enumerate(data)} | {f"index.{i}": n for i, n in enumerate(index)}
    present = {file.name: file.stat().st_size for file in packed_files(part) if not file.name.endswith(".n")}
    for name, size in sorted(present.items()):
        if listed.get(name) != size:
            faults.append(f"{part / name} has {size} bytes, the lists say {listed.get(name)}")
    added = sum(size for name, size in present.items() if name.startswith("index.")) // 16
    return CheckReport(str(part), "part", {"rows": added, "entries": entries, "new_files": sorted(present)}, faults)


def _delivery_faults(part: Path) -> Iterator[str]:
    tar = part.with_name(part.name + ".tar")
    if not tar.exists():
        return
    try:
        verify_md5(tar)
        with tarfile.open(tar) as packed:
            yield from _tar_faults(part, tar, packed)
    except CloudEdgeError as error:
        yield error.message
    except (OSError, tarfile.TarError) as error:
        yield f"{tar}: {error}"


def _tar_faults(part: Path, tar: Path, packed: tarfile.TarFile) -> Iterator[str]:
    members = {member.name: member for member in packed if member.isfile()}
    files = {f"./{file.name}": file for file in packed_files(part)}
    if members.keys() != files.keys():
        yield f"{tar} holds {sorted(members)}, the directory beside it {sorted(files)}"
        return
    for name, member in members.items():
        content = packed.extractfile(member)
        with files[name].open("rb") as file:
            while content is not None:
                ours, theirs = file.read(_CHUNK), content.read(_CHUNK)
                if ours != theirs:
                    at = file.tell() - len(ours) + _first_difference(ours, theirs)
                    yield f"{files[name]}, byte {at}: not what {tar.name} holds"
                    break
                if not ours:
                    break


def _first_difference(a: bytes, b: bytes) -> int:
    shared = min(len(a), len(b))
    differs = np.frombuffer(a[:shared], np.uint8) != np.frombuffer(b[:shared], np.uint8)
    return int(np.argmax(differs)) if differs.any() else shared


def _meta_faults(part: Path, meta: Path) -> Iterator[str]:
    try:
        lists = PartLists.read_meta(meta)
        if lists != PartLists.from_native(_core.read_part_files(part)):
            yield f"{meta} does not agree with index.n and data.n of {part}"
    except InputError as error:
        yield error.message
    except _core.FileError:
        pass  # the part's own check has reported it
