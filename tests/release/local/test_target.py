"""Up and down: as often as one likes, from any terminal, and a clear word when a port is taken."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from cloudedge.config import Config
from cloudedge.errors import Conflict
from cloudedge.release import Target
from cloudedge.release.local import _local_target as _local
from cloudedge.release.local import down, find_processes, is_up, layout_of, serving_urls, up
from cloudedge.serving import Client
from tests.release.local.world import make

pytestmark = pytest.mark.parts

CONFIG = Config.model_validate(
    {"targets": {"small": {"kind": "local", "sparse": {"tables": ["t"], "shards": 1, "replicas": 1}}}}
)


@pytest.fixture
def layout():
    yield layout_of("small", config=CONFIG)
    down("small", config=CONFIG)


def test_up_twice_and_down_twice(layout):
    up("small", config=CONFIG)
    pids = find_processes(layout.folder)
    assert set(pids) == {"sparse-t-0of1-0"}
    up("small", config=CONFIG)
    assert find_processes(layout.folder) == pids
    for _ in range(2):
        down("small", config=CONFIG)
        assert (find_processes(layout.folder), is_up(layout.folder)) == ({}, False)


def test_a_port_that_somebody_else_has(layout, monkeypatch):
    monkeypatch.setattr(_local, "_PORTS_S", 0.2)
    layout.take_ports()  # as an earlier `up` did
    (seat,) = layout.sparse()
    with socket.create_server(("127.0.0.1", seat.admin_port)):
        with pytest.raises(
            Conflict, match=f"sparse/t/0of1/0 of small cannot listen on port {seat.admin_port}: another process"
        ):
            up("small", config=CONFIG)
        assert not is_up(layout.folder)
    up("small", config=CONFIG)
    assert is_up(layout.folder)


def test_a_target_of_serving_replicas_alone(tmp_path):
    """Without shards each replica reads the rows from the bundle."""
    alone = {"kind": "local", "dense": {"replicas": 1, "service": "pair"}}
    config = Config.model_validate({"targets": {"alone": alone}})
    one = make(tmp_path / "one", 1)
    two = make(tmp_path / "two", 2, parent=one)
    try:
        up("alone", config=config)
        target = Target.load("alone", config=config)
        with Client(*serving_urls("alone", config=config)) as client:
            for made in (one, two):
                assert target.apply(target.plan(made.bundle)).wait().state == "done"
                answer = client.predict({"ids": np.array([[0], [7], [3999]])})
                assert answer.pin == made.pin
                np.testing.assert_array_equal(answer.outputs["y"], made.answers[[0, 7, 3999]])
            assert target.rollback().bytes == 0
            assert client.predict({"ids": np.array([[0]])}).pin == one.pin
        assert target.status().is_whole
    finally:
        down("alone", config=config)
