"""From two shards to three and back, on real processes: both layouts answer until nobody needs the old one."""

from __future__ import annotations

import os
import signal

import pytest

from cloudedge.cube import CubeConf
from cloudedge.errors import InputError
from tests.release.local.world import wait

pytestmark = pytest.mark.parts

SHARDS = {2: {"0of2", "1of2"}, 3: {"0of3", "1of3", "2of3"}}


def shards_of(world, **wanted):
    """Return the shards there are, of places in a state if one is named."""
    places = [place for place in world.target.status().places if place.leg == "sparse"]
    return {place.name.split("/")[2] for place in places if all(getattr(place, k) == v for k, v in wanted.items())}


def unpinned(world):
    """Return into how many shards readers without a pin are sent."""
    return CubeConf.from_file(world.folder / "cube.conf")["embedding"].shards


@pytest.mark.timeout(300)
def test_cut_anew_under_load(world):
    loaded = {pin for place in world.target.status().places for pin in place.versions}
    others = sorted((made for made in world.good if made.pin != world.live.pin), key=lambda made: made.pin in loaded)
    first, (second, third, fourth, fifth) = world.live, others  # what is loaded would go where it is
    with world.load() as load:
        world.cut_anew(3)
        assert world.target.status().is_whole  # nothing changes until something is released
        assert (shards_of(world, state="current"), shards_of(world, state="spare")) == (SHARDS[2], SHARDS[3])
        assert unpinned(world) == 2
        again = world.target.plan(first.bundle)  # perhaps a release before left something to be tidied up
        assert not {step.action for step in again.steps} & {"load", "activate"}
        if again.is_empty:
            with pytest.raises(InputError, match="already, everywhere") as same:
                world.release(first)
            assert "stays in 2 shards; what is released next goes to 3" in same.value.hint
        assert "from 2 to 3 shards" in world.target.plan(second.bundle).summary()

        world.release(second)
        load.until(20, second.pin)
        assert world.target.status().is_whole
        assert (shards_of(world, state="current"), shards_of(world, state="spare")) == (SHARDS[3], SHARDS[2])
        assert unpinned(world) == 3

        back = world.target.rollback()
        load.until(20, first.pin)
        assert (back.state, back.bytes, unpinned(world)) == ("done", 0, 2)
        assert world.target.status().is_whole

        world.release(third)  # again to three
        pid = world.pids()["dense-0"]
        os.kill(pid, signal.SIGKILL)  # it comes back with two versions, each in its own layout
        wait(lambda: world.pids().get("dense-0") not in {None, pid}, "dense-0 to be started again")
        wait(world.all_there, "dense-0 to answer")
        assert world.target.rollback().bytes == 0
        load.until(40, first.pin)
        world.release(third)

        world.release(fourth)  # the last one that was in two shards is no longer kept
        assert shards_of(world) == SHARDS[3]
        assert not [process for process in world.pids() if "of2" in process]

        world.cut_anew(2)
        for made in (fifth, first):
            world.release(made)
            load.until(20, made.pin)
        assert shards_of(world) == SHARDS[2]
        assert not [process for process in world.pids() if "of3" in process]
    assert load.broken == ([], [])
    assert {pin for *_, pin in load.answered} >= {made.pin for made in (first, second, third, fifth)}
