"""Lists of objects, read page by page."""

from __future__ import annotations

from collections.abc import Mapping

from cloudedge.errors import NotFound
from cloudedge.kube.api._session import ATTEMPTS, Session
from cloudedge.kube.objects import Kind, Object, not_served

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
    """Return all objects, and the version of the list.

    Raises:
        NotFound: the cluster does not serve that kind; a namespace that does not exist gives an empty list.
        Unavailable: among others with status 410, when the list changed too much during the read.
    """
    found: list[Object] = []
    more = ""
    while True:
        asked = {**query, "limit": str(_PAGE)} | ({"continue": more} if more else {})
        try:
            path = kind.path(namespace)
            page = session.call("GET", path, what=what, query=asked, attempts=attempts, timeout_s=timeout_s)
        except NotFound as error:
            raise not_served(session.host, kind.kind, kind.api_version) from error
        # Items of a list carry neither apiVersion nor kind.
        found += [{"apiVersion": kind.api_version, "kind": kind.kind} | item for item in page.get("items") or []]
        metadata = page.get("metadata") or {}
        more = metadata.get("continue") or ""
        if not more:
            return found, str(metadata.get("resourceVersion") or "")
