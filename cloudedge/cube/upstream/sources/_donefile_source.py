"""Source of versions from a trainer's donefiles: decides which version should be live, and merges its rows to a table.

The decision is pure: `choose` takes the entries of the donefiles and the last delivery. The newest base counts, with
all its patches in the order of their ids when patches are wanted. Entries that cannot be right become problems with a
file and a next step, and do not keep the rest back.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudedge.bundle import Table
from cloudedge.clock import Clock, SystemClock
from cloudedge.config import HubConfig
from cloudedge.cube.builder import Layer, merge_rows, row_files
from cloudedge.cube.formats import DoneEntry, parse_donefile
from cloudedge.cube.upstream.sources._remote_files import LocalFiles, open_remote_files
from cloudedge.errors import InputError, NotFound, StorageError

__all__ = ["Choice", "DonefileSource", "Donefiles", "Work", "choose"]

BASE, PATCH = "base.txt", "patch.txt"


@dataclass(frozen=True)
class Donefiles:
    """The entries of both files."""

    bases: tuple[DoneEntry, ...] = ()
    patches: tuple[DoneEntry, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """A version to deliver: a base, and patches to apply in order."""

    base: DoneEntry
    patches: tuple[DoneEntry, ...] = ()

    @property
    def entries(self) -> tuple[DoneEntry, ...]:
        """All its entries, in order."""
        return (self.base, *self.patches)

    @property
    def name(self) -> str:
        """The version's name, the same whenever the same entries are delivered."""
        return str(self.base.id) if not self.patches else f"{self.base.id}_{self.entries[-1].id}"

    def as_json(self) -> list[dict[str, Any]]:
        """Return it as plain data."""
        return [asdict(entry) for entry in self.entries]

    @classmethod
    def from_json(cls, entries: list[dict[str, Any]]) -> Work:
        """Read the entries that `as_json` returned."""
        base, *patches = (DoneEntry(**entry) for entry in entries)
        return cls(base, tuple(patches))


@dataclass(frozen=True)
class Choice:
    """The version to deliver now, if any, and the problems of the donefiles."""

    work: Work | None
    problems: tuple[str, ...] = ()


def choose(files: Donefiles, *, patches: bool, delivered: Work | None, where: str = "") -> Choice:
    """Decide which version to deliver. Pure.

    Args:
        files: The entries of the donefiles.
        patches: True if patches are wanted (``mode: base_delta``).
        delivered: The last delivery; still known when the donefiles no longer name it.
        where: The donefiles' directory, for problems.
    """
    problems: list[str] = []
    bases = _distinct(files.bases, f"{where}/{BASE}", problems)
    every = _distinct(files.patches if patches else (), f"{where}/{PATCH}", problems)
    problems += [
        f"{where}/{BASE}: base {base.id} has the key {base.key}; write its own id there"
        for base in bases.values()
        if not base.is_base
    ]
    if delivered is not None:
        _remember([delivered.base], bases, f"{where}/{BASE}", problems)
        _remember(delivered.patches, every, f"{where}/{PATCH}", problems)
    problems += [
        f"{where}/{PATCH}: patch {patch.id} is for base {patch.key}, which {BASE} does not have; add that base "
        "or take the patch out"
        for patch in every.values()
        if patch.key not in bases
    ]
    if not bases:
        return Choice(None, tuple(problems))
    base = bases[max(bases)]
    work = Work(base, tuple(every[i] for i in sorted(every) if every[i].key == base.id and i != base.id))
    if delivered is None or work.name != delivered.name:
        return Choice(work, tuple(problems))
    problems += [
        f"{where}/{PATCH}: patch {late.id} came after {delivered.name} was delivered, which ends with a higher id, and "
        "is not in it; give it a new id that is the highest, or it waits for the next patch"
        for late in work.patches
        if late not in delivered.patches
    ]
    return Choice(None, tuple(problems))


def _remember(was: Sequence[DoneEntry], now: dict[int, DoneEntry], where: str, problems: list[str]) -> None:
    """Keep delivered entries as they were; a line that changed since is a problem."""
    for entry in was:
        if now.get(entry.id, entry) != entry:
            problems.append(
                f"{where}: {entry.id} was delivered from {entry.input} and now says {now[entry.id].input}; "
                "give the new rows a new id"
            )
        now[entry.id] = entry


def _distinct(entries: Sequence[DoneEntry], where: str, problems: list[str]) -> dict[int, DoneEntry]:
    """Return entries by id; one id with two inputs is a problem, and neither of them counts."""
    found: dict[int, DoneEntry] = {}
    twice: set[int] = set()
    for entry in entries:
        if found.setdefault(entry.id, entry) != entry and entry.id not in twice:
            twice.add(entry.id)
            problems.append(
                f"{where}: id {entry.id} stands for {found[entry.id].input} and for {entry.input}; give one a new id"
            )
    return {number: entry for number, entry in found.items() if number not in twice}


