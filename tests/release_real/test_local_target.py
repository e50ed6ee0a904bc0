"""Up and down: as often as one likes, from any terminal, and a clear word when a port is taken."""

from __future__ import annotations

import socket

import pytest

from cloudedge.config import Config
from cloudedge.errors import Conflict
from cloudedge.release.local import _local, down, find_processes, is_up, layout_of, up

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
    assert set(pids) == {"sparse-t-0-0"}
    up("small", config=CONFIG)
    assert find_processes(layout.folder) == pids
    for _ in range(2):
        down("small", config=CONFIG)
        assert (find_processes(layout.folder), is_up(layout.folder)) == ({}, False)


def test_a_port_that_somebody_else_has(layout, monkeypatch):
    monkeypatch.setattr(_local, "_PORTS_S", 0.2)
    (seat,) = layout.sparse()
    with socket.create_server(("127.0.0.1", seat.admin_port)):
        with pytest.raises(Conflict, match=f"sparse/t/0/0 of small cannot listen on port {seat.admin_port}: somebody"):
            up("small", config=CONFIG)
        assert not is_up(layout.folder)
    up("small", config=CONFIG)
    assert is_up(layout.folder)
