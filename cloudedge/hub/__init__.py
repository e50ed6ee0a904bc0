"""Where bundles live: blobs by digest over a directory, an object store or a registry; tags; collection.

This package knows OCI manifests and nothing of what a bundle means.
"""

from cloudedge.hub._directory import Adoption, storage_errors
from cloudedge.hub._gc import GcPlan, Kept, collect, plan_gc, release_tag
from cloudedge.hub._hashing import Hashed, hash_file, hash_files
from cloudedge.hub._local import LocalHub
from cloudedge.hub._oci import (
    IMAGE_MANIFEST,
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
from cloudedge.hub._open import open_hub, open_store, prepare_bucket
from cloudedge.hub._protocol import ANY, CHUNK, Hub, ObjectInfo, ObjectStore, Progress, Stored
from cloudedge.hub._refs import Ref, newest, next_version, resolve, version_key
from cloudedge.hub._tags import TagEntry, check_name, check_tag, current, is_version
from cloudedge.hub._transfer import CopyPlan, copy, plan_copy, signature_tag
from cloudedge.hub._who import who

__all__ = [
    "ANY",
    "CHUNK",
    "IMAGE_MANIFEST",
    "Adoption",
    "CopyPlan",
    "Descriptor",
    "Digest",
    "GcPlan",
    "Hashed",
    "Hub",
    "Kept",
    "LocalHub",
    "Manifest",
    "ObjectInfo",
    "ObjectStore",
    "Progress",
    "Reader",
    "Ref",
    "Stored",
    "TagEntry",
    "canonical_json",
    "check_name",
    "check_tag",
    "collect",
    "copy",
    "current",
    "digest_of",
    "hash_file",
    "hash_files",
    "is_version",
    "newest",
    "next_version",
    "open_hub",
    "open_store",
    "parse_digest",
    "parse_json",
    "plan_copy",
    "plan_gc",
    "prepare_bucket",
    "release_tag",
    "resolve",
    "signature_tag",
    "storage_errors",
    "verified",
    "version_key",
    "who",
]
