"""The contents of a bundle: dense files, the parts that describe it, and the outline that lists them."""

from __future__ import annotations

from cloudedge.bundle.contents._archive import extract_tar
from cloudedge.bundle.contents._files import OWN_FOLDER, check_member_path, list_files, published
from cloudedge.bundle.contents._outline import Outline
from cloudedge.bundle.contents._parts import (
    Lineage,
    Lookup,
    Needs,
    ParentRef,
    Part,
    ProbeRequest,
    Probes,
    Signature,
    Variable,
    installed_framework_version,
    parse_part,
    read_part,
    write_part,
)
from cloudedge.bundle.contents._probe_answers import compare_answer, largest_difference
from cloudedge.bundle.contents._programs import find_program, join_files, parameters_of

__all__ = [
    "OWN_FOLDER",
    "Lineage",
    "Lookup",
    "Needs",
    "Outline",
    "ParentRef",
    "Part",
    "ProbeRequest",
    "Probes",
    "Signature",
    "Variable",
    "check_member_path",
    "compare_answer",
    "extract_tar",
    "find_program",
    "installed_framework_version",
    "join_files",
    "largest_difference",
    "list_files",
    "parameters_of",
    "parse_part",
    "published",
    "read_part",
    "write_part",
]
