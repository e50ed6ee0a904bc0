"""The power goes at any step, again and again: afterwards exactly one whole version runs, and it is the desired one."""

from __future__ import annotations

import itertools
import random
import signal
import time
from pathlib import Path

import pytest

from cloudedge.supervisor import find_processes
from tests.edge_bie.node.played_runtime import PlayedRuntime
from tests.edge_bie.node.world import eventually, make_bundle, noise, settle

pytestmark = pytest.mark.parts

STEPS = (
    "fetch-configs", "make-room", "download", "bring-images", "open-bundle", "assemble", "try", "start", "probe",
    "settle", "turn", "collect",
)  # fmt: skip


class PowerCut(BaseException):
    """Nothing in an agent may catch this."""


@pytest.fixture
def played():
    runtime = PlayedRuntime()
    yield runtime
    runtime.stop()


def cut_at(step, count=1):
    seen = itertools.count(1)

    def at(now):
        if now == step and next(seen) == count:
            raise PowerCut

    return at


def run_until_cut(world, runtime, at):
    agent = world.agent(runtime=runtime, at=at)
    try:
        settle(agent)
    except PowerCut:
        return False
    finally:
        agent.close()
    return True


def is_whole(world, runtime, version):
    """Exactly one version runs, whole, and it is the one."""
    assert len(runtime.servers) == 1
    assert runtime.asks(world.port) == version


@pytest.mark.parametrize("step", STEPS)
def test_a_cut_at_any_step_of_an_update(world, played, step):
    world.release(make_bundle(world.hub, world.folder, 1))
    assert not run_until_cut(world, played, cut_at(step))
    assert run_until_cut(world, played, lambda _: None)
    is_whole(world, played, 1)
    world.release(make_bundle(world.hub, world.folder, 2))
    assert not run_until_cut(world, played, cut_at(step))
    assert played.asks(world.port) in (1, 2), "somebody answers all the time"
    assert run_until_cut(world, played, lambda _: None)
    is_whole(world, played, 2)
    # Going back is a new statement; both versions are on the disk.
    (slot,) = world.agent(runtime=played).state.slots.values()
    assert (slot.live.sequence, slot.previous.sequence, slot.highest) == (2, 1, 2)


@pytest.mark.parametrize("seed", range(4))
def test_cuts_at_random_steps_through_a_life_of_releases(world, played, seed):
    rng = random.Random(seed)
    for version in range(1, 5):
        is_bad = version > 1 and rng.random() < 0.4
        bundle = make_bundle(world.hub, world.folder, version, wrong=is_bad, files={"w": noise(2000, version)})
        world.release(bundle)
        for _ in range(rng.randrange(4)):
            run_until_cut(world, played, cut_at(rng.choice(STEPS), rng.randrange(1, 3)))
            if version > 1:
                assert played.asks(world.port) is not None
        assert run_until_cut(world, played, lambda _: None)
        good = version if not is_bad else good  # noqa: F821 - the first one is good
        is_whole(world, played, good)


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_a_real_agent_killed_at_random_moments(world, seed):
    rng = random.Random(seed)
    world.release(make_bundle(world.hub, world.folder, 1, files={"w": noise(400_000, 1)}))
    process = world.start("n1", "--limit-kb-s", "800")
    eventually(lambda: world.asks() == 1)
    world.release(make_bundle(world.hub, world.folder, 2, files={"w": noise(600_000, 2)}))
    for _ in range(4):
        time.sleep(rng.random() * 1.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert world.asks() in (1, 2)
        process = world.start("n1", "--limit-kb-s", "800")
    eventually(lambda: world.asks() == 2)
    folder = world.folder / "n1" / "processes"
    eventually(lambda: len(find_processes(folder)) == 2)  # the front and the app
    eventually(
        lambda: heeds(process.pid, signal.SIGTERM)
    )  # what answers outlived the agent, which may just be starting
    process.terminate()
    assert process.wait() == 0


def heeds(pid, number):
    """Tell whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)
