"""OCI's data types: digests, descriptors and manifests, parsed strictly and kept byte for byte.

A manifest *is* its bytes: the digest names them, so fields from a newer cloudedge or another tool must survive
unchanged. Parsing therefore keeps the raw bytes and reads only the fields it relies on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NewType

from cloudedge.errors import InputError, IntegrityError
from cloudedge.io import safe_path

__all__ = [
    "FILE_PATH",
    "IMAGE_INDEX",
    "IMAGE_MANIFEST",
    "MANIFEST_LIMIT",
    "TABLE_NAME",
    "Descriptor",
    "Digest",
    "Manifest",
    "Reader",
    "canonical_json",
    "digest_of",
    "parse_digest",
    "parse_json",
    "verified",
]

Digest = NewType("Digest", str)
"""``sha256:`` and 64 lower-case hex digits."""

Reader = Callable[[int], Iterator[bytes]]
"""Opens a blob at a byte offset and yields the rest of it in chunks; closing the iterator frees it."""

IMAGE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"

# The least that the distribution spec asks registries to accept, and the most that the common one accepts.
MANIFEST_LIMIT = 4 * 1024 * 1024

FILE_PATH = "org.cncf.model.filepath"
"""The annotation with the path of a layer's file."""
TABLE_NAME = "io.cloudedge.table.name"
"""The annotation with the name of the table that a layer belongs to."""

_TABLE_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})


def parse_digest(text: object) -> Digest:
    """Check that `text` is a SHA-256 digest.

    Raises:
        InputError: `text` is not one.
    """
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise InputError(f"not a SHA-256 digest: {text!r} (expected sha256: and 64 hex digits)")
    return Digest(text)


def digest_of(data: bytes) -> Digest:
    """Return the digest that names `data`."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def canonical_json(value: object) -> bytes:
    """Write JSON in cloudedge's canonical form: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: the bytes are not JSON, or not an object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{what} is not a JSON object")
    return value


