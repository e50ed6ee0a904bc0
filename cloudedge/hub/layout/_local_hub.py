"""A hub in a local directory: an OCI layout whose blobs are files to open, map and link."""

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
    """The hub in which bundles are packed and read, and to which they are pulled."""

    def __init__(self, root: str | os.PathLike[str] | None = None, clock: Clock | None = None) -> None:
        """Set the directory (None: the user's own hub); it is created by the first write."""
        if root is None:
            from cloudedge.config import home  # noqa: PLC0415 - slow to import

            root = home() / "hub"
        self.root = Path(root).absolute()
        self._files = DirectoryStore(self.root, clock)
        super().__init__(self._files, clock)

    def blob_path(self, blob: Descriptor) -> Path:
        """Return the file of a blob.

        Raises:
            IntegrityError: the blob is missing, truncated, or was changed after it was linked.
        """
        if not self.has_blob("", blob):
            raise IntegrityError(
                f"{self.url}: blob {blob.digest} is missing, truncated, or was changed after packing",
                hint="Pull the bundle again from a hub that has it, or pack it again.",
                digest=blob.digest,
            )
        return self._files.path(blob_key(blob.digest))

    def adopt(self, source: Path, hashed: Hashed, *, how: Adoption) -> bool:
        """Take in a local file that was just hashed; returns True if the hub now links the owner's file."""
        return self._files.adopt(blob_key(hashed.digest), source, hashed, how=how)

    def write_bytes(self, data: bytes, media_type: str, annotations: dict[str, str] | None = None) -> Descriptor:
        """Store a small blob."""
        blob = Descriptor.of(data, media_type, annotations)
        if not self.has_blob("", blob):
            self.store.put(blob_key(blob.digest), data)
        return blob

    def drop_damaged(self, blob: Descriptor) -> None:
        """Delete a blob that does not match its digest, so that the next pull brings it again; readers keep theirs."""
        self._files.delete(blob_key(blob.digest))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend a folder on the hub's file system for files to adopt; removed afterwards."""
        folder = self._files.path("uploads")
        with storage_errors("writing to the hub", folder):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix="pack-") as made:
                yield Path(made)
