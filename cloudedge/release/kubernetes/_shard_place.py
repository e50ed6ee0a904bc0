"""A shard replica in a pod: a `ShardPlace` whose layout's ConfigMap names the version that makes a pod ready.

The admin API moves the pointer, as everywhere. The ConfigMap is for a pod that did not run at that moment and comes
back from its volume with the version before: it is not ready until a `resume`.
"""

from __future__ import annotations

import json
from contextlib import suppress

from cloudedge.errors import NotFound
from cloudedge.release.core import Shares
from cloudedge.release.kubernetes._cluster_state import ServerPod, Site
from cloudedge.release.kubernetes._names import named, wanted_file
from cloudedge.release.places import Dispatch, ShardPlace

__all__ = ["PodShardPlace"]


class PodShardPlace(ShardPlace):
    """One cube server in a pod."""

    def __init__(self, server: ServerPod, dispatch: Dispatch, site: Site) -> None:
        super().__init__(server, dispatch)
        self._site = site
        self._file = wanted_file(server.table, server.shards)

    def activate(self, shares: Shares, *, order: int) -> None:
        """See `Place`."""
        if shares:
            self._want(max(shares, key=lambda pin: shares[pin]), order)
        super().activate(shares, order=order)

    def _want(self, pin: str, order: int) -> None:
        def rewritten(text: str) -> str:
            now = json.loads(text) if text else {}
            # Replicas are activated in parallel, each under an order of its own: a later one stays.
            is_written = now.get("pin") == pin or now.get("order", 0) > order
            return text if is_written else json.dumps({"order": order, "pin": pin})

        with suppress(NotFound):  # it was deleted: then any version makes a pod ready, until the next `up`
            self._site.rewrite(named("cube", self._site.name, dotted="state"), self._file, rewritten)
