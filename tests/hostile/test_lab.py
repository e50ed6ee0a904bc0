"""Attacks on the lab, which shares its HTTP server with serving."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.faults import proves_fault
from tests.hostile.attacks import HTTP1, LAB
from tests.hostile.harness import Target, assault
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts


class Nodes:
    def __init__(self, port):
        self.http = Http(port)
        self.close = self.http.close

    def ask(self):
        assert self.http.ask("GET", "/v1/nodes").status == 200


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    state = tmp_path_factory.mktemp("hostile") / "lab"
    ports = ["--admin", ":0", "--sync", ":0", "--objects", ":0"]
    with Target(
        ["edge", "lab", "--state", str(state), *ports, "--json"],
        lambda ports: Nodes(ports["http"]),
        lambda told: {"http": urlsplit(told["admin"]).port},
    ) as target:
        yield target


@proves_fault(
    area="strangers",
    fault="the lab is sent endless heads or deep JSON",
    happens="they are refused, and nodes are answered",
    cure="nothing",
)
@pytest.mark.parametrize("attack", [*HTTP1, *LAB], ids=lambda attack: attack.name)
def test_an_attack_takes_little_memory_and_holds_up_no_other_client(lab, attack, record_property):
    record_property("outcome", str(assault(lab, attack)))
