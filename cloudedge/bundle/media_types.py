"""The media types and annotations a bundle's manifest uses: ModelPack's where they fit, ours for the rest."""

from __future__ import annotations

from pathlib import PurePosixPath

from cloudedge.hub import FILE_PATH, TABLE_NAME

__all__ = [
    "ARTIFACT",
    "CONFIG",
    "FILE_PATH",
    "LINEAGE",
    "NEEDS",
    "PROBES",
    "SIGNATURE",
    "TABLE_BASE",
    "TABLE_CHECKSUM",
    "TABLE_DELTA",
    "TABLE_NAME",
    "TABLE_ROWS",
    "TITLE",
    "VERSION",
    "of_file",
]

ARTIFACT = "application/vnd.cncf.model.manifest.v1+json"
CONFIG = "application/vnd.cncf.model.config.v1+json"

_WEIGHT = "application/vnd.cncf.model.weight.v1.raw"
_WEIGHT_CONFIG = "application/vnd.cncf.model.weight.config.v1.raw"
_CODE = "application/vnd.cncf.model.code.v1.raw"
_DOC = "application/vnd.cncf.model.doc.v1.raw"

TABLE_BASE = "application/vnd.cloudedge.table.v1+safetensors"
TABLE_DELTA = "application/vnd.cloudedge.table.delta.v1+safetensors"
SIGNATURE = "application/vnd.cloudedge.signature.v1+json"
PROBES = "application/vnd.cloudedge.probes.v1+json"
LINEAGE = "application/vnd.cloudedge.lineage.v1+json"
NEEDS = "application/vnd.cloudedge.needs.v1+json"

TITLE = "org.opencontainers.image.title"
VERSION = "org.opencontainers.image.version"
TABLE_ROWS = "io.cloudedge.table.rows"
TABLE_CHECKSUM = "io.cloudedge.table.checksum"

_BY_SUFFIX = {
    ".json": _WEIGHT_CONFIG,
    ".pdmodel": _WEIGHT_CONFIG,
    ".prototxt": _WEIGHT_CONFIG,
    ".yaml": _WEIGHT_CONFIG,
    ".yml": _WEIGHT_CONFIG,
    ".txt": _WEIGHT_CONFIG,
    ".py": _CODE,
    ".sh": _CODE,
    ".md": _DOC,
}


def of_file(path: str) -> str:
    """Return the media type of a dense file by its name; an unknown suffix counts as a weight."""
    return _BY_SUFFIX.get(PurePosixPath(path).suffix.lower(), _WEIGHT)
