"""Servers that hang: callers do not notice, the supervisor restarts them, and a release goes on."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from cloudedge.release.core import ReleaseUndone
from tests.release.local.world import wait

pytestmark = pytest.mark.parts


def test_a_serving_replica_that_hangs_is_restarted_and_no_request_fails(world):
    before = world.pids()["dense-0"]
    with world.load() as load:
        os.kill(before, signal.SIGSTOP)
        wait(lambda: world.pids().get("dense-0") not in {None, before}, "its restart", 300)
        wait(world.all_there, "every process to answer", 300)
        load.until(50)
    assert load.broken == ([], [])
    (status,) = (place for place in world.target.status().places if place.name == "dense/0")
    assert "hung: no answer for" in status.restarts
    assert world.states()["dense-0"]["hangs"] >= 1


def test_a_shard_that_hangs_during_a_release_ends_it_one_way_or_the_other(world):
    """The release waits for the restart, or is taken back; no request notices, and the next release is made."""
    made = world.fresh()
    pids = world.pids()
    shard = next(name for name in sorted(pids) if name.startswith("sparse-"))
    with world.load() as load:
        plan = world.target.plan(made.bundle)
        os.kill(pids[shard], signal.SIGSTOP)
        with suppress(ReleaseUndone):
            assert world.target.apply(plan).wait().state == "done"
        wait(world.all_there, "every process to answer", 300)
        world.heal()
        if world.live.pin != made.pin:
            assert world.release(made).state == "done"
        load.until(20, made.pin)
    assert load.broken == ([], [])
    assert world.states()[shard]["hangs"] >= 1
