"""The cache of artifacts: each is made once and kept until no delivery needs it.

    WORK/sums/<checksum>-<shards>.json              the rows and the checksum of each shard of a table
    WORK/artifacts/base-<checksum>-<shards>[-tar]/  a directory for each shard, with its artifact.json
    WORK/artifacts/delta-<from>-<to>-<shards>/      the same

Names come from the checksums of rows, so the same rows are never built twice, whatever the versions are called.
Everything is made under a hidden name and published by rename: a directory with its final name is whole.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from cloudedge.bundle import Table
from cloudedge.bundle.tables import Delta, DeltaWriter, Rows
from cloudedge.cube.builder import BuildPlan, Input, run_build
from cloudedge.cube.delivery._row_changes import changes
from cloudedge.cube.delivery._table_shards import (
    ShardRows,
    Sum,
    TableVersion,
    by_shard,
    joined,
    reserved_row,
    sum_shards,
)
from cloudedge.cube.formats import (
    DELTA_FILE,
    NOTE,
    Artifact,
    ArtifactFile,
    BuildName,
    Form,
    PartLists,
    TableFile,
    md5_line,
    part_name,
)
from cloudedge.errors import InputError, StorageError
from cloudedge.hub import hash_files
from cloudedge.io import FileLock, LockHeld, sync_directory, sync_file, write_atomically, write_synced

__all__ = ["ArtifactCache"]

_HALF_MADE = ".making-"
_SUMS_PER_ARTIFACT = 16  # the files are small, and reading a table again is slow
_KEPT_PROBES = 4
"""Probes kept of rows that a delta leaves unchanged."""
_ENTRY_BYTES = 16 + 4  # of an index entry, and of a record's length


class ArtifactCache:
    """Makes artifacts of tables, and keeps them.

    Args:
        directory: The directory to keep them in; made if it is absent.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()
        self.artifacts = self.directory / "artifacts"
        self._sums = self.directory / "sums"
        self._making = threading.RLock()
        self._users = 0
        with self._stored("make"):
            for folder in (self.artifacts, self._sums):
                folder.mkdir(parents=True, exist_ok=True)

    def shards(self, version: TableVersion, shards: int, parent: TableVersion | None = None) -> tuple[ShardRows, ...]:
        """Return the rows of each shard of a version; derived from the parent's where the version continues it."""
        path = self._sums / f"{version.checksum}-{shards}.json"
        with self._making, self._stored("read"):
            if not path.exists() and parent is not None and parent.rows.kind == version.rows.kind:
                self.delta(parent, version, shards)
            if not path.exists():
                self._keep_sums(path, sum_shards(version.rows, shards))
            os.utime(path)  # marks it as used last
            return tuple(ShardRows.from_json(each) for each in json.loads(path.read_bytes()))

    def base_bytes(self, rows: int, width: int) -> int:
        """Return the bytes of a shard's base, give or take a hundred."""
        return rows * (_ENTRY_BYTES + width)

    def base(self, version: TableVersion, shards: int, form: Form = "files") -> tuple[Artifact, ...]:
        """Make the bases of all shards, or return those that were made before.

        Raises:
            InputError: the table cannot be built.
            StorageError: there is not enough room.
        """
        name = f"base-{version.checksum}-{shards}{'-tar' if form == 'tar' else ''}"
        return self._made(name, lambda folder: self._make_base(folder, version, shards, form))

    def delta(self, before: TableVersion, after: TableVersion, shards: int) -> tuple[Artifact, ...]:
        """Make the deltas of all shards, or return those that were made before.

        Raises:
            InputError: the two have rows of different kinds.
        """
        if before.rows.kind != after.rows.kind:
            raise InputError(
                f"table {after.table!r} has rows of {after.rows.kind} and had rows of {before.rows.kind}: no delta",
                hint="Deliver it as a base.",
            )
        name = f"delta-{before.checksum}-{after.checksum}-{shards}"
        return self._made(name, lambda folder: self._make_deltas(folder, before, after, shards))

    @contextmanager
    def in_use(self, keep: int) -> Iterator[None]:
        """Keep artifacts while a delivery uses them; the last of several deliveries removes all but those used last.

        An artifact that one delivery is done with may still be needed by another.
        """
        with self._making:
            self._users += 1
        try:
            yield
        finally:
            with self._making:
                self._users -= 1
                if not self._users:
                    with suppress(StorageError):  # leftovers do no harm
                        self.clean(keep)

    def clean(self, keep: int) -> list[str]:
        """Remove all artifacts but those used last, and the leftovers of killed runs; returns their names."""
        with self._making, self._stored("clean"):
            for sums in _newest_first(self._sums.iterdir())[_SUMS_PER_ARTIFACT * keep :]:
                sums.unlink()
            made = _newest_first(self.artifacts.glob("[!.]*"))
            gone = [*made[keep:], *filter(_is_abandoned, self.artifacts.glob(f"{_HALF_MADE}*"))]
            for path in gone:
                hidden = self.artifacts / f"{_HALF_MADE}{secrets.token_hex(4)}"
                path.rename(hidden)
                shutil.rmtree(hidden, ignore_errors=True)
        return [path.name for path in gone]

    def _made(self, name: str, make: Callable[[Path], Iterator[Artifact]]) -> tuple[Artifact, ...]:
        final = self.artifacts / name
        with self._making, self._stored("write"):
            if not final.exists():
                folder = self.artifacts / f"{_HALF_MADE}{secrets.token_hex(4)}"
                folder.mkdir()
                busy = FileLock.take(folder, folder=True, wait_s=None)
                try:
                    for artifact in make(folder):
                        for file in artifact.files:
                            sync_file(artifact.directory / file.name)
                        write_synced(artifact.directory / NOTE, json.dumps(artifact.as_json(), sort_keys=True))
                        sync_directory(artifact.directory)
                    _publish(folder, final)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                    busy.release()
                sync_directory(self.artifacts)
            os.utime(final)  # marks it as used last
            notes = sorted(final.glob(f"*/{NOTE}"), key=lambda path: int(path.parent.name))
            return tuple(Artifact.from_json(json.loads(note.read_bytes()), note.parent) for note in notes)

    def _make_base(self, folder: Path, version: TableVersion, shards: int, form: Form) -> Iterator[Artifact]:
        table, width = version.rows, version.rows.kind.row_bytes
        held = self.shards(version, shards)
        plan = BuildPlan(
            inputs=(_as_input(table, folder),),
            output=folder / "build",
            table=version.table,
            name=BuildName.base(1),
            before=(PartLists(),) * shards,
            tar=form == "tar",
        )
        report = run_build(plan, reserve_key=True)
        for shard, part in enumerate(report.parts):
            place, name = folder / str(shard), part_name(version.table, shard)
            if form == "tar":
                place.mkdir()
                tar = report.directory / f"{name}.tar"
                tar.rename(place / tar.name)
                final = self.artifacts / f"base-{version.checksum}-{shards}-tar" / str(shard) / tar.name
                write_synced(place / f"{tar.name}.md5", md5_line(part.md5 or "", final))
            else:
                (report.directory / name).rename(place)
            yield _artifact(place, held[shard], shard=shard, shards=shards, width=width)
        shutil.rmtree(plan.output)
        (folder / "table").unlink(missing_ok=True)

    def _make_deltas(self, folder: Path, before: TableVersion, after: TableVersion, shards: int) -> Iterator[Artifact]:
        width = after.rows.kind.row_bytes
        held = self.shards(before, shards)
        sums = [Sum(each) for each in held]
        probes: list[list[tuple[int, bytes]]] = [[] for _ in range(shards)]
        kept = [list(each.probes[:_KEPT_PROBES]) for each in held]
        with ExitStack() as stack:
            writers = [stack.enter_context(DeltaWriter(folder)) for _ in range(shards)]
            for shard, rows, removed, gone in _per_shard(before.rows, after.rows, held, shards):
                writers[shard].add(Delta(rows, removed, 0, 0))
                sums[shard].add(gone.keys, gone.columns[0], sign=-1)
                sums[shard].add(rows.keys, rows.columns[0])
                kept[shard] = [each for each in kept[shard] if not _is_among(each[0], gone.keys)]
                if len(rows):
                    probes[shard] = [*probes[shard], (int(rows.keys[-1]), rows.columns[0][-1].tobytes())][-8:]
            result: list[ShardRows] = []
            for shard, (writer, total) in enumerate(zip(writers, sums, strict=True)):
                if total.rows == 0:  # it became empty
                    keys, row = reserved_row(shard, shards, width)
                    writer.add(Delta(Rows(keys, (row,)), np.empty(0, np.uint64), 0, 0))
                    total.add(keys, row)
                    probes[shard].append((int(keys[0]), row.tobytes()))
                result.append(ShardRows(total.rows, total.checksum, (*probes[shard], *kept[shard])))
                place = folder / str(shard)
                place.mkdir()
                writer.write(
                    place / DELTA_FILE, base=held[shard].checksum, result=total.checksum, result_rows=total.rows
                )
        self._keep_sums(self._sums / f"{after.checksum}-{shards}.json", result)
        for shard, each in enumerate(result):
            yield _artifact(
                folder / str(shard), each, shard=shard, shards=shards, width=width, base=held[shard].checksum
            )

    def _keep_sums(self, path: Path, sums: Sequence[ShardRows]) -> None:
        if path.exists():
            return
        with self._stored("write"):
            write_atomically(path, json.dumps([each.as_json() for each in sums]))

    @contextmanager
    def _stored(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"cannot {doing} artifacts in {self.directory}: {error.strerror}",
                hint="Free space there, or work in another directory; nothing was delivered.",
                path=str(self.directory),
            ) from error


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def _is_abandoned(folder: Path) -> bool:
    """Tell whether no process works in a directory any more: another one may, for the same target."""
    try:
        FileLock.take(folder, folder=True).release()
    except (LockHeld, FileNotFoundError):
        return False  # the process that makes it still works, or is done
    return True


