"""Simulated nodes follow the lab by the agent's own code: exact final states, failures where they were ordered."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from cloudedge.edge_bie.model._names import app_name
from cloudedge.errors import Unavailable
from tests.edge_bie.node.swarm import Swarm
from tests.edge_bie.node.world import eventually, make_bundle

pytestmark = pytest.mark.parts

NODES = [f"sim-{number}" for number in range(40)]


def test_a_swarm_takes_a_release_and_the_next_one_and_tells_who_failed(world):
    for name in NODES:
        world.add_node(name)
    first = world.publish(make_bundle(world.hub, world.folder, 1))
    second = world.publish(make_bundle(world.hub, world.folder, 2))
    failing, away = NODES[3], NODES[5]

    def fails(name, statement):
        return "the model is broken here" if name == failing and statement == second else ""

    with Swarm(world.lab.sync_url, NODES, key=world.public, interval_s=0.2, fails=fails) as swarm:
        for name in NODES:
            world.point(first, name)
        eventually(lambda: all(live.get("paddle-serving") == first.revision for live in swarm.live().values()))
        whole = sum(node.fetched for node in swarm.nodes.values())
        assert len({node.fetched for node in swarm.nodes.values()}) == 1
        swarm.cut_power(away)
        for name in NODES:
            world.point(second, name)
        others = set(NODES) - {failing, away}
        eventually(lambda: all(swarm.live()[name]["paddle-serving"] == second.revision for name in others))
        stats = eventually(lambda: world.stats(second, failing))
        eventually(lambda: "broken here" in world.stats(second, failing).cause)
        assert swarm.live()[failing]["paddle-serving"] == first.revision
        assert stats.name == app_name("paddle-serving", second.revision)
        assert swarm.live()[away]["paddle-serving"] == first.revision
        swarm.give_power(away)
        eventually(lambda: swarm.live()[away]["paddle-serving"] == second.revision)
        # The files that both versions share travelled once.
        assert sum(node.fetched for node in swarm.nodes.values()) < 2 * whole
    assert not swarm.mistakes


def test_a_swarm_refuses_what_nobody_signed(world):
    world.add_node("sim")
    statement = world.publish(make_bundle(world.hub, world.folder, 1), signature=b"x" * 70)
    with Swarm(world.lab.sync_url, ["sim"], key=world.public, interval_s=0.1) as swarm:
        world.point(statement, "sim")
        eventually(lambda: "signature" in getattr(world.stats(statement, "sim"), "cause", ""))
    assert swarm.live() == {"sim": {}}
    assert not swarm.mistakes


def test_a_swarm_ends_even_when_a_cancellation_is_lost(world, monkeypatch):
    asked = []

    async def call(*_request, **_options):
        asked.append(1)
        if len(asked) > 1:
            await asyncio.sleep(60)
        with suppress(asyncio.CancelledError):  # asyncio.wait_for did this when an answer came at that moment
            await asyncio.sleep(60)
        raise Unavailable("no answer")

    swarm = Swarm(world.lab.sync_url, ["sim"], key=world.public, interval_s=0.1)
    monkeypatch.setattr(swarm.http, "call", call)
    with swarm:
        eventually(lambda: asked)
    assert not swarm.mistakes
