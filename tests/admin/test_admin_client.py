"""The client of admin APIs: bounds, errors from the wire, and waits on an injected clock."""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cloudedge import errors
from cloudedge.admin import AdminHttp, AdminHttpClient, error_fields, ordered, read_error, status_of
from cloudedge.admin import _client as client_module
from cloudedge.admin._wire_errors import KINDS
from cloudedge.clock import ManualClock
from cloudedge.cube.delivery import CubeReplica
from cloudedge.errors import (
    CloudEdgeError,
    Conflict,
    DeadlineExceeded,
    InputError,
    IntegrityError,
    NotFound,
    Rejected,
    Unavailable,
)
from cloudedge.release.kubernetes._deployment_place import _reported
from cloudedge.release.kubernetes._pods import Pod
from cloudedge.serving import AdminClient

pytestmark = pytest.mark.parts

TOKEN = "for tests"
HOSTILE = [
    "__builtins__", "__file__", "__name__", "annotations", "ClassVar", "Any", "_rebuild", "CloudEdgeErrors", "",
    "object", "SystemExit", ["Conflict"], {"a": 1}, None, 7,
]  # fmt: skip


class Scripted:
    """Answers every request with what a test says; keeps what was asked."""

    def __init__(self):
        self.answers = []
        self.asked = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _do(self):
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                scripted.asked.append((self.command, self.path, dict(self.headers)))
                status, content = scripted.answers[min(len(scripted.asked), len(scripted.answers)) - 1]
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = _do  # noqa: N815

            def log_message(self, format, *args):  # noqa: A002
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def say(self, *answers):
        self.answers, self.asked = list(answers), []


@pytest.fixture
def server():
    made = Scripted()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def client(server):
    made = AdminHttpClient(server.address, token=TOKEN, attempts=3, clock=ManualClock())
    yield made
    made.close()


@pytest.fixture
def replica(server):
    return CubeReplica("emb", 0, address="127.0.0.1:1", admin=server.address, token=TOKEN, clock=ManualClock())


def test_every_error_of_ours_comes_back_as_it_was(server, client):
    names = [name for name in errors.__all__ if name not in ("Unavailable", "Overloaded", "DeadlineExceeded")]
    assert set(errors.__all__) == KINDS.keys()
    for name in names:
        error = getattr(errors, name)("it went wrong", hint="Do something.")
        server.say((status_of(error), error_fields(error)))
        with pytest.raises(CloudEdgeError) as raised:
            client.call("GET", "/versions")
        assert type(raised.value) is type(error)
        assert raised.value.message.endswith("/versions: it went wrong")
        assert raised.value.hint == "Do something."


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, InputError), (404, NotFound), (409, Conflict), (418, Rejected), (500, Unavailable), (503, Unavailable)],
)
def test_a_kind_that_is_not_listed_becomes_what_the_status_stands_for(server, client, kind, status, expected):
    server.say((status, {"error": "no", "hint": "", "kind": kind}))
    with pytest.raises(CloudEdgeError) as raised:
        client.call("GET", "/versions", attempts=1)
    assert type(raised.value) is expected


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_replica_never_resolves_a_kind_by_its_name(server, replica, kind):
    server.say((200, {"state": "failed", "error": "no", "hint": "", "kind": kind}))
    with pytest.raises(CloudEdgeError, match=r"emb/0/127.0.0.1:1.*: no") as raised:
        replica.load("v1")
    assert type(raised.value) is CloudEdgeError


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_pod_never_resolves_a_kind_by_its_name(kind):
    raised = _reported(Pod("serving-0", "10.0.0.1", is_ready=True), {"error": "no", "kind": kind})
    assert (type(raised), raised.message) == (InputError, "serving-0: no")


def test_a_pod_honours_a_kind_that_is_listed():
    failed = {"error": "bad bytes", "hint": "Pack again.", "kind": "IntegrityError"}
    raised = _reported(Pod("serving-0", "10.0.0.1", is_ready=True), failed)
    assert (type(raised), raised.hint) == (IntegrityError, "Pack again.")


def test_a_replica_honours_a_kind_that_is_listed(server, replica):
    server.say((200, {"state": "failed", "error": "bad bytes", "hint": "Pack again.", "kind": "IntegrityError"}))
    with pytest.raises(IntegrityError, match="bad bytes") as raised:
        replica.load("v1")
    assert raised.value.hint == "Pack again."


def test_a_serving_replica_s_kind_is_honoured_too(server):
    server.say((500, {"error": "bad bytes", "hint": "Pack again.", "kind": "IntegrityError"}))
    with AdminClient(server.address, clock=ManualClock()) as admin, pytest.raises(IntegrityError, match="bad bytes"):
        admin.load("ctr:1")
    assert len(server.asked) == 1, "trying again does not help"


def test_an_answer_without_reason_still_says_what_was_asked():
    assert str(read_error({}, "GET /versions", status=500)) == "GET /versions: HTTP 500"
    assert str(read_error({"kind": "Conflict"}, "a server")) == "a server: no reason given"
    assert read_error({}, "a server", pin="v1").pin == "v1"


@pytest.mark.parametrize("content", [b"[1, 2]", b"<html>", b"[" * 100_000, b"\xff\xfe", b'{"a": '])
def test_what_no_admin_api_answers_is_unavailable(server, client, content):
    server.say((200, content))
    with pytest.raises(Unavailable, match="does not answer as an admin API does"):
        client.call("GET", "/versions")
    server.say((404, content))
    with pytest.raises(NotFound):
        client.call("GET", "/versions")


