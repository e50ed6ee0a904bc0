"""How rollouts fail, as part of cloudedge's one tree of errors.

CloudEdgeError
  RolloutUndone     too many nodes failed, or somebody aborted: every touched node is back
"""

from __future__ import annotations

from cloudedge.errors import CloudEdgeError

__all__ = ["RolloutUndone"]


class RolloutUndone(CloudEdgeError):
    """A rollout was given up and its nodes are back to what they had. Facts: ``number``, ``why``."""
