"""One data set on this machine."""

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

from cloudedge.cache.local._juicefs import KEYS, VOLUME, Ended, JuiceFs
from cloudedge.cache.local._meta import Meta
from cloudedge.cache.local._overlay import can_overlay, is_mounted, lay, lift
from cloudedge.cache.local._partition import deal
from cloudedge.cache.local._settings import DatasetSettings, refuse_password, stored
from cloudedge.cache.local._warm import WarmFiles
from cloudedge.cache.paths import check_paths
from cloudedge.errors import InputError, NotFound, StorageError
from cloudedge.findings import refuse_errors

__all__ = ["LocalDataset", "LocalStatus", "Synced", "Warmed"]

Files = Callable[[int, int], None]
"""Told of files and bytes as they are settled."""

_BATCH = 500


@dataclass(frozen=True)
class Synced:
    """What a copy did."""

    files: int
    copied: int
    skipped: int
    bytes: int


@dataclass(frozen=True)
class Warmed:
    """What a warm-up did, partition by partition."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class LocalStatus:
    """A data set as people ask for it."""

    name: str
    phase: str
    """Ready if a partition is mounted, Bound if none is, Unknown if its metadata cannot be had."""
    total_bytes: int | None
    total_files: int | None
    cached_bytes: int | None
    available_bytes: int | None
    runtime: str
    """Partitions that are mounted, of how many: 1/2."""
    age_s: float
    mounts: tuple[str, ...]
    why: str = ""
    """Why it cannot be had."""


class LocalDataset:
    """One data set: mounted, copied into, warmed up, emptied, removed."""

    def __init__(self, settings: DatasetSettings, folder: Path, juicefs: JuiceFs) -> None:
        self.settings = settings
        self._folder = folder
        self._juicefs = juicefs
        self._meta = Meta.parse(settings.meta).known(folder)
        caches = [Path(settings.cache) / str(partition) for partition in range(settings.partitions)]
        self._warm = WarmFiles([cache / "files" for cache in caches], folder / "changing")

    def mount(self, partition: int = 0) -> Path:
        """Mount a partition, unless it is; return where.

        What was warmed up lies over it as plain files, where the kernel lets us.

        Raises:
            InputError: there is no such partition.
            Conflict: a copy into it runs.
        """
        if not 0 <= partition < self.settings.partitions:
            raise InputError(f"{self.settings.name} has the partitions 0 to {self.settings.partitions - 1}")
        volume = self._volume(partition)
        if not can_overlay():
            return volume
        point = self._point(partition)
        if not is_mounted(point):
            self._warm.settle(volume)
            lay(self._warm.folders[partition], volume, point)
        return point

    def unmount(self) -> None:
        """Unmount every partition that is mounted.

        Raises:
            Conflict: somebody reads it.
        """
        for partition in range(self.settings.partitions):
            lift(self._point(partition))
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
        progress: Files = lambda _files, _bytes: None,
    ) -> Synced:
        """Copy from a source; running it again copies only what is new, has changed or was not finished.

        A file has changed if it has another size, or is newer by a second or more than the one that was copied.

        Args:
            source: A folder, ``s3://``, ``minio://``, ``bos://``...; the data set's own if left out.
            destination: A folder of the data set; its root if left out.
            keys: Access and secret key of the source.
            threads: Files at the same time.
            verify: Tell by what is in the files instead, which reads all of them, here and there.
            https: Whether an object store speaks TLS; `minio` sources, and those named by a number, never do.
            progress: Told of every file that was copied.

        Raises:
            InputError: there is no source, or the destination leads out of the data set.
            Conflict: somebody reads the data set, or another copy runs.
            Rejected, NotFound, Unavailable: the source said no, is not there or does not answer.
        """
        origin = source or self.settings.source
        if not origin:
            raise InputError(f"copy from where? {self.settings.name} has no source of its own", hint="Name one.")
        if origin.partition("://")[0] in KEYS:  # for others there is no safer way
            refuse_password("source", origin)
        if destination:
            refuse_errors("this copy", check_paths([destination.strip("/")], "destination"))
        if "://" not in origin:
            origin = str(Path(origin).expanduser().absolute())
            if not Path(origin).is_dir():
                raise NotFound(f"there is no folder {origin} to copy from")
        copied = [0, 0]

        where = destination.strip("/")

        def settled(name: str, size: int) -> None:
            copied[0] += 1
            copied[1] += size
            self._warm.forget([str(Path(where, name))])
            progress(1, size)

        def copy(*options: str) -> Ended:
            return self._juicefs.sync(
                origin.rstrip("/") + "/",
                f"jfs://{VOLUME}/{where}/" if where else f"jfs://{VOLUME}/",
                meta=self._meta,
                keys=keys,
                options=["--threads", str(threads), *([] if https else ["--no-https"]), *options],
                on_file=settled,
            )

        with self._changing(below=True), self._warm.changing() as all_settled:
            ended = copy("--check-all") if verify else copy()
            told = ended.copied
            if ended.skipped and not verify:
                # By itself JuiceFS compares sizes alone, and with this option times alone.
                told += copy("--update").copied
            if told == copied[0]:
                all_settled()
        return Synced(ended.found, copied[0], ended.found - copied[0], copied[1])

    def warmup(
        self,
        paths: Sequence[str] = (),
        *,
        strategy: Literal["sequence", "random"] = "sequence",
        threads: int = 50,
        seed: int = 0,
        progress: Files = lambda _files, _bytes: None,
    ) -> Warmed:
        """Bring files into the caches: each into that of one partition.

        Raises:
            InputError: a path leads out of the data set.
            NotFound: it is not there.
        """
        hands = deal(list(self._files(paths)), self.settings.partitions, strategy, seed=seed)
        sizes = [sum((self._volume() / name).stat().st_size for name in hand) for hand in hands]
        if max(sizes) > self.settings.cache_mib << 20:
            raise StorageError(
                f"{max(sizes) >> 20} MiB do not fit into a cache of {self.settings.cache_mib} MiB",
                hint="Warm up less of it, or make the data set with a larger cache or more partitions.",
            )
        with self._changing():
            self._warm.settle(self._volume())
            with self._warm.changing() as all_settled:
                for partition, hand in enumerate(hands):
                    self._fill(partition, hand, threads, progress)
                all_settled()
        return Warmed(tuple(len(hand) for hand in hands))

    def _fill(self, partition: int, hand: Sequence[str], threads: int, progress: Files) -> None:
        if can_overlay():
            with _list_of(hand) as names:
                self._juicefs.sync(
                    f"jfs://{VOLUME}/",
                    f"{self._warm.folders[partition]}/",
                    meta=self._meta,
                    options=["--threads", str(threads), "--files-from", str(names)],
                    on_file=lambda _name, size: progress(1, size),
                )
            return
        volume = self._volume(partition)
        for first in range(0, len(hand), _BATCH):
            batch = [volume / name for name in hand[first : first + _BATCH]]
            with _list_of(batch) as files:
                self._juicefs.warmup(volume, files, threads=threads)
            progress(len(batch), sum(file.stat().st_size for file in batch))

    def clear(self, paths: Sequence[str] = ()) -> None:
        """Empty the caches, or take some paths out of them; the data stays."""
        if paths:
            refuse_errors("this clear", check_paths(paths, "paths"))
        with self._changing():
            self._warm.forget(paths)
            for volume in self._mounted():
                with _list_of([volume / path for path in paths] or [volume]) as files:
                    self._juicefs.warmup(volume, files, threads=10, evict=True)

    def remove(self, paths: Sequence[str], *, confirmed: bool) -> None:
        """Delete files or folders of the data set, for good.

        Raises:
            InputError: a path is not below the root, or nobody said yes.
            NotFound: it is not there.
        """
        refuse_errors("this removal", check_paths(paths, "paths"))
        if not confirmed:
            raise InputError(f"{', '.join(paths)} would be deleted for good", hint="Say so: --yes.")
        volume = self._volume()
        for path in paths:
            if not (volume / path).exists():
                raise NotFound(f"{path!r} is not in the data set {self.settings.name}")
        with self._changing():
            self._warm.forget(paths)
            for path in paths:
                self._juicefs.remove(volume / path)

    def status(self) -> LocalStatus:
        """Say how much there is, how much of it is cached, and where it is mounted."""
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
            InputError: nobody said yes.
        """
        if not confirmed:
            raise InputError(f"{self.settings.name} would be deleted with all its data", hint="Say so: --yes.")
        self.unmount()
        uuid = self._juicefs.status(self._meta)["Setting"]["UUID"]
        self._juicefs.destroy(self._meta, uuid)
        with stored(self._folder):
            shutil.rmtree(self._folder)

    def _point(self, partition: int) -> Path:
        return self._folder / "mnt" / str(partition)

    def _volume(self, partition: int = 0) -> Path:
        """Mount the volume itself, unless it is; return where."""
        volume = self._folder / "volume" / str(partition)
        if not is_mounted(volume):
            blocks = Path(self.settings.cache) / str(partition) / "blocks"
            for folder in (volume, blocks):
                folder.mkdir(parents=True, exist_ok=True)
            # Names and attributes are remembered for a minute, unless nobody could make the mount anew after a copy.
            kept = dict.fromkeys(("attr-cache", "entry-cache", "dir-entry-cache", "open-cache"), "60")
            kept = kept if can_overlay() else {}
            size = {"cache-dir": str(blocks), "cache-size": str(self.settings.cache_mib), "free-space-ratio": "0.01"}
            self._juicefs.mount(self._meta, volume, kept | size | {"metrics": "127.0.0.1:0"})
        return volume

    def _mounted(self) -> list[Path]:
        volumes = (self._folder / "volume" / str(partition) for partition in range(self.settings.partitions))
        return [volume for volume in volumes if is_mounted(volume)]

    @contextmanager
    def _changing(self, *, below: bool = False) -> Iterator[None]:
        """Lift what is laid over the volume while either changes.

        Args:
            below: Somebody else changes the volume, whose mounts remember names for a while: they are made anew.
        """
        lifted = [partition for partition in range(self.settings.partitions) if lift(self._point(partition))]
        if below and can_overlay():
            for volume in self._mounted():
                self._juicefs.unmount(volume)
        try:
            yield
        finally:
            for partition in lifted:
                self.mount(partition)

    def _files(self, paths: Sequence[str]) -> Iterator[str]:
        """Yield every file below some paths, hidden ones left out, in an order that stays the same."""
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
