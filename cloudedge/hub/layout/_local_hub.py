"""A hub in a local directory: a layout whose blobs are files that can be opened, mapped and linked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudedge.clock import Clock
from cloudedge.errors import IntegrityError
from cloudedge.hub.core import Descriptor, Hashed
from cloudedge.hub.layout._layout_hub import LayoutHub, blob_key
from cloudedge.hub.objects import Adoption, DirectoryStore
from cloudedge.io import storage_errors

__all__ = ["LocalHub"]


class LocalHub(LayoutHub):
    """Where bundles are packed, pulled to and read from."""

    def __init__(self, root: str | os.PathLike[str] | None = None, clock: Clock | None = None) -> None:
        """Name the directory; nothing is made until it is written to. None: the user's own hub."""
        if root is None:
            from cloudedge.config import home  # noqa: PLC0415 - slow to import

            root = home() / "hub"
        self.root = Path(root).absolute()
        self._files = DirectoryStore(self.root, clock)
        super().__init__(self._files, clock)

    def blob_path(self, blob: Descriptor) -> Path:
        """Return the file a blob is in.

        Raises:
            IntegrityError: the blob is not there, cut short, or was written to since it was linked.
        """
        if not self.has_blob("", blob):
            raise IntegrityError(
                f"{self.url}: blob {blob.digest} is missing, cut short, or was written to after packing",
                hint="Pull the bundle again from a hub that has it, or pack it again.",
                digest=blob.digest,
            )
        return self._files.path(blob_key(blob.digest))

    def adopt(self, source: Path, hashed: Hashed, *, how: Adoption) -> bool:
        """Take in a local file that was just hashed; returns whether the hub now shares it with its owner."""
        return self._files.adopt(blob_key(hashed.digest), source, hashed, how=how)

    def write_bytes(self, data: bytes, media_type: str, annotations: dict[str, str] | None = None) -> Descriptor:
        """Store a small blob."""
        blob = Descriptor.of(data, media_type, annotations)
        if not self.has_blob("", blob):
            self.store.put(blob_key(blob.digest), data)
        return blob

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend a folder on the hub's file system for files about to be adopted; removed afterwards."""
        folder = self._files.path("uploads")
        with storage_errors("writing to the hub", folder):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix="pack-") as made:
                yield Path(made)
