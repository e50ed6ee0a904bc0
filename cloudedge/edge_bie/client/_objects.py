"""Object storage for files that nodes download: one URL per digest, never overwritten.

The stores are the hub's own, so an upload is verified on its way, continues after a kill and appears only when
complete. A node checks MD5 at most, and the ETag of a multipart upload is none; so both digests are computed here,
from the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import quote, urlsplit

from cloudedge.config import HubConfig, ObjectsConfig
from cloudedge.errors import ConfigError, IntegrityError
from cloudedge.hub import CHUNK, Descriptor, ObjectStore, hash_file, open_store, parse_digest
from cloudedge.hub.objects import DirectoryStore
from cloudedge.io import digest_chunks, storage_errors

__all__ = ["Objects", "Stored", "StoredObjects", "open_objects", "put_file"]

_MEDIA_TYPE = "application/octet-stream"


@dataclass(frozen=True)
class Stored:
    """A file that nodes can download."""

    url: str
    md5: str
    """Lower-case hex, as BIE requires."""
    sha256: str
    size: int
    sent_bytes: int
    """Zero if it was already stored."""


class Objects(Protocol):
    """File storage by digest."""

    def url_of(self, digest: str) -> str:
        """Return the URL of a file for nodes, stored or not."""
        ...

    def put(self, digest: str, size: int, open_at: Callable[[int], BinaryIO]) -> Stored:
        """Store a file unless it is stored already.

        Args:
            digest: The source's digest, ``sha256:`` and hex.
            size: Its size in bytes.
            open_at: Opens the source at an offset.

        Raises:
            IntegrityError: the source has another digest; nothing of it is kept.
        """
        ...


class StoredObjects:
    """`Objects` in one of the hub's stores."""

    def __init__(self, store: ObjectStore, public_url: str) -> None:
        self._store = store
        self._public_url = public_url.rstrip("/")

    def __repr__(self) -> str:
        return f"StoredObjects({self._store.url!r}, {self._public_url!r})"

    def url_of(self, digest: str) -> str:
        """Return the URL of a file for nodes, stored or not."""
        return f"{self._public_url}/{quote(_key(digest))}"

    def put(self, digest: str, size: int, open_at: Callable[[int], BinaryIO]) -> Stored:
        """Store a file unless it is stored already; see `Objects.put`."""
        blob, key = Descriptor(_MEDIA_TYPE, parse_digest(digest), size), _key(digest)
        md5 = _md5_of(blob, open_at)
        there = self._store.head(key)
        sent = 0
        if there is None or there.size != size:
            progress = _ByteCount()
            self._store.upload(key, blob, lambda start: _chunks(open_at, start), progress)
            self._store.settle([key])
            there, sent = self._store.head(key), progress.bytes
        if there is None or there.size != size:
            raise IntegrityError(f"{self._store.url}: {key} is missing after its upload", digest=digest)
        return Stored(self.url_of(digest), md5, blob.digest.removeprefix("sha256:"), size, sent)


def open_objects(config: ObjectsConfig) -> Objects:
    """Open the storage of a cloud's ``objects`` section.

    Raises:
        ConfigError: the URL for nodes is unknown.
    """
    public, store = config.public_url, config.store
    scheme = store.url.partition("://")[0] if "://" in store.url else "file"
    if scheme in ("s3", "bos"):
        return StoredObjects(open_store(store), public or _bucket_url(store, scheme))
    if scheme != "file" or not public:
        raise ConfigError(
            f"objects in {store.url} need a public_url that nodes can download from",
            hint="Serve the folder by HTTP and set `public_url` to its address, or use s3:// or bos://.",
        )
    return StoredObjects(DirectoryStore(store.url.removeprefix("file://")), public)


def put_file(objects: Objects, path: Path, *, expected: str = "") -> Stored:
    """Store a local file unless it is stored already.

    Args:
        objects: The storage.
        path: The file.
        expected: The digest it must have; any by default.

    Raises:
        IntegrityError: the file changed meanwhile, or has another digest than expected.
        NotFound: the file does not exist.
    """

    def open_at(start: int) -> BinaryIO:
        file = path.open("rb")
        file.seek(start)
        return file

    with storage_errors("reading a file to upload", path):
        hashed = hash_file(path)
        return objects.put(expected or hashed.digest, hashed.size, open_at)


def _key(digest: str) -> str:
    return f"sha256/{parse_digest(digest).removeprefix('sha256:')}"


def _bucket_url(store: HubConfig, scheme: str) -> str:
    """Return a bucket's own address; HTTPS unless its endpoint has another scheme."""
    parts = urlsplit(store.url)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    if scheme == "bos" and not store.endpoint:
        base = f"https://{bucket}.{store.region or 'bj'}.bcebos.com"
    elif scheme == "s3" and not store.endpoint:
        base = f"https://{bucket}.s3.{store.region or 'us-east-1'}.amazonaws.com"
    else:
        endpoint = store.endpoint if "://" in store.endpoint else f"https://{store.endpoint}"
        base = f"{endpoint.rstrip('/')}/{bucket}"
    return f"{base}/{prefix}".rstrip("/")


def _chunks(open_at: Callable[[int], BinaryIO], start: int) -> Iterator[bytes]:
    with open_at(start) as source:
        while chunk := source.read(CHUNK):
            yield chunk


def _md5_of(blob: Descriptor, open_at: Callable[[int], BinaryIO]) -> str:
    """Read the source once and check its digest, so that no other bytes are ever sent."""
    found = digest_chunks(_chunks(open_at, 0), md5=True)
    if (found.size, f"sha256:{found.sha256}") != (blob.size, blob.digest):
        raise IntegrityError(
            f"the source of {blob.digest} has {found.size} bytes and digest sha256:{found.sha256}", digest=blob.digest
        )
    return found.md5


class _ByteCount:
    """Counts the bytes that an upload settled."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, settled: int) -> None:
        self.bytes += settled
