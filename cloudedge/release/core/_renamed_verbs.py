"""The verbs that places had before: a place written for them keeps working, and warns with the new ones."""

from __future__ import annotations

import warnings

from cloudedge.release.core._places import Place

__all__ = ["adopt_old_verbs"]

_VERBS = {"prepare": "load", "check": "verify", "switch": "activate", "forget": "unload"}


def adopt_old_verbs(place: Place) -> None:
    """Give a place that has methods of the old names the same methods under the names of `Place`."""
    old = [verb for verb in _VERBS if hasattr(place, verb)]
    if not old:
        return
    names = ", ".join(f"{verb} is now {_VERBS[verb]}" for verb in old)
    warnings.warn(f"{type(place).__name__}: places have new verbs: {names}", DeprecationWarning, stacklevel=4)
    for verb in old:
        setattr(place, _VERBS[verb], getattr(place, verb))
