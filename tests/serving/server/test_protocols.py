"""What a real server says and refuses, protocol by protocol."""

import gzip
import json
import struct
import threading
import time

import numpy as np
import pytest

from cloudedge.errors import CloudEdgeError
from cloudedge.serving import Client, FoundRows, HttpLimits, Runtime, RuntimeConfig, Server, ServerConfig
from cloudedge.serving.model._row_source import BundleRows
from cloudedge.serving.protocols._baidu_std import MAGIC
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

SCHEMES = ["http", "pipeline+http", "general+http", "grpc", "pipeline+grpc", "brpc"]


def url_of(server, scheme):
    port = server.grpc_port if scheme.endswith("grpc") else server.port
    return f"{scheme}://127.0.0.1:{port}" + ("/rows" if scheme.startswith("pipeline") else "")


class HalfAway(BundleRows):
    """Gives every second id a declared default, as when one of two shards is away."""

    def rows(self, table, ids, pin, deadline=None):
        found = super().rows(table, ids, pin, deadline)
        return FoundRows(found.values, found.missing, np.arange(len(ids)) % 2 == 0)


@pytest.fixture(scope="module")
def away(models):
    config = ServerConfig(port=0, grpc_port=0, service="rows")
    rows = lambda bundle, _: HalfAway(bundle.sparse)  # noqa: E731
    with Runtime(RuntimeConfig(workers=1), hub=models.hub, rows=rows) as runtime:
        runtime.activate(runtime.load(models.ref(models.rows)).pin)
        with Server(runtime, config) as server:
            yield server


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_share_of_declared_defaults_is_said(away, scheme):
    with Client(url_of(away, scheme), timeout_s=10) as client:
        answer = client.predict({"ids": np.array([[2]]), "more": np.array([[4]])})
    assert answer.defaulted == 0.5
    assert answer.pin == away.runtime.routing.active


def pair(runtime, **limits):
    return Server(runtime, ServerConfig(port=0, grpc_port=0, service="rows", limits=HttpLimits(**limits)))


def pairs(rows):
    return {"x": np.ones((rows, 2), np.float32)}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_requests_and_answers_have_a_limit(marked, scheme):
    with (
        pair(marked, max_body_bytes=4000, max_answer_bytes=1000) as server,
        Client(url_of(server, scheme), timeout_s=10, retries=0) as client,
    ):
        assert client.predict(pairs(1))["y"].tolist() == [[1, 1]]
        with pytest.raises(CloudEdgeError, match=r"answer has|[Ss]ent message larger"):
            client.predict(pairs(200))
        with pytest.raises(CloudEdgeError, match=r"at most 4000|[Rr]eceived message larger|too large"):
            client.predict(pairs(1000))
        assert client.predict(pairs(1))["y"].tolist() == [[1, 1]]


def test_a_compressed_body_has_the_limit_of_a_plain_one(marked):
    body = json.dumps({"tensor": [], "pad": " " * 5000}).encode()
    with pair(marked, max_body_bytes=4000) as server, Http(server.port) as http:
        reply = http.ask("POST", "/GeneralModelService/inference", gzip.compress(body), {"Content-Encoding": "gzip"})
    assert reply.status == 413
    assert "more than 4000 bytes" in reply.json()["err_msg"]


HALF = MAGIC + struct.pack(">II", 2000, 10) + b"x" * 488


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_half_a_frame_counts_as_half_a_body_does(marked):
    with pair(marked, max_held_bytes=900, body_timeout_s=0.3) as server:
        connections = server.connections
        with Http(server.port) as one:
            one.send(HALF)
            wait_for(lambda: connections.held.count == 500)
            with Http(server.port) as two:
                two.send(HALF)
                assert two.is_closed(), "there is no room for both"
            assert connections.held.count == 500
            one.send(b"x")  # a byte now and then does not make it arrive in time
            assert one.is_closed()
        assert (connections.timed_out, connections.held.count) == (1, 0)


@pytest.mark.parametrize("scheme", ["http", "brpc"])
def test_a_connection_that_is_only_open_does_not_keep_a_server_from_stopping(marked, scheme):
    with pair(marked, linger_s=0.01) as server, Client(url_of(server, scheme), timeout_s=10) as client:
        client.predict(pairs(1))
        assert server.connections.open
        assert server.drain(3), "it was busy with nothing"


def test_what_was_sent_on_an_open_connection_when_the_server_stops_is_answered(marked):
    with pair(marked, linger_s=20) as server, Http(server.port) as kept, Http(server.port) as other:
        assert kept.predict([[1, 2]]).status == other.predict([[1, 2]]).status == 200
        draining = threading.Thread(target=server.drain, args=(20,))
        draining.start()
        wait_for(lambda: server.is_draining)
        for http in (kept, other):
            reply = http.predict([[1, 2]])
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert http.is_closed()
        draining.join(10)
        assert not draining.is_alive(), "it waited for connections that are gone"
