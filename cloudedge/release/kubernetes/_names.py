"""The names and labels of a target's objects. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cloudedge.config import TargetConfig
from cloudedge.release.places import shard_place

__all__ = [
    "ADMIN",
    "CUBE_ADMIN",
    "CUBE_PORT",
    "SERVING_ADMIN",
    "SERVING_PORT",
    "STATE_FILE",
    "Part",
    "labels",
    "named",
    "parts_of",
    "selector",
    "wanted_file",
]

CUBE_PORT, CUBE_ADMIN = 8027, 8028
SERVING_PORT, SERVING_ADMIN = 9393, 9394
STATE_FILE = "state.json"
"""The key of the document that serving pods follow."""
ADMIN = "token"
"""The key of the admin token."""

_LONGEST = 50
"""A StatefulSet's pods carry its name and a hash in a label of 63 characters."""


@dataclass(frozen=True)
class Part:
    """One shard of a table in one layout: a StatefulSet."""

    table: str
    shard: int
    shards: int
    replicas: int

    def name(self, target: str) -> str:
        """Return the name of its StatefulSet."""
        return named("cube", target, f"{self.table}-{self.shard}of{self.shards}")

    def pod(self, target: str, replica: int) -> str:
        """Return the name of a replica's pod and of the Service that leads to it."""
        return f"{self.name(target)}-{replica}"

    def place(self, replica: int) -> str:
        """Return the name of a replica's place."""
        return shard_place(self.table, self.shard, self.shards, replica)

    @property
    def labels(self) -> dict[str, str]:
        """The labels that distinguish it from the target's other parts."""
        return {
            "cloudedge.io/table": self.table,
            "cloudedge.io/shard": str(self.shard),
            "cloudedge.io/shards": str(self.shards),
        }

    @classmethod
    def read(cls, found: Mapping[str, str], replicas: int) -> Part:
        """Read a part from the labels of its StatefulSet."""
        shard, shards = (int(found[f"cloudedge.io/{name}"]) for name in ("shard", "shards"))
        return cls(found["cloudedge.io/table"], shard, shards, replicas)


def parts_of(config: TargetConfig) -> Iterator[Part]:
    """List the parts that cloudedge.yaml defines."""
    leg = config.sparse
    if leg is not None:
        for table in leg.tables:
            yield from (Part(table, shard, leg.shards, leg.replicas) for shard in range(leg.shards))


def wanted_file(table: str, shards: int) -> str:
    """Return the key under which the shards of a layout find the pin that shall be active."""
    return f"{table}-of{shards}.json"


def named(component: str, target: str, rest: str = "", *, dotted: str = "") -> str:
    """Return an object's name, which begins with a letter and fits wherever Kubernetes repeats it.

    Args:
        component: The component that it belongs to.
        target: The target that it belongs to.
        rest: What distinguishes it from others of the component.
        dotted: The same, for kinds whose names may have a dot, which no target's name has.
    """
    whole = "-".join(each for each in (component, target, rest) if each)
    if len(whole) > _LONGEST:
        whole = f"{whole[: _LONGEST - 9].rstrip('-')}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    return f"{whole}.{dotted}" if dotted else whole


def labels(component: str, target: str) -> dict[str, str]:
    """Return the labels of a target's objects."""
    return {
        "app.kubernetes.io/name": component,
        "app.kubernetes.io/instance": target,
        "app.kubernetes.io/managed-by": "cloudedge",
    }


def selector(found: Mapping[str, str]) -> str:
    """Return labels as a selector."""
    return ",".join(f"{key}={value}" for key, value in found.items())
