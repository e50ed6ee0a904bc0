"""The list of cloudedge's images on an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudedge.images._catalogue import LABEL
from cloudedge.images._engine_errors import engine_errors

__all__ = ["Listed", "listed"]


@dataclass(frozen=True)
class Listed:
    """One name of one image."""

    kind: str
    image: str
    id: str
    size: int
    created: str
    pinned: str
    """The image by digest, as the registry it was pushed to or pulled from knows it; empty without one of that name."""


def listed(client: Any) -> list[Listed]:
    """List images by kind and name; images without a name are left out."""
    with engine_errors("list images"):
        found = [image.attrs for image in client.images.list(filters={"label": LABEL})]
    return sorted((row for attrs in found for row in _rows(attrs)), key=lambda row: (row.kind, row.image))


def _rows(attrs: dict[str, Any]) -> list[Listed]:
    digests = {digest.partition("@")[0]: digest for digest in attrs.get("RepoDigests") or []}
    kind = ((attrs.get("Config") or {}).get("Labels") or {}).get(LABEL, "")
    return [
        Listed(kind, name, attrs["Id"], attrs["Size"], attrs["Created"], digests.get(name.rpartition(":")[0], ""))
        for name in attrs.get("RepoTags") or []
    ]
