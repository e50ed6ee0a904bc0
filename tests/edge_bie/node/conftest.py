"""A world for each test, and nothing of it left behind."""

from __future__ import annotations

import pytest

from cloudedge.supervisor import down
from tests.edge_bie.node.world import make_world


@pytest.fixture
def world(tmp_path):
    made = make_world(tmp_path)
    made.add_node()
    try:
        yield made
    finally:
        for agent in made.started:
            agent.kill()
            agent.wait()
        for folder in tmp_path.glob("*/processes"):
            down(folder)
        made.bie.close()
        made.lab.close()
