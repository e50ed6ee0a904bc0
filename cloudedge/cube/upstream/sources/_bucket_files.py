"""A bucket's objects as files, read through the object stores of hubs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from cloudedge.clock import Clock
from cloudedge.config import HubConfig
from cloudedge.cube.upstream.sources._remote_files import ListedFiles, RemoteFile, bounded, save
from cloudedge.hub import ObjectStore

__all__ = ["BucketFiles", "same_bucket"]


class BucketFiles(ListedFiles):
    """A bucket, read through any `ObjectStore` that begins at its root."""

    def __init__(self, store: ObjectStore, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._store = store

    def address(self, path: str) -> str:
        """Return the object's URL."""
        return f"{self._store.url}/{path.strip('/')}"

    def version(self, path: str) -> str | None:
        """Return the object's ETag."""
        info = self._store.head(path.strip("/"))
        return info.version if info else None

    def read(self, path: str) -> bytes:
        """Read an object."""
        content = b""
        for chunk in self._store.get(path.strip("/")):
            content = bounded(content + chunk, self.address(path))
        return content

    def walk(self, path: str) -> Iterator[RemoteFile]:
        """List the objects below a prefix."""
        prefix = path.strip("/") + "/"
        for info in self._store.list(prefix):
            if not info.key.endswith("/"):  # a marker that consoles make to show a folder
                yield RemoteFile(info.key.removeprefix(prefix), info.key, info.size, info.version)

    def fetch(self, file: RemoteFile, target: Path, deadline: float) -> None:
        """Bring an object here; the store itself continues a broken download."""
        chunks = self._store.get(file.key)
        save(chunks, target, file, self.address(file.key), lambda: self._clock.monotonic() < deadline)


def same_bucket(scheme: str, bucket: str, hubs: Mapping[str, HubConfig]) -> HubConfig:
    """Return the settings of a bucket's root: those of a hub in the same bucket, or the SDK's own search."""
    root = f"{scheme}://{bucket}"
    for hub in hubs.values():
        if hub.url == root or hub.url.startswith(f"{root}/"):
            return hub.model_copy(update={"url": root})
    return HubConfig(url=root)
