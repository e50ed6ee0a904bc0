"""A replica that comes back: the pauses between attempts to load what it had."""

from __future__ import annotations

import pytest

from cloudedge.serving.server._assemble import pause_before_restore

pytestmark = pytest.mark.rules


def test_lost_versions_are_tried_again_soon_and_then_less_often():
    """When everything is restarted at once, a replica is there before its shards are, by a second or so."""
    pauses = [pause_before_restore(tries) for tries in range(8)]
    assert sum(pauses[:3]) < 2
    assert pauses == sorted(pauses)
    assert pauses[-1] == pause_before_restore(10_000) == 5.0
