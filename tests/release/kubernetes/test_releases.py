"""Releases to pods of a real cluster, under load through a Service: nobody notices, whatever dies."""

from __future__ import annotations

import json
import threading

import pytest

from cloudedge.errors import CloudEdgeError
from cloudedge.kube import Kind
from cloudedge.release import ReleaseUndone
from cloudedge.release.kubernetes import down, manifests, up
from tests.release.local.world import wait

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def test_release_canary_bad_release_and_rollback_under_load(world):
    first, second, third = world.good[:3]
    with world.load() as load:
        shipped = world.release(second)
        load.until(20, second.pin)
        assert 0 < shipped.bytes < 200_000  # rows that changed, not tables
        back = world.target.rollback()
        load.until(20, first.pin)
        assert (back.state, back.bytes) == ("done", 0)

        world.release(third, canary=0.2, bake_s=5.0)
        load.until(20, third.pin)
        with pytest.raises(ReleaseUndone, match="probes"):
            world.release(world.spoiled)
        with pytest.raises(ReleaseUndone, match="score"):
            world.release(world.drifting, canary=0.3, bake_s=20.0)
        load.until(20, third.pin)
    assert load.broken == ([], [])
    assert world.target.status().is_whole
    pins = {pin for *_, pin in load.answered}
    assert {first.pin, second.pin, third.pin} <= pins
    assert world.spoiled.pin not in pins


@pytest.mark.parametrize("step", ["sparse.prepare", "dense.prepare", "dense.switch"])
def test_pods_deleted_mid_release(world, step):
    """A serving pod and a cube pod go while versions change: their successors have what is live, and nobody notices."""
    before = {place.name for place in world.target.status().places}
    made = next(each for each in world.good if each.pin != world.target.status().live.pin)
    victims = {"serving": world.ready("serving")[0], "cube": world.ready("cube")[0]}
    with world.load() as load:
        has_begun = world.begun(step)
        release = threading.Thread(target=_release, args=(world, made), daemon=True)
        release.start()
        wait(has_begun, f"{step} to begin", 120)
        for pod in victims.values():
            world.cluster.delete(Kind.POD, pod)
        release.join(600)
        assert not release.is_alive()
        world.wait_ready("serving", 2)
        world.heal()
        world.wait_ready("cube", 4)
        load.until(50)
    assert load.broken == ([], [])
    status = world.target.status()
    assert status.is_whole
    assert status.live.pin == made.pin or step != "dense.switch"  # the commit point was passed
    assert {place.name for place in status.places} == before
    assert victims["serving"] not in world.ready("serving")


def _release(world, made):
    try:
        world.release(made)
    except CloudEdgeError:
        return  # a pod was away at the wrong moment: resume goes on


@pytest.mark.parametrize("step", ["sparse.prepare", "dense.switch"])
def test_cloudedge_itself_is_killed(world, step):
    """From the command line: SIGKILL in the middle, one `resume`, and the target is whole."""
    made = next(each for each in world.good if each.pin != world.target.status().live.pin)
    with world.load() as load:
        has_begun = world.begun(step)
        with world.command("release", made.ref, "--to", world.target.name, "--yes") as release:
            wait(lambda: has_begun() or release.poll() is not None, f"{step} to begin", 120)
            release.kill()
        with world.command("resume", world.target.name) as resume:
            assert resume.wait(300) == 0, resume.stderr.read()
        load.until(20, made.pin)
    assert load.broken == ([], [])
    with world.command("status", world.target.name, "--json") as status:
        found = json.loads(status.communicate(timeout=60)[0])
    assert (found["live"]["pin"], found["is_whole"]) == (made.pin, True)


def test_a_shard_that_lost_its_disk_is_empty_until_it_is_repaired(world):
    pod = world.ready("cube")[-1]
    with world.load() as load:
        world.cluster.delete(Kind.POD, pod, wait_s=300)
        wait(lambda: pod in {each["metadata"]["name"] for each in world.pods("cube")}, f"{pod} to come back")
        load.until(50)
        assert pod not in world.ready("cube")
        world.heal()
        world.wait_ready("cube", 4)
    assert load.broken == ([], [])


def test_by_address_where_that_works(world):
    """As from inside the cluster: this machine is a node, so it reaches pods and Services itself."""
    made = next(each for each in world.good if each.pin != world.target.status().live.pin)
    world.write(access="direct")
    world.open()
    try:
        with world.load() as load:
            world.release(made)
            load.until(20, made.pin)
        assert load.broken == ([], [])
        assert world.target.status().is_whole
    finally:
        world.write()
        world.open()


def test_down_and_up_again(world):
    """What serving shall have outlives its pods; shards without volumes are repaired."""
    world.release(next(each for each in world.good if each.pin != world.target.status().live.pin))  # one to go back to
    live = world.target.status().live
    gone = down(world.target.name, config=world.config, dry_run=True)
    assert sorted(each.split("/")[0] for each in gone) == [
        "Deployment", "PodDisruptionBudget", "PodDisruptionBudget", "PodDisruptionBudget", "StatefulSet", "StatefulSet",
    ]  # fmt: skip
    down(world.target.name, config=world.config)
    assert world.pods("serving") == world.pods("cube") == []
    up(world.target.name, config=world.config, within_s=300)
    world.heal()
    world.wait_ready("serving", 2)
    assert world.target.status().live == live
    with world.load() as load:
        load.until(50, live.pin)
    assert load.broken == ([], [])


def test_what_would_be_applied_shows_no_token(world):
    shown = manifests(world.target.name, config=world.config)
    assert [each["data"] for each in shown if each["kind"] == "Secret"] == [{}]


def test_cut_anew_under_load(world):
    """From two shards to one: a new StatefulSet beside the old ones, which go when nothing uses them any more."""
    live = world.target.status().live.pin
    others = [made for made in world.good if made.pin != live]
    with world.load() as load:
        world.write(shards=1)
        up(world.target.name, config=world.config, within_s=300)
        world.open()
        assert world.target.status().is_whole
        world.release(others[0])
        load.until(20, others[0].pin)
        assert world.target.rollback().bytes == 0
        load.until(20, live)
        for made in others[:2]:
            world.release(made)
            load.until(20, made.pin)
        cuts = {place.name.split("/")[2] for place in world.target.status().places if place.leg == "sparse"}
        assert cuts == {"0of1"}
        sets = world.cluster.list(Kind.STATEFUL_SET)
        assert [each["metadata"]["name"] for each in sets] == ["cube-ads-embedding-0of1"]
    assert load.broken == ([], [])
    assert world.target.status().is_whole
