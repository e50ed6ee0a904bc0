"""One target per worker, up while its tests run."""

from __future__ import annotations

import pytest

from cloudedge.release.local import down, up
from tests.release.local.world import NAME, World, home


@pytest.fixture(scope="session")
def target_that_is_up(tmp_path_factory):
    pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    folder = tmp_path_factory.mktemp("real")
    with home(folder / "home"):
        world = World(folder)
        try:
            up(NAME, config=world.config)
            world.release(world.good[0])
            yield world
        finally:
            world.journal.close()
            down(NAME, config=world.config)
            assert world.pids() == {}


@pytest.fixture
def world(target_that_is_up, monkeypatch):
    """The target, whole; checked to be whole again afterwards."""
    world = target_that_is_up
    monkeypatch.setenv("CLOUDEDGE_HOME", str(world.home))
    world.heal()
    assert world.target.status().is_whole
    yield world
    world.heal()
    assert world.target.status().is_whole
