"""Attacks on a serving replica, over each of its protocols."""

from __future__ import annotations

import pytest

from tests.faults import proves_fault
from tests.hostile.attacks import HTTP1, SERVING
from tests.hostile.harness import Target, assault
from tests.serving.models import LocalHub, pack_marked
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts


class Predictions:
    def __init__(self, port):
        self.http = Http(port)
        self.close = self.http.close

    def ask(self):
        reply = self.http.predict([[1.0, 2.0]])
        assert (reply.status, reply.json()["outputs"]) == (200, {"y": [[1.0, 2.0]]})


@pytest.fixture(scope="module")
def replica(tmp_path_factory):
    pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    folder = tmp_path_factory.mktemp("hostile")
    bundle = pack_marked(folder / "marked", LocalHub(folder / "hub"), 0.0)
    options = ["--port", "0", "--grpc-port", "0", "--admin-port", "0", "--hub", str(folder / "hub"), "--json"]
    with Target(
        ["serve", f"{bundle.name}@{bundle.digest}", *options],
        lambda ports: Predictions(ports["http"]),
        lambda told: {"http": told["port"], "grpc": told["grpc_port"]},
    ) as target:
        yield target


@proves_fault(
    area="strangers",
    fault="a serving replica is sent bodies that grow, endless heads, or millions of parts",
    happens="they are refused with the name of the limit; memory grows by at most 64 MB, and others are answered",
    cure="nothing; `cloudedge serve --help` lists the limits",
)
@pytest.mark.parametrize("attack", [*HTTP1, *SERVING], ids=lambda attack: attack.name)
def test_an_attack_takes_little_memory_and_holds_up_no_other_client(replica, attack, record_property):
    record_property("outcome", str(assault(replica, attack)))
