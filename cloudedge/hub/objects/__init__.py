"""Object stores: a directory, S3 and BOS, with locks and resumable uploads.

S3 and BOS are imported when they are first used: their SDKs are extras, and slow to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge._lazy import lazy_names
from cloudedge.hub.objects._directory import Adoption, DirectoryStore

if TYPE_CHECKING:
    from cloudedge.hub.objects._bos import BosSettings, BosStore, open_bos
    from cloudedge.hub.objects._s3 import S3Settings, S3Store, open_s3

__all__ = [
    "Adoption",
    "BosSettings",
    "BosStore",
    "DirectoryStore",
    "S3Settings",
    "S3Store",
    "open_bos",
    "open_s3",
]

__getattr__, __dir__ = lazy_names(
    __name__, {"_bos": ("BosSettings", "BosStore", "open_bos"), "_s3": ("S3Settings", "S3Store", "open_s3")}
)
