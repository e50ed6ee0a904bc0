"""Attacks on a cube server: its data port and its admin port."""

from __future__ import annotations

import http.client
import struct

import pytest

from cloudedge.io import parse_address
from tests.cube import plain_wire as plain
from tests.cube.reference import part_files, write_part
from tests.faults import proves_fault
from tests.hostile.attacks import CUBE, THREADED
from tests.hostile.harness import Target, assault

pytestmark = pytest.mark.parts

ROW = struct.pack("<16f", *range(16))


class Rows:
    """Reads a row again and again."""

    def __init__(self, ports):
        self.peer = plain.Peer(ports["data"], timeout=60)

    def ask(self):
        assert self.peer.call(plain.request(plain.keys(1))).values == [(0, ROW)]

    def close(self):
        self.peer.close()


class Health:
    """Asks for the health of a server, on a new connection each time, as a kubelet does."""

    def __init__(self, ports):
        self.port = ports["admin"]

    def ask(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()

    def close(self):
        pass


def serve(folder, client):
    write_part(folder / "data" / "100", part_files([(1, ROW)]))
    return Target(
        ["cube", "serve", str(folder / "data" / "100"), "--port", "0", "--admin-port", "0", "--json"],
        client,
        lambda told: {name: parse_address(told[key])[1] for name, key in (("data", "address"), ("admin", "admin"))},
        environment={"CLOUDEDGE_HOME": str(folder / "home")},
    )


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("hostile"), Rows) as target:
        yield target


@pytest.fixture(scope="module")
def administered(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("hostile"), Health) as target:
        yield target


@proves_fault(
    area="strangers",
    fault="a cube server is sent long pins, packed zeros, half frames, or nobody reads its answers",
    happens="they are refused or closed; memory grows by at most 64 MB, and others are answered",
    cure="nothing; `cloudedge cube serve --help` lists the limits",
)
@pytest.mark.parametrize("attack", CUBE, ids=lambda attack: attack.name)
def test_an_attack_on_the_data_port(shard, attack, record_property):
    record_property("outcome", str(assault(shard, attack)))


@proves_fault(
    area="strangers",
    fault="140 connections without a token send a byte now and then to an admin port",
    happens="`/health` is answered as before",
    cure="nothing",
)
@pytest.mark.parametrize("attack", THREADED, ids=lambda attack: attack.name)
def test_an_attack_on_the_admin_port(administered, attack, record_property):
    record_property("outcome", str(assault(administered, attack)))
