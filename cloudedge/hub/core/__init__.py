"""Core types of a hub: digests, manifests, tags, references, and the protocols that backends implement."""

from __future__ import annotations

from cloudedge.hub.core._hashing import Hashed, hash_file, hash_files
from cloudedge.hub.core._oci import (
    IMAGE_INDEX,
    IMAGE_MANIFEST,
    MANIFEST_LIMIT,
    Descriptor,
    Digest,
    Manifest,
    Reader,
    canonical_json,
    digest_of,
    parse_digest,
    parse_json,
    verified,
)
from cloudedge.hub.core._protocol import (
    ANY,
    CHUNK,
    AnyVersion,
    Hub,
    Lock,
    ObjectInfo,
    ObjectStore,
    Progress,
    Stored,
    SureLock,
)
from cloudedge.hub.core._refs import Ref, newest, next_version, resolve, version_key
from cloudedge.hub.core._tags import Expectation, TagEntry, check_name, check_tag, current, is_version, moved

__all__ = [
    "ANY",
    "CHUNK",
    "IMAGE_INDEX",
    "IMAGE_MANIFEST",
    "MANIFEST_LIMIT",
    "AnyVersion",
    "Descriptor",
    "Digest",
    "Expectation",
    "Hashed",
    "Hub",
    "Lock",
    "Manifest",
    "ObjectInfo",
    "ObjectStore",
    "Progress",
    "Reader",
    "Ref",
    "Stored",
    "SureLock",
    "TagEntry",
    "canonical_json",
    "check_name",
    "check_tag",
    "current",
    "digest_of",
    "hash_file",
    "hash_files",
    "is_version",
    "moved",
    "newest",
    "next_version",
    "parse_digest",
    "parse_json",
    "resolve",
    "verified",
    "version_key",
]
