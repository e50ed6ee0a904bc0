"""The errors of releases, as part of cloudedge's one tree.

CloudEdgeError
  InputError
    Refused         the plan cannot work: nothing was touched
  ReleaseUndone     a step failed, a canary broke a limit or an operator aborted: all is as it was
  Interrupted
    Unfinished      part is done: `resume` goes on, `abort` goes back                       [retry]
"""

from __future__ import annotations

from cloudedge.errors import CloudEdgeError, InputError, Interrupted

__all__ = ["Refused", "ReleaseUndone", "Unfinished"]


class Refused(InputError):
    """A plan cannot work; nothing was touched. Facts: ``rules``."""


class ReleaseUndone(CloudEdgeError):
    """A release was taken back and the target is as it was. Facts: ``number``, ``why``, ``done``, ``undone``."""


class Unfinished(Interrupted):
    """A release stopped half way. Facts: ``number``, ``failed`` (why, by step)."""
