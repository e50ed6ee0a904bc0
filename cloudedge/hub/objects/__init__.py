"""Object stores: a directory, S3 and BOS, with locks and uploads that continue after a crash.

The stores of other machines are imported when they are first used: their SDKs are extras, and slow to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge._lazy import lazy_names
from cloudedge.hub.objects._directory import Adoption, DirectoryStore

if TYPE_CHECKING:
    from cloudedge.hub.objects._bos import BosSettings, BosStore
    from cloudedge.hub.objects._s3 import S3Settings, S3Store

__all__ = ["Adoption", "BosSettings", "BosStore", "DirectoryStore", "S3Settings", "S3Store"]

__getattr__, __dir__ = lazy_names(__name__, {"_bos": ("BosSettings", "BosStore"), "_s3": ("S3Settings", "S3Store")})
