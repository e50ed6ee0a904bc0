"""Every input the fuzz targets start from, sent to a live server: it answers or closes, and goes on."""

from __future__ import annotations

import socket

import pytest

from tests import ROOT
from tests.cube import plain_wire as plain

pytestmark = pytest.mark.parts

CORPUS = sorted(path for path in (ROOT / "tests" / "fuzz" / "net" / "corpus").rglob("*") if path.is_file())


def test_there_is_a_corpus():
    assert len(CORPUS) > 20


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_server_survives(shard, path):
    data = path.read_bytes()
    for pieces in ([data], [data[: len(data) // 2], data[len(data) // 2 :]], [data[:-1]]):
        with plain.Peer(shard.port) as peer:
            for piece in pieces:
                peer.send(piece)
            peer.socket.shutdown(socket.SHUT_WR)
            while peer.socket.recv(65536):
                pass
    with plain.Peer(shard.port) as peer:
        assert peer.call(plain.request(plain.keys(1))).code == 0
