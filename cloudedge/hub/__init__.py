"""Hubs: bundles kept in a directory, an object store or a registry, with tags, history and garbage collection.

This package knows OCI manifests and blobs; it does not know what a bundle contains.
"""

from cloudedge._lazy import renamed_names
from cloudedge.hub._copy import CopyPlan, copy, plan_copy, signature_tag
from cloudedge.hub._gc import GcPlan, Kept, collect, plan_gc, release_tag
from cloudedge.hub._open import open_hub, open_store, prepare_bucket
from cloudedge.hub.core import (
    ANY,
    CHUNK,
    IMAGE_MANIFEST,
    Descriptor,
    Digest,
    Hashed,
    Hub,
    Manifest,
    ObjectInfo,
    ObjectStore,
    Progress,
    Reader,
    Ref,
    Stored,
    TagEntry,
    canonical_json,
    check_name,
    check_tag,
    current,
    digest_of,
    hash_file,
    hash_files,
    is_version,
    newest,
    next_version,
    parse_digest,
    parse_json,
    resolve,
    verified,
    version_key,
)
from cloudedge.hub.layout import LocalHub
from cloudedge.hub.objects import Adoption

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
    "verified",
    "version_key",
]

__getattr__ = renamed_names(__name__, {"storage_errors": "cloudedge.io.storage_errors", "who": "cloudedge.io.who"})
