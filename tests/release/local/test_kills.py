"""Power cuts: whoever releases, whoever serves and whoever supervises is killed, and nobody who asks notices.

CLOUDEDGE_TEST_EVERY=1 kills the release at every single write of its journal, and every server at every stage
(`make kills-release`).
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from cloudedge.release import Limits, ReleaseUndone, Unfinished
from cloudedge.release.local import is_up, up
from tests.faults import proves_fault
from tests.release.local.world import NAME, wait

pytestmark = pytest.mark.parts

DRIVER = str(Path(__file__).with_name("killed_process.py"))
MOMENTS = [(2, 0), (8, 15), (22, 150), (31, 0), (37, 3), (46, 0)]
"""After which write of the journal, and how many milliseconds later.

Begun, shipping, loading, committed, moving, tagged."""


def release_and_die(world, at, later_ms=0):
    """Release in a process that is killed; return whether it was, before it was done."""
    before, after = world.live, world.fresh()
    with world.load() as load:
        command = world.command(
            *("release", after.ref, "--to", NAME, "--yes"),
            program=(DRIVER,),
            DIE_AT=str(at),
            DIE_AFTER_MS=str(later_ms),
        )
        out, err = command.communicate(timeout=240)
        assert command.returncode in {0, -signal.SIGKILL}, out + err
        assert load.broken == ([], [])
        begun = world.journal.operations(limit=1)[0].plan["pin"] == after.pin
        world.target.resume()
        assert world.target.status().is_whole
        load.until(20, world.live.pin)
    assert load.broken == ([], [])
    assert world.live.pin == (after.pin if begun else before.pin)
    assert {pin for *_, pin in load.answered} <= {before.pin, after.pin}
    return command.returncode != 0


@proves_fault(
    area="release",
    fault="the machine that releases dies in the middle",
    happens="the live version goes on answering, and no answer mixes two versions",
    cure="`cloudedge resume TARGET`, or `cloudedge abort TARGET`",
)
@pytest.mark.parametrize(("at", "later_ms"), MOMENTS)
def test_a_killed_release_is_resumed(world, at, later_ms):
    assert release_and_die(world, at, later_ms)


@pytest.mark.skipif(os.environ.get("CLOUDEDGE_TEST_EVERY") != "1", reason="CLOUDEDGE_TEST_EVERY is not 1")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("later_ms", [0, 25])
def test_a_release_killed_at_every_write_is_resumed(world, later_ms):
    at = 1
    while release_and_die(world, at, later_ms):
        at += 1
    print(f"\nkilled {later_ms} ms after each of {at - 1} writes of the journal")  # noqa: T201 - what was proved
    assert at > 45


SHARDS = [f"sparse-embedding-{shard}of2-{replica}" for shard in range(2) for replica in range(2)]
SERVERS = [*SHARDS, "dense-0", "dense-1"]
CANARY = {"canary": 0.3, "bake_s": 1.0, "limits": Limits(latency_slack_ms=1e9)}


def release_and_kill(world, process, stage, **choices):
    """Release, and kill a server as a stage begins: either the release is done in the end, or nothing of it is."""
    before, after = world.live, world.fresh()
    pid = world.pids()[process]
    with world.load() as load:
        plan = world.target.plan(after.bundle, **choices)
        begun = world.intended(*(step.id for step in plan.steps if step.stage == stage))
        release = world.target.apply(plan)
        wait(begun, stage)
        os.kill(pid, signal.SIGKILL)
        with suppress(ReleaseUndone):  # not Unfinished: its supervisor starts it again long before patience ends
            release.wait()
        wait(lambda: world.pids().get(process) not in {None, pid}, f"{process} to be started again")
        wait(world.all_there, f"{process} to answer")
        world.target.resume()
        status = world.target.status()
        load.until(20, status.live.pin)
    assert load.broken == ([], [])
    assert status.is_whole
    assert status.live.pin in {before.pin, after.pin}
    # It came back with what it had, or was given it again: a rollback has everything it needs, everywhere.
    assert all(status.live.pin in each.versions for each in status.places)
    assert world.states()[process]["restarts"] > 0
    assert world.states()[process]["last_exit"] == "SIGKILL"


@proves_fault(
    area="servers",
    fault="a shard or serving replica is killed, during a release or not",
    happens="its replicas answer; the supervisor starts it again with the version it had, and a release waits",
    cure="nothing",
)
@pytest.mark.parametrize(
    ("process", "stage"),
    [
        (SHARDS[0], "sparse.prepare"),
        (SHARDS[3], "dense.check"),
        (SHARDS[1], "sparse.switch"),
        ("dense-0", "dense.prepare"),
        ("dense-1", "dense.switch"),
        ("dense-0", "settle"),
    ],
)
def test_a_server_that_is_killed_meanwhile(world, process, stage):
    release_and_kill(world, process, stage)


@pytest.mark.skipif(os.environ.get("CLOUDEDGE_TEST_EVERY") != "1", reason="CLOUDEDGE_TEST_EVERY is not 1")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("process", SERVERS)
def test_a_server_that_is_killed_at_every_stage(world, process):
    world.release(world.fresh())  # so that there is something to forget
    stages = [stage for stage, _ in world.target.plan(world.fresh().bundle, **CANARY).stages()]
    assert {"dense.canary", "bake", "tag", "dense.forget", "sparse.forget"} < set(stages)
    for stage in stages:
        world.release(world.fresh())  # tidies up what was left of one that was undone
        release_and_kill(world, process, stage, **CANARY)
    print(f"\n{process} killed as each of {len(stages)} stages began: {', '.join(stages)}")  # noqa: T201 - what was proved


@proves_fault(
    area="servers",
    fault="the supervisor of a local target is killed",
    happens="its servers go on answering and are no longer restarted",
    cure="`cloudedge up TARGET`",
)
@pytest.mark.parametrize("stage", ["dense.prepare:dense/0", "dense.switch:dense/0"])
def test_a_supervisor_that_is_killed_meanwhile(world, stage):
    after, pids = world.fresh(), world.pids()
    with world.load() as load:
        begun = world.intended(stage)
        release = world.target.apply(world.target.plan(after.bundle))
        wait(begun, stage)
        os.kill(int((world.folder / "supervisor.lock").read_text()), signal.SIGKILL)
        assert release.wait().state == "done"
        wait(lambda: not is_up(world.folder), "the supervisor to be gone")
        assert world.target.status().is_whole
        up(NAME, config=world.config)
        load.until(20, after.pin)
    assert is_up(world.folder)
    assert world.pids() == pids  # nobody else was disturbed
    assert load.broken == ([], [])


@proves_fault(
    area="servers",
    fault="the machine reboots",
    happens="servers come back with the versions they had",
    cure="`cloudedge up TARGET`, unless it runs at boot",
)
def test_after_a_reboot_everything_is_as_it_was(world):
    world.release(world.fresh())
    live = world.live.pin
    os.kill(int((world.folder / "supervisor.lock").read_text()), signal.SIGKILL)
    wait(lambda: not is_up(world.folder), "the supervisor to be gone")
    for pid in world.pids().values():
        os.kill(pid, signal.SIGKILL)
    wait(lambda: not world.pids(), "everything to be gone")
    up(NAME, config=world.config)
    status = world.target.status()
    assert (status.is_whole, status.live.pin) == (True, live)
    with world.load() as load:
        load.until(50, live)
        world.target.rollback()  # what was live before is there too
        load.until(20, world.live.pin)
    assert load.broken == ([], [])


@proves_fault(
    area="servers",
    fault="a file of a model is damaged on a replica's disk",
    happens="restarted, the replica does not answer with it; `status` shows it as `failed`, with the file",
    cure="`cloudedge resume TARGET`",
)
def test_a_replica_does_not_answer_with_bytes_that_are_not_those_of_its_pin(world):
    """One float is edited in a blob; a replica that is killed then would answer wrongly under the old pin."""
    live = world.live
    blob = next(path for name, path in live.bundle.dense.items() if name.endswith(".pdiparams"))
    good, pid = blob.read_bytes(), world.pids()["dense-0"]
    blob.write_bytes(good[:-4] + b"\x00\x00\x80\x3f")
    try:
        with world.load() as load:
            os.kill(pid, signal.SIGKILL)
            wait(lambda: world.pids().get("dense-0") not in {None, pid}, "the replica to be started again")

            def replica():
                return next(place for place in world.target.status().places if place.name == "dense/0")

            wait(lambda: replica().state == "failed", "the replica to refuse the version")
            assert "is not what its digest says" in replica().error
            assert not world.target.status().is_whole
            with suppress(Unfinished):  # it cannot be repaired while the blob is damaged, and says so
                outcome = world.target.resume()
                assert outcome is not None
                assert "damaged" in outcome.why
            load.until(20, live.pin)
        assert load.broken == ([], [])
    finally:
        blob.write_bytes(good)
    assert world.target.resume() is not None
    assert world.target.status().is_whole
