"""`LocalDatasets`: the registry of this machine's data sets, one folder each."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from cloudedge.bundle import published
from cloudedge.cache.local._dataset import LocalDataset, LocalStatus
from cloudedge.cache.local._juicefs import JuiceFs
from cloudedge.cache.local._meta import Meta
from cloudedge.cache.local._settings import DatasetSettings, refuse_password
from cloudedge.config import home
from cloudedge.errors import Conflict, InputError, NotFound, Rejected, Unavailable
from cloudedge.hub import canonical_json, parse_json
from cloudedge.io import storage_errors

__all__ = ["LocalDatasets"]

_NAME = re.compile(r"[a-z][-a-z0-9]{1,42}[a-z0-9]")
_SETTINGS = "dataset.json"


class LocalDatasets:
    """The data sets of this machine.

    Args:
        root: The registry's folder; ``~/.cloudedge/datasets`` by default.
        juicefs: The program.
    """

    def __init__(self, root: Path | None = None, juicefs: JuiceFs | None = None) -> None:
        self._root = (root or home() / "datasets").absolute()
        self._juicefs = juicefs

    def create(
        self,
        name: str,
        *,
        source: str = "",
        partitions: int = 1,
        meta: str = "",
        storage: str = "file",
        bucket: str = "",
        keys: tuple[str, str] = ("", ""),
        cache: Path | None = None,
        cache_mib: int = 10240,
    ) -> LocalDataset:
        """Create a data set; repeating it with the same settings changes nothing.

        A password in the metadata engine's address is saved in a file that only its owner may read, until the data
        set is created again with another one. A password in ``CLOUDEDGE_DATASET_META_PASSWORD`` is not saved.

        Raises:
            InputError: a setting is not valid.
            Conflict: a data set of that name exists with other settings.
        """
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{name!r} cannot be a data set's name", hint="Use 3 to 44 of a-z, 0-9 and '-', a letter first."
            )
        if partitions < 1 or cache_mib < 1:
            raise InputError("a data set needs at least one partition and a cache of at least 1 MiB")
        for what, url in (("source", source), ("bucket", bucket)):
            refuse_password(what, url)
        folder = self._root / name
        engine = Meta.parse(meta or f"sqlite3://{folder / 'meta.db'}?_journal=WAL&_timeout=30000")
        wanted = DatasetSettings(
            name=name,
            meta=engine.address,
            storage=storage,
            bucket=bucket or f"{folder / 'data'}/",
            partitions=partitions,
            cache=str(cache or folder / "cache"),
            cache_mib=cache_mib,
            source=source,
            created_s=time.time(),
        )
        with storage_errors("writing", folder):
            folder.mkdir(parents=True, exist_ok=True)
        existing = self._read(folder)
        if existing is not None:
            differ = [
                f.name
                for f in fields(wanted)
                if f.name != "created_s" and getattr(existing, f.name) != getattr(wanted, f.name)
            ]
            if differ:
                raise Conflict(
                    f"data set {name!r} exists with another {', '.join(differ)}", hint="Choose another name."
                )
            wanted = existing
        self._program.format(engine.with_password(folder), name, storage=storage, bucket=wanted.bucket, keys=keys)
        with storage_errors("writing", folder):
            engine.save_password(folder)
        if existing is None:
            with published(folder / _SETTINGS, f"registering the data set {name}") as draft:
                draft.write_bytes(canonical_json(asdict(wanted)))
        return LocalDataset(wanted, folder, self._program)

    def open(self, name: str) -> LocalDataset:
        """Return an existing data set.

        Raises:
            NotFound: the data set does not exist.
        """
        found = self._read(self._root / name)
        if found is None:
            raise NotFound(
                f"the data set {name!r} does not exist on this machine", hint="Run `cloudedge dataset list`."
            )
        return LocalDataset(found, self._root / name, self._program)

    def names(self) -> Sequence[str]:
        """List their names."""
        return sorted(path.parent.name for path in self._root.glob(f"*/{_SETTINGS}"))

    def list(self) -> Sequence[LocalStatus]:
        """Return the state of each; unreadable metadata of one does not hide the others."""
        return [self._status_or_unknown(name) for name in self.names()]

    def _status_or_unknown(self, name: str) -> LocalStatus:
        try:
            return self.open(name).status()
        except (NotFound, Rejected, Unavailable) as error:
            settings = self._read(self._root / name)
            age_s = max(0.0, time.time() - settings.created_s) if settings else 0.0
            return LocalStatus(name, "Unknown", None, None, None, None, "", age_s, (), why=error.message)

    @property
    def _program(self) -> JuiceFs:
        if self._juicefs is None:
            self._juicefs = JuiceFs()
        return self._juicefs

    def _read(self, folder: Path) -> DatasetSettings | None:
        try:
            value: Any = parse_json((folder / _SETTINGS).read_bytes(), str(folder / _SETTINGS))
        except FileNotFoundError:
            return None
        known = {item.name for item in fields(DatasetSettings)}
        return DatasetSettings(**{key: each for key, each in value.items() if key in known})
