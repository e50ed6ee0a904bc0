"""`LocalDataset`: mount, copy into, warm up, clear and remove a data set on this machine."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal

from cloudedge.cache.local._juicefs import KEYS, VOLUME, CopyCounts, JuiceFs
from cloudedge.cache.local._meta import Meta
from cloudedge.cache.local._overlay import can_overlay, is_mounted, mount_overlay, unmount_overlay
from cloudedge.cache.local._partition import deal
from cloudedge.cache.local._settings import DatasetSettings, refuse_password
from cloudedge.cache.local._warm import WarmFiles
from cloudedge.cache.paths import check_paths
from cloudedge.errors import InputError, NotFound, StorageError
from cloudedge.findings import refuse_errors
from cloudedge.io import storage_errors

__all__ = ["LocalDataset", "LocalStatus", "Synced", "Warmed"]

Progress = Callable[[int, int], None]
"""Called with the numbers of files and bytes as they are finished."""

_BATCH = 500


@dataclass(frozen=True)
class Synced:
    """The result of a copy."""

    files: int
    copied: int
    skipped: int
    bytes: int


@dataclass(frozen=True)
class Warmed:
    """The result of a warm-up: the number of files of each partition."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class LocalStatus:
    """The state of a data set."""

    name: str
    phase: str
    """Ready if a partition is mounted, Bound if none is, Unknown if its metadata cannot be read."""
    total_bytes: int | None
    total_files: int | None
    cached_bytes: int | None
    available_bytes: int | None
    runtime: str
    """Mounted partitions and their number: 1/2."""
    age_s: float
    mounts: tuple[str, ...]
    why: str = ""
    """The reason its metadata cannot be read."""


