"""Pack a folder into a bundle, open it, compare two bundles, and unpack one again."""

from __future__ import annotations

from cloudedge.bundle.packing._bundle import Bundle, Member
from cloudedge.bundle.packing._diff import BundleDiff, TableDiff, diff
from cloudedge.bundle.packing._pack import Packed, PackPlan, pack, plan_pack
from cloudedge.bundle.packing._unpack import export_zip, unpack

__all__ = [
    "Bundle",
    "BundleDiff",
    "Member",
    "PackPlan",
    "Packed",
    "TableDiff",
    "diff",
    "export_zip",
    "pack",
    "plan_pack",
    "unpack",
]