class DonefileSource:
    """A directory of donefiles, and the rows that they point to.

    Args:
        address: A local path, ``http(s)://``, ``ftp://``, ``s3://`` or ``bos://``.
        hubs: From cloudedge.yaml, for buckets.
        clock: For deadlines.
    """

    def __init__(
        self, address: str, *, hubs: Mapping[str, HubConfig] | None = None, clock: Clock | None = None
    ) -> None:
        self._hubs = hubs or {}
        self._clock = clock or SystemClock()
        self._remote, directory = open_remote_files(address, self._hubs, self._clock)
        self._directory = directory.rstrip("/")
        self._seen: tuple[str | None, str | None] | None = None
        self._files = Donefiles()

    @property
    def address(self) -> str:
        """The directory of the donefiles, for messages."""
        return self._remote.address(self._directory)

    def read(self) -> Donefiles:
        """Read both files, unless neither has changed since; an absent one is empty.

        Raises:
            InputError: a line is no entry.
            Unavailable: the host did not answer.
        """
        paths = [f"{self._directory}/{name}" for name in (BASE, PATCH)]
        versions = (self._remote.version(paths[0]), self._remote.version(paths[1]))
        if versions != self._seen or "" in versions:
            warnings: list[str] = []
            bases, patches = (self._entries(path, warnings.append) for path in paths)
            if versions == (None, None):
                warnings.append(f"there is neither {BASE} nor {PATCH} in {self.address}; is donefile_address right?")
            self._files, self._seen = Donefiles(bases, patches, tuple(warnings)), versions
        return self._files

    def _entries(self, path: str, warn: Callable[[str], None]) -> tuple[DoneEntry, ...]:
        try:
            text = self._remote.read(path).decode(errors="replace")
        except NotFound:
            return ()
        return tuple(parse_donefile(text, source=self._remote.address(path), warn=warn))

    def bring(self, work: Work, into: Path, *, within_s: float) -> Table:
        """Fetch a version's rows and merge them into one table in the directory `into`.

        Rows that an earlier call fetched or merged are reused, unless the donefiles' lines or the files they point to
        have changed since: the table is named by them.

        Raises:
            NotFound: an entry points nowhere.
            InputError: a file is no whole SequenceFile (file and byte), or rows differ in length.
            StorageError: there is no room.
        """
        deadline = self._clock.monotonic() + within_s
        layers = []
        for entry in work.entries:
            try:
                layers.append(self._bring(entry, into / _input_name(entry), deadline))
            except NotFound as error:
                kind = BASE if entry is work.base else PATCH
                raise NotFound(
                    f"{self.address}/{kind}: entry {entry.id} points to {entry.input}, and {error.message}",
                    hint="Write the rows there, or take the line out.",
                    id=entry.id,
                ) from error
        identity = _identity(work, layers)
        target = into / f"{work.name}-{identity}.safetensors"
        rows = merge_rows(layers, target)
        if _identity(work, layers) != identity:
            target.unlink(missing_ok=True)
            raise InputError(
                f"{self.address}: what version {work.name} points to was written while it was read",
                hint="Write the donefile's line after the files it points to.",
            )
        return rows

    def clean(self, into: Path, work: Work, rows: Table) -> None:
        """Remove all fetched files but a version's inputs and the table made of them."""
        names = {path.name for path in rows.files} | {_input_name(entry) for entry in work.entries}
        try:
            for path in into.iterdir() if into.is_dir() else ():
                if path.name not in names:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            raise StorageError(f"cannot clean {into}: {error.strerror}", path=str(into)) from error

    def _bring(self, entry: DoneEntry, into: Path, deadline: float) -> Layer:
        """Return the directory of an entry's files, and the names of the files for messages."""
        remote, path = (self._remote, entry.input)
        is_local = isinstance(remote, LocalFiles)
        if not path.isprintable() or (path.startswith("file:") and not is_local):
            raise InputError(
                f"{self.address}: entry {entry.id} points to {path!r}, which is not taken from there",
                hint="Name a directory on the donefiles' host, or a URL.",
                id=entry.id,
            )
        if "://" in entry.input:
            remote, path = open_remote_files(entry.input, self._hubs, self._clock)
        elif is_local and not entry.input.startswith("/"):
            path = f"{self._directory}/{entry.input}"
        here = remote.bring(path, into, deadline)
        if isinstance(remote, LocalFiles):
            return here, str
        return here, lambda file: remote.address(f"{path.rstrip('/')}/{file.relative_to(here)}")


def _input_name(entry: DoneEntry) -> str:
    """Name the directory that an entry's files are fetched into; a corrected line gets another one."""
    return (
        f"input-{entry.key}-{entry.id}-{hashlib.sha256(entry.input.encode(errors='backslashreplace')).hexdigest()[:8]}"
    )


def _identity(work: Work, layers: Sequence[Layer]) -> str:
    """Return an identity of rows: their origin, and the sizes and times of their files.

    Raises:
        InputError: a file cannot be read.
    """
    seen: list[Any] = []
    for entry, (directory, called) in zip(work.entries, layers, strict=True):
        for path in row_files(directory):
            try:
                about = path.stat()
            except OSError as error:
                raise InputError(
                    f"cannot read {called(path)}: {error.strerror}", hint="Check that it is no longer being written."
                ) from error
            seen.append([entry.id, entry.input, str(path), about.st_size, about.st_mtime_ns, about.st_ino])
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]
