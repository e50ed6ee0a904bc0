"""Listing objects, page by page."""

from __future__ import annotations

from collections.abc import Mapping

from cloudedge.kube._kinds import Kind, Object
from cloudedge.kube._session import ATTEMPTS, Session

__all__ = ["listed"]

_PAGE = 500


def listed(
    session: Session,
    kind: Kind,
    namespace: str | None,
    query: Mapping[str, str],
    *,
    what: str,
    attempts: int = ATTEMPTS,
    timeout_s: float | None = None,
) -> tuple[list[Object], str]:
    """Return the objects, and the version of the list.

    Raises:
        Unavailable: among others with status 410, when the list changed too much while it was read.
    """
    found: list[Object] = []
    more = ""
    while True:
        asked = {**query, "limit": str(_PAGE)} | ({"continue": more} if more else {})
        page = session.call("GET", kind.path(namespace), what=what, query=asked, attempts=attempts, timeout_s=timeout_s)
        # Items of a list do not say what they are.
        found += [{"apiVersion": kind.api_version, "kind": kind.kind} | item for item in page.get("items") or []]
        metadata = page.get("metadata") or {}
        more = metadata.get("continue") or ""
        if not more:
            return found, str(metadata.get("resourceVersion") or "")
