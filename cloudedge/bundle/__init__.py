"""Bundles: one trained model, immutable, named by digest. Packing, reading, comparing, signing, unpacking."""

from cloudedge.bundle._archive import extract_tar
from cloudedge.bundle._arrays import SafetensorsFile
from cloudedge.bundle._bundle import Bundle, Member
from cloudedge.bundle._diff import BundleDiff, TableDiff, diff
from cloudedge.bundle._files import check_member_path, published
from cloudedge.bundle._keys import needs_passphrase, new_key_pair
from cloudedge.bundle._outline import Outline
from cloudedge.bundle._pack import Packed, PackPlan, pack, plan_pack
from cloudedge.bundle._parts import (
    Lineage,
    Lookup,
    Needs,
    ParentRef,
    ProbeRequest,
    Probes,
    Signature,
    Variable,
    parse_part,
    read_part,
)
from cloudedge.bundle._programs import find_program, join_files
from cloudedge.bundle._rows import Checksum, RowType
from cloudedge.bundle._sign import check_signature, check_words, sign_bundle, sign_words
from cloudedge.bundle._split import SplitModel, SplitReport, SplitTable, plan_split, split
from cloudedge.bundle._table import Table
from cloudedge.bundle._unpack import export_zip, unpack

__all__ = [
    "Bundle",
    "BundleDiff",
    "Checksum",
    "Lineage",
    "Lookup",
    "Member",
    "Needs",
    "Outline",
    "PackPlan",
    "Packed",
    "ParentRef",
    "ProbeRequest",
    "Probes",
    "RowType",
    "SafetensorsFile",
    "Signature",
    "SplitModel",
    "SplitReport",
    "SplitTable",
    "Table",
    "TableDiff",
    "Variable",
    "check_member_path",
    "check_signature",
    "check_words",
    "diff",
    "export_zip",
    "extract_tar",
    "find_program",
    "join_files",
    "needs_passphrase",
    "new_key_pair",
    "pack",
    "parse_part",
    "plan_pack",
    "plan_split",
    "published",
    "read_part",
    "sign_bundle",
    "sign_words",
    "split",
    "unpack",
]
