"""Errors of cube clients, as part of cloudedge's one tree of errors.

CloudEdgeError
  NotFound
    UnknownVersion      the pinned version is not loaded on any replica of a shard
  Unavailable
    ShardUnavailable    no replica of a shard answered                                     [retry]
    VersionSkew         the answers come from different versions, or not from the pinned one [retry]
"""

from __future__ import annotations

from cloudedge.errors import NotFound, Unavailable

__all__ = ["ShardUnavailable", "UnknownVersion", "VersionSkew"]


class UnknownVersion(NotFound):
    """A shard does not have the version that was asked for. Facts: ``shard``, ``version``, ``attempts``."""


class ShardUnavailable(Unavailable):
    """No replica of a shard answered. Facts: ``shard``, ``attempts`` (replica and reason, in order)."""


class VersionSkew(Unavailable):
    """Shards answered from different versions. Facts: ``versions`` (by shard), ``pin``."""