@dataclass(frozen=True)
class Descriptor:
    """Digest, size and media type of a blob, as OCI writes them."""

    media_type: str
    digest: Digest
    size: int
    annotations: Mapping[str, str] = field(default_factory=lambda: _NO_ANNOTATIONS, hash=False)

    @classmethod
    def of(cls, data: bytes, media_type: str, annotations: Mapping[str, str] | None = None) -> Descriptor:
        """Describe the given bytes."""
        return cls(media_type, digest_of(data), len(data), annotations or _NO_ANNOTATIONS)

    @classmethod
    def from_json(cls, value: object, what: str = "descriptor") -> Descriptor:
        """Read a descriptor out of a manifest or an index.

        Raises:
            InputError: a field is missing or impossible.
        """
        if not isinstance(value, dict):
            raise InputError(f"{what} is not an object")
        media_type, size = value.get("mediaType"), value.get("size")
        annotations = value.get("annotations") or {}
        if not isinstance(media_type, str):
            raise InputError(f"{what} has no mediaType")
        if type(size) is not int or not 0 <= size < 1 << 63:
            raise InputError(f"{what} has an impossible size: {size!r}")
        if not isinstance(annotations, dict) or not all(isinstance(v, str) for v in annotations.values()):
            raise InputError(f"{what} has annotations that are not strings")
        _check_names(annotations, what)
        return cls(media_type, parse_digest(value.get("digest")), size, MappingProxyType(annotations))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for a manifest or an index."""
        value: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return value


@dataclass(frozen=True)
class Manifest:
    """An image manifest or an image index: its raw bytes and the parsed fields."""

    raw: bytes = field(repr=False)
    media_type: str
    artifact_type: str
    config: Descriptor | None
    layers: tuple[Descriptor, ...]
    manifests: tuple[Descriptor, ...]
    annotations: Mapping[str, str]

    @classmethod
    def parse(cls, raw: bytes) -> Manifest:
        """Parse manifest bytes.

        Raises:
            InputError: the bytes are not a manifest, or a field is impossible.
        """
        if len(raw) > MANIFEST_LIMIT:
            raise InputError(f"manifest of {len(raw)} bytes is over the limit of {MANIFEST_LIMIT}")
        value = parse_json(raw, "manifest")
        if value.get("schemaVersion") != 2:  # noqa: PLR2004 - OCI's only version
            raise InputError(f"manifest has schemaVersion {value.get('schemaVersion')!r}, not 2")
        annotations = value.get("annotations") or {}
        if not isinstance(annotations, dict) or not all(isinstance(v, str) for v in annotations.values()):
            raise InputError("manifest has annotations that are not strings")
        config = value.get("config")
        return cls(
            raw=raw,
            media_type=str(value.get("mediaType") or (IMAGE_INDEX if "manifests" in value else IMAGE_MANIFEST)),
            artifact_type=str(value.get("artifactType") or ""),
            config=None if config is None else Descriptor.from_json(config, "config"),
            layers=_descriptors(value, "layers"),
            manifests=_descriptors(value, "manifests"),
            annotations=MappingProxyType(annotations),
        )

    @classmethod
    def build(
        cls,
        *,
        artifact_type: str,
        config: Descriptor,
        layers: list[Descriptor],
        annotations: Mapping[str, str],
    ) -> Manifest:
        """Build a manifest.

        Raises:
            InputError: it is larger than registries accept.
        """
        value: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": IMAGE_MANIFEST,
            "config": config.to_json(),
            "layers": [layer.to_json() for layer in layers],
        }
        if artifact_type:
            value["artifactType"] = artifact_type
        if annotations:
            value["annotations"] = dict(annotations)
        return cls.parse(canonical_json(value))

    @property
    def digest(self) -> Digest:
        """The digest that names this manifest."""
        return digest_of(self.raw)

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor that points at this manifest."""
        return Descriptor(self.media_type, self.digest, len(self.raw))

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Every blob the manifest needs, once each, in order."""
        every = (*([self.config] if self.config else []), *self.layers)
        return tuple({blob.digest: blob for blob in every}.values())


def _descriptors(value: dict[str, Any], key: str) -> tuple[Descriptor, ...]:
    items = value.get(key) or []
    if not isinstance(items, list):
        raise InputError(f"manifest's {key} is not a list")
    return tuple(Descriptor.from_json(item, f"{key}[{i}]") for i, item in enumerate(items))


def _check_names(annotations: Mapping[str, str], what: str) -> None:
    """Refuse names that become paths wherever the blob is written; cloudedge writes files by no other annotation."""
    if FILE_PATH in annotations:
        safe_path(annotations[FILE_PATH], f"{what}: {FILE_PATH}")
    table = annotations.get(TABLE_NAME, "_")
    if not _TABLE_NAME.fullmatch(table):
        raise InputError(
            f"{what}: {TABLE_NAME} must name a table with up to 128 letters, digits and . _ -, not {table[:255]!r}"
        )


def verified(chunks: Iterator[bytes], blob: Descriptor, where: str) -> Iterator[bytes]:
    """Pass a blob's bytes through, and raise at the end unless they match `blob`.

    Raises:
        IntegrityError: too long, too short, or another digest.
    """
    seen, sha256 = 0, hashlib.sha256()
    for chunk in chunks:
        seen += len(chunk)
        if seen > blob.size:
            raise _damaged_blob(blob, where, f"more than the declared {blob.size} bytes")
        sha256.update(chunk)
        yield chunk
    if seen != blob.size:
        raise _damaged_blob(blob, where, f"{seen} bytes instead of {blob.size}")
    if sha256.hexdigest() != blob.digest.removeprefix("sha256:"):
        raise _damaged_blob(blob, where, f"digest sha256:{sha256.hexdigest()}")


def _damaged_blob(blob: Descriptor, where: str, found: str) -> IntegrityError:
    return IntegrityError(
        f"{where}: blob {blob.digest} is damaged: {found}",
        hint="Push the bundle again from a hub where it verifies, or restore the file.",
        digest=blob.digest,
        where=where,
    )