class LocalDataset:
    """A data set on this machine."""

    def __init__(self, settings: DatasetSettings, folder: Path, juicefs: JuiceFs) -> None:
        self.settings = settings
        self._folder = folder
        self._juicefs = juicefs
        self._meta = Meta.parse(settings.meta).with_password(folder)
        caches = [Path(settings.cache) / str(partition) for partition in range(settings.partitions)]
        self._warm = WarmFiles([cache / "files" for cache in caches], folder / "changing")

    def mount(self, partition: int = 0) -> Path:
        """Mount a partition unless it is mounted; return the mount point.

        Warm files are overlaid as plain files if the kernel permits it.

        Raises:
            InputError: the partition does not exist.
            Conflict: a copy into the data set runs.
        """
        if not 0 <= partition < self.settings.partitions:
            raise InputError(f"{self.settings.name} has the partitions 0 to {self.settings.partitions - 1}")
        volume = self._volume(partition)
        if not can_overlay():
            return volume
        point = self._point(partition)
        if not is_mounted(point):
            self._warm.remove_stale(volume)
            mount_overlay(self._warm.folders[partition], volume, point)
        return point

    def unmount(self) -> None:
        """Unmount every partition that is mounted.

        Raises:
            Conflict: a process reads it.
        """
        for partition in range(self.settings.partitions):
            unmount_overlay(self._point(partition))
        for volume in self._mounted():
            self._juicefs.unmount(volume)

    def sync(
        self,
        source: str = "",
        destination: str = "",
        *,
        keys: tuple[str, str] = ("", ""),
        threads: int = 10,
        verify: bool = False,
        https: bool = True,
        progress: Progress = lambda _files, _bytes: None,
    ) -> Synced:
        """Copy from a source; a repeated run copies only new, changed and unfinished files.

        A file has changed if its size differs, or if it is newer than the copy by a second or more.

        Args:
            source: A folder, ``s3://``, ``minio://``, ``bos://``...; the data set's own if left out.
            destination: A folder of the data set; its root if left out.
            keys: Access and secret key of the source.
            threads: Files copied at the same time.
            verify: Compare the contents of the files instead, which reads all of them on both sides.
            https: Whether an object store uses TLS; `minio` sources, and those addressed by number, never do.
            progress: Called for every copied file.

        Raises:
            InputError: there is no source, or the destination is outside the data set.
            Conflict: a process reads the data set, or another copy runs.
            Rejected, NotFound, Unavailable: the source refuses, does not exist or does not answer.
        """
        origin = source or self.settings.source
        if not origin:
            raise InputError(f"cannot copy: {self.settings.name} has no source", hint="Name a source.")
        if origin.partition("://")[0] in KEYS:  # for others there is no safer way to pass credentials
            refuse_password("source", origin)
        if destination:
            refuse_errors("this copy", check_paths([destination.strip("/")], "destination"))
        if "://" not in origin:
            origin = str(Path(origin).expanduser().absolute())
            if not Path(origin).is_dir():
                raise NotFound(f"the source folder {origin} does not exist")
        copied = [0, 0]

        where = destination.strip("/")

        def on_file(name: str, size: int) -> None:
            copied[0] += 1
            copied[1] += size
            self._warm.remove([str(Path(where, name))])
            progress(1, size)

        def copy(*options: str) -> CopyCounts:
            return self._juicefs.sync(
                origin.rstrip("/") + "/",
                f"jfs://{VOLUME}/{where}/" if where else f"jfs://{VOLUME}/",
                meta=self._meta,
                keys=keys,
                options=["--threads", str(threads), *([] if https else ["--no-https"]), *options],
                on_file=on_file,
            )

        with self._changing(below=True), self._warm.changing() as all_good:
            counts = copy("--check-all") if verify else copy()
            expected = counts.copied
            if counts.skipped and not verify:
                # By default JuiceFS compares only sizes, and with this option only times.
                expected += copy("--update").copied
            if expected == copied[0]:
                all_good()
        return Synced(counts.found, copied[0], counts.found - copied[0], copied[1])

    def warmup(
        self,
        paths: Sequence[str] = (),
        *,
        strategy: Literal["sequence", "random"] = "sequence",
        threads: int = 50,
        seed: int = 0,
        progress: Progress = lambda _files, _bytes: None,
    ) -> Warmed:
        """Bring files into the caches, each into that of one partition.

        Raises:
            InputError: a path is outside the data set.
            NotFound: a path does not exist.
        """
        shares = deal(list(self._files(paths)), self.settings.partitions, strategy, seed=seed)
        sizes = [sum((self._volume() / name).stat().st_size for name in share) for share in shares]
        if max(sizes) > self.settings.cache_mib << 20:
            raise StorageError(
                f"{max(sizes) >> 20} MiB do not fit into a cache of {self.settings.cache_mib} MiB",
                hint="Warm up fewer files, or create the data set with a larger cache or more partitions.",
            )
        with self._changing():
            self._warm.remove_stale(self._volume())
            with self._warm.changing() as all_good:
                for partition, share in enumerate(shares):
                    self._fill(partition, share, threads, progress)
                all_good()
        return Warmed(tuple(len(share) for share in shares))

    def _fill(self, partition: int, share: Sequence[str], threads: int, progress: Progress) -> None:
        if can_overlay():
            with _list_of(share) as names:
                self._juicefs.sync(
                    f"jfs://{VOLUME}/",
                    f"{self._warm.folders[partition]}/",
                    meta=self._meta,
                    options=["--threads", str(threads), "--files-from", str(names)],
                    on_file=lambda _name, size: progress(1, size),
                )
            return
        volume = self._volume(partition)
        for first in range(0, len(share), _BATCH):
            batch = [volume / name for name in share[first : first + _BATCH]]
            with _list_of(batch) as files:
                self._juicefs.warmup(volume, files, threads=threads)
            progress(len(batch), sum(file.stat().st_size for file in batch))

    def clear(self, paths: Sequence[str] = ()) -> None:
        """Empty the caches, or remove some paths from them; the data stays."""
        if paths:
            refuse_errors("this clear", check_paths(paths, "paths"))
        with self._changing():
            self._warm.remove(paths)
            for volume in self._mounted():
                with _list_of([volume / path for path in paths] or [volume]) as files:
                    self._juicefs.warmup(volume, files, threads=10, evict=True)

    def remove(self, paths: Sequence[str], *, confirmed: bool) -> None:
        """Delete files or folders of the data set permanently.

        Raises:
            InputError: a path is not below the root, or the removal is not confirmed.
            NotFound: a path does not exist.
        """
        refuse_errors("this removal", check_paths(paths, "paths"))
        if not confirmed:
            raise InputError(f"{', '.join(paths)} would be deleted permanently", hint="Confirm it with `--yes`.")
        volume = self._volume()
        for path in paths:
            if not (volume / path).exists():
                raise NotFound(f"{path!r} is not in the data set {self.settings.name}")
        with self._changing():
            self._warm.remove(paths)
            for path in paths:
                self._juicefs.remove(volume / path)

    def status(self) -> LocalStatus:
        """Return the data set's size, its cached bytes and its mount points."""
        stat = self._juicefs.status(self._meta)["Stat"]
        mounted = self._mounted()
        cache = Path(self.settings.cache)
        return LocalStatus(
            name=self.settings.name,
            phase="Ready" if mounted else "Bound",
            total_bytes=stat["UsedSpace"],
            total_files=stat["UsedInodes"],
            cached_bytes=sum(path.stat().st_blocks * 512 for path in cache.rglob("*") if path.is_file()),
            available_bytes=shutil.disk_usage(cache if cache.exists() else self._folder).free,
            runtime=f"{len(mounted)}/{self.settings.partitions}",
            age_s=max(0.0, time.time() - self.settings.created_s),
            mounts=tuple(str(self._point(p)) for p in range(self.settings.partitions) if is_mounted(self._point(p)))
            or tuple(str(volume) for volume in mounted),
        )

    def destroy(self, *, confirmed: bool) -> None:
        """Delete the data set with all its data.

        Raises:
            InputError: the deletion is not confirmed.
        """
        if not confirmed:
            raise InputError(
                f"{self.settings.name} would be deleted with all its data", hint="Confirm it with `--yes`."
            )
        self.unmount()
        uuid = self._juicefs.status(self._meta)["Setting"]["UUID"]
        self._juicefs.destroy(self._meta, uuid)
        with storage_errors("removing", self._folder):
            shutil.rmtree(self._folder)

    def _point(self, partition: int) -> Path:
        return self._folder / "mnt" / str(partition)

    def _volume(self, partition: int = 0) -> Path:
        """Mount the volume itself unless it is mounted; return the mount point."""
        volume = self._folder / "volume" / str(partition)
        if not is_mounted(volume):
            blocks = Path(self.settings.cache) / str(partition) / "blocks"
            for folder in (volume, blocks):
                folder.mkdir(parents=True, exist_ok=True)
            # Names and attributes are cached for a minute, unless the mount could not be remade after a copy.
            names = ("attr-cache", "entry-cache", "dir-entry-cache", "open-cache")
            kept = dict.fromkeys(names, "60") if can_overlay() else {}
            size = {"cache-dir": str(blocks), "cache-size": str(self.settings.cache_mib), "free-space-ratio": "0.01"}
            self._juicefs.mount(self._meta, volume, kept | size | {"metrics": "127.0.0.1:0"})
        return volume

    def _mounted(self) -> list[Path]:
        volumes = (self._folder / "volume" / str(partition) for partition in range(self.settings.partitions))
        return [volume for volume in volumes if is_mounted(volume)]

    @contextmanager
    def _changing(self, *, below: bool = False) -> Iterator[None]:
        """Unmount the overlays while a layer changes.

        Args:
            below: Another process changes the volume, whose mounts cache names for a while: remake them.
        """
        unmounted = [p for p in range(self.settings.partitions) if unmount_overlay(self._point(p))]
        if below and can_overlay():
            for volume in self._mounted():
                self._juicefs.unmount(volume)
        try:
            yield
        finally:
            for partition in unmounted:
                self.mount(partition)

    def _files(self, paths: Sequence[str]) -> Iterator[str]:
        """Yield every file below the paths, except hidden ones, in a stable order."""
        if paths:
            refuse_errors("this warm-up", check_paths(paths, "paths"))
        volume = self._volume()
        for path in paths or ("",):
            start = volume / path
            if start.is_file():
                yield path
            elif not start.is_dir():
                raise NotFound(f"{path!r} is not in the data set {self.settings.name}")
            for folder, folders, names in os.walk(start):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for name in sorted(names):
                    if not name.startswith("."):
                        yield str(Path(folder, name).relative_to(volume))


@contextmanager
def _list_of(paths: Sequence[Path | str]) -> Iterator[Path]:
    with NamedTemporaryFile("w", encoding="utf-8", suffix=".list") as file:
        file.writelines(f"{path}\n" for path in paths)
        file.flush()
        yield Path(file.name)
