"""What goes wrong with a job that was submitted."""

from __future__ import annotations

from cloudedge.errors import CloudEdgeError

__all__ = ["TrainingFailed"]


class TrainingFailed(CloudEdgeError):
    """The job ended without success; `status` says how, `log` what it wrote last."""