def test_an_answer_is_bounded(server, client, monkeypatch):
    monkeypatch.setattr(client_module, "_MAX_ANSWER", 1000)
    server.say((200, {"long": "x" * 5000}))
    with pytest.raises(Unavailable):
        client.call("GET", "/versions", attempts=1)
    server.say((200, {"short": "x" * 500}))
    assert client.call("GET", "/versions") == {"short": "x" * 500}


def test_a_call_is_tried_again_where_that_helps(server, client):
    server.say((503, {"error": "busy", "kind": "Unavailable"}), (503, {"error": "busy"}), (200, {"active": None}))
    assert client.call("GET", "/versions") == {"active": None}
    assert client.clock.elapsed > 0
    server.say((503, {"error": "busy"}))
    with pytest.raises(Unavailable, match="busy"):
        client.call("POST", "/drain", {}, attempts=1)
    assert len(server.asked) == 1


def test_the_token_is_asked_for_each_time_and_orders_are_numbered(server):
    tokens = iter(["first", "second"])
    client = AdminHttpClient(server.address, token=lambda: next(tokens), keep_alive=False)
    server.say((200, {}))
    client.call("GET", "/versions")
    with ordered(7):
        client.call("PUT", "/staged/v1/data.0", piece=b"bytes", offset=4)
    first, second = (headers for _, _, headers in server.asked)
    assert (first["Authorization"], second["Authorization"]) == ("Bearer first", "Bearer second")
    assert "Cloudedge-Order" not in first
    assert (second["Cloudedge-Order"], second["Cloudedge-Offset"]) == ("7", "4")


def test_proxies_and_credentials_of_the_environment_are_ignored(server, client, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    server.say((200, {}))
    assert client.call("GET", "/versions") == {}
    assert server.asked[0][2]["Authorization"] == f"Bearer {TOKEN}"


def test_a_wrong_token_is_rejected_with_a_hint(server, client):
    server.say((401, {"error": "the admin API needs its token"}))
    with pytest.raises(Rejected, match="does not accept the token") as raised:
        client.call("GET", "/versions")
    assert raised.value.hint
    assert len(server.asked) == 1


def test_a_wait_for_a_version_runs_on_the_injected_clock(server):
    """The deadline passes when the clock says so, however long the calls take."""
    clock = ManualClock()
    server.say((200, {"state": "loading", "error": ""}))
    with (
        AdminClient(server.address, clock=clock) as admin,
        pytest.raises(DeadlineExceeded, match=r"version v1 .* is loading after 5.0 s"),
    ):
        admin.wait_loaded("v1", within_s=5.0)
    assert 5.0 < clock.elapsed < 5.1
    assert len(server.asked) > 100


def test_a_replica_waits_on_the_injected_clock(server):
    clock = ManualClock()
    replica = CubeReplica("emb", 0, address="127.0.0.1:1", admin=server.address, deadline_s=60, clock=clock)
    server.say((200, {"state": "loading"}))
    with pytest.raises(DeadlineExceeded, match="is still loading after 60 s"):
        replica.load("v1")
    assert 60 < clock.elapsed < 61


def test_both_names_of_the_free_memory_are_read(server):
    with AdminClient(server.address) as admin:
        for answer in ({"free_memory_bytes": 7}, {"memory_free_bytes": 7}):
            server.say((200, {"versions": [], **answer}))
            assert admin.versions()["free_memory_bytes"] == 7
        server.say((200, {"versions": []}))
        assert admin.versions()["free_memory_bytes"] is None


def test_both_names_of_the_counts_of_keys_are_read(server):
    new = {"keys": 9, "missing_keys": 2, "defaulted_keys": 1}
    old = {"ids": 9, "ids_missing": 2, "ids_defaulted": 1}
    with AdminClient(server.address) as admin:
        for answer in (new, old, new | old):
            server.say((200, {"versions": {"v1": {"answered": 3, **answer}}}))
            assert admin.stats()["versions"]["v1"] == {"answered": 3, **new, **old}
        server.say((200, {"versions": {"v1": {"answered": 3}}}))
        assert admin.stats()["versions"]["v1"] == {"answered": 3}


def test_a_cube_replica_reads_both_names_of_the_free_memory(server, replica):
    for answer in ({"free_memory_bytes": 7}, {"memory_free_bytes": 7}):
        server.say((200, {"versions": [], "active": None, **answer}))
        assert replica.status().free_memory_bytes == 7


def test_a_replica_of_before_pins_is_understood(server, replica):
    loaded = {"state": "loaded", "rows": 3}
    server.say((200, {"versions": [{"name": "v1", **loaded}], "active": "v1"}))
    assert replica.status().versions["v1"].rows == 3
    server.say((200, {"versions": [{"name": "v1", "pin": "v1", **loaded}], "active": "v1"}))
    assert replica.status().versions["v1"].rows == 3


class Echo(AdminHttp):
    def __init__(self):
        super().__init__("echo", token=TOKEN)
        self.listen()

    def answer(self, method, path, body):
        if path == "/fail":
            raise StockOut("none left")
        return HTTPStatus.OK, {"method": method, "path": path, "body": body}


class StockOut(Conflict):
    """A class of the server's own."""


def test_a_class_that_only_the_server_knows_becomes_its_status():
    with Echo() as echo:
        client = AdminHttpClient(f"http://127.0.0.1:{echo.port}/", token=TOKEN, keep_alive=False)
        assert client.call("POST", "/x", {"a": 1}) == {"method": "POST", "path": "/x", "body": {"a": 1}}
        with pytest.raises(Conflict, match="none left") as raised:
            client.call("GET", "/fail")
        assert type(raised.value) is Conflict
        assert client.is_ok("/health")
    assert not client.is_ok("/health")
