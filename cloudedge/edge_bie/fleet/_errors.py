"""Errors of rollouts, part of cloudedge's one tree of errors.

CloudEdgeError
  RolloutUndone     too many nodes failed, or an operator aborted: every touched node is back
"""

from __future__ import annotations

from cloudedge.errors import CloudEdgeError

__all__ = ["RolloutUndone"]


class RolloutUndone(CloudEdgeError):
    """A rollout was given up and its nodes are back on their previous revisions. Facts: ``number``, ``why``."""
