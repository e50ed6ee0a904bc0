"""Errors of submitted jobs."""

from __future__ import annotations

from cloudedge.errors import CloudEdgeError

__all__ = ["TrainingFailed"]


class TrainingFailed(CloudEdgeError):
    """The job ended without success; `status` says how, `log` holds its last output."""