def _publish(folder: Path, final: Path) -> None:
    try:
        folder.rename(final)
    except OSError:
        if not final.exists():  # else another process made the same meanwhile
            raise


def _artifact(place: Path, held: ShardRows, *, shard: int, shards: int, width: int, base: str = "") -> Artifact:
    paths = sorted(place.iterdir())
    files = tuple(
        ArtifactFile(path.name, hashed.size, hashed.digest.removeprefix("sha256:"))
        for path, hashed in zip(paths, hash_files(paths), strict=True)
    )
    return Artifact(
        kind="delta" if base else "base",
        shard=shard,
        shards=shards,
        width=width,
        rows=held.rows,
        checksum=held.checksum,
        files=files,
        base=base,
        directory=place,
    )


def _per_shard(
    before: Table, after: Table, held: Sequence[ShardRows], shards: int
) -> Iterator[tuple[int, Rows, np.ndarray[tuple[int], np.dtype[np.uint64]], Rows]]:
    """Yield shard, rows to put, keys to remove, rows that are removed or replaced."""
    width = after.kind.row_bytes
    nothing = np.empty(0, np.intp)
    only_reserved = {s for s in range(shards) if _has_only_reserved(held[s], s, shards)}
    for change in changes(before, after):
        coming = dict(by_shard(change.keys, shards))
        going = dict(by_shard(change.removed, shards))
        old = dict(by_shard(change.gone_keys, shards))
        for shard in sorted({*coming, *going, *old}):
            put, gone = coming.get(shard, nothing), old.get(shard, nothing)
            rows = Rows(change.keys[put], (np.ascontiguousarray(change.values[put]),))
            removed = change.removed[going.get(shard, nothing)]
            replaced = Rows(change.gone_keys[gone], (np.ascontiguousarray(change.gone_values[gone]),))
            if shard in only_reserved and len(rows):  # its first rows: the reserved one is removed
                keys, row = reserved_row(shard, shards, width)
                removed, replaced = keys, Rows(keys, (row,))
                only_reserved.remove(shard)
            yield shard, rows, removed, replaced


def _has_only_reserved(held: ShardRows, shard: int, shards: int) -> bool:
    keys, _ = reserved_row(shard, shards, 0)
    return held.rows == 1 and held.probes[:1] != () and held.probes[0] == (int(keys[0]), bytes(len(held.probes[0][1])))


def _is_among(key: int, ascending: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> bool:
    at = int(np.searchsorted(ascending, np.uint64(key)))
    return at < len(ascending) and int(ascending[at]) == key


def _as_input(table: Table, folder: Path) -> Input:
    """Return the builder's input for a table: its own file, or one written for it."""
    width, rows = table.kind.row_bytes, len(table)
    if len(table.files) == 1 and not table.kind.has_scale:
        file = TableFile.open(table.files[0])
        return Input(file.path, file.row_bytes, file)
    path = folder / "table"
    with path.open("wb") as out:
        for window in table.stream():
            out.write(window.keys.data)
        for window in table.stream():
            out.write(np.ascontiguousarray(joined(window)).data)
    file = TableFile(path, rows, table.kind.dim, str(table.kind.dtype), width, 0, rows * 8)
    return Input(path, file.row_bytes, file)
