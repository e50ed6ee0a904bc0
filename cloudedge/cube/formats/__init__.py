"""The files of cube as Paddle Serving writes them, and the artifacts that travel between machines."""

from __future__ import annotations

from cloudedge._lazy import renamed_names
from cloudedge.cube.formats._artifact import (
    DELTA_FILE,
    NOTE,
    Artifact,
    ArtifactFile,
    Form,
    Kind,
    Source,
    is_version_name,
)
from cloudedge.cube.formats._build_layout import META_DIRECTORY, BuildName, PartLists, part_name, version_hint
from cloudedge.cube.formats._checksum_file import read_checksum_file, write_checksum_file
from cloudedge.cube.formats._cube_conf import CubeConf, CubeTable, Endpoint, NodeList, read_text_file
from cloudedge.cube.formats._donefile import DoneEntry, append_donefile, parse_donefile, read_donefile
from cloudedge.cube.formats._gflags import ServerFlags
from cloudedge.cube.formats._lodtensor import Parameter, looks_like_parameter
from cloudedge.cube.formats._quantise import dequantise, quantise
from cloudedge.cube.formats._table_file import TableFile
from cloudedge.cube.formats._tar import md5_line, pack, packed_files, verify_md5
from cloudedge.cube.formats._text import read_text
from cloudedge.cube.formats._transfer_conf import CubeAddress, TransferConf
from cloudedge.cube.formats._workspace import Workspace

__all__ = [
    "DELTA_FILE",
    "META_DIRECTORY",
    "NOTE",
    "Artifact",
    "ArtifactFile",
    "BuildName",
    "CubeAddress",
    "CubeConf",
    "CubeTable",
    "DoneEntry",
    "Endpoint",
    "Form",
    "Kind",
    "NodeList",
    "Parameter",
    "PartLists",
    "ServerFlags",
    "Source",
    "TableFile",
    "TransferConf",
    "Workspace",
    "append_donefile",
    "dequantise",
    "is_version_name",
    "looks_like_parameter",
    "md5_line",
    "pack",
    "packed_files",
    "parse_donefile",
    "part_name",
    "quantise",
    "read_checksum_file",
    "read_donefile",
    "read_text",
    "read_text_file",
    "verify_md5",
    "version_hint",
    "write_checksum_file",
]

__getattr__ = renamed_names(__name__, {"CubeDict": "cloudedge.cube.formats.CubeTable"})
