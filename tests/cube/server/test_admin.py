"""The admin API: token, loads in the background, the pointer, metrics."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest
import requests

from cloudedge.admin import AdminHttpClient, is_loopback
from cloudedge.cube.server._admin_api import AdminServer
from cloudedge.errors import ConfigError, Conflict
from tests.faults import proves_fault

pytestmark = pytest.mark.parts

TOKEN = "a-secret"
JSON = {"Content-Type": "application/json"}


class Admin:
    def __init__(self, admin: AdminServer) -> None:
        self.url = f"http://127.0.0.1:{admin.port}"
        self.headers = {"Authorization": f"Bearer {TOKEN}"}

    def __call__(self, method: str, path: str, body: object = None, **options: object) -> requests.Response:
        settings = {"headers": self.headers, "timeout": 5, **options}
        return requests.request(method, self.url + path, json=body, **settings)

    def wait(self, name: str, state: str) -> dict[str, object]:
        deadline = time.monotonic() + 10
        while (found := self("GET", f"/versions/{name}").json()).get("state") != state:
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        return found


@pytest.fixture
def admin(shard, files):
    files.versions = {"101": {1: (9.0, 9.0)}, "102": {1: (7.0, 7.0), 2: (0.0, 0.0)}}
    with AdminServer(shard, token=TOKEN) as server:
        yield Admin(server)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"])
def test_without_the_token_only_health_is_told(admin, header):
    headers = {"Authorization": header}
    for method, path in (("GET", "/versions"), ("POST", "/versions"), ("GET", "/metrics"), ("POST", "/drain")):
        answer = admin(method, path, headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert TOKEN not in answer.text
    assert admin("GET", "/health", headers=headers).text == "ok\n"
    assert admin("GET", "/ready", headers=headers).text == "ready\n"


def raw(admin, head: str, encoding: str = "utf-8") -> bytes:
    """Send a request's head alone and return what comes back before the body has been sent."""
    with socket.create_connection(("127.0.0.1", int(admin.url.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(head.encode(encoding))
        return connection.recv(65536)


def test_without_the_token_no_body_is_waited_for(admin):
    head = "POST /versions HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cloudedge.admin._server._MAX_IGNORED", 0)
        assert raw(admin, head.format(8 << 20)).startswith(b"HTTP/1.1 401 ")
    assert b" 401 " in raw(admin, head.format("x"))
    assert admin("POST", "/versions", {"name": "x" * 10_000}, headers={}).status_code == 401


def test_json_that_is_nested_too_deep_is_refused(admin):
    answer = requests.post(f"{admin.url}/versions", data="[" * 60_000, headers=admin.headers | JSON, timeout=30)
    assert answer.status_code == 400
    assert "not JSON" in answer.json()["error"]


def test_a_request_too_many_is_refused_and_health_is_not(shard, monkeypatch):
    monkeypatch.setattr("cloudedge.admin._server._MAX_REQUESTS", 1)
    long_request = f"POST /versions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    long_request += "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    with AdminServer(shard, token=TOKEN) as server:
        admin = Admin(server)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as busy:
            busy.sendall(long_request.encode())
            deadline = time.monotonic() + 60
            while admin("GET", "/versions").status_code != 503:
                assert time.monotonic() < deadline
            assert admin("GET", "/health").status_code == 200
            busy.sendall(b'{"a": 10}')
            assert b" 400 " in busy.recv(65536)


def test_orders_are_obeyed_in_their_order(admin):
    def ask(order, path="/versions", headers=admin.headers):
        return admin("GET", path, headers=headers | {"Cloudedge-Order": order}).status_code

    assert [ask(order) for order in ("7", "7", "12", "11", "12")] == [200, 200, 200, 409, 200]
    assert admin("GET", "/versions").status_code == 200  # without a number: as it comes
    assert [ask(order) for order in ("-1", "1e9", "x", "9" * 20)] == [400] * 4
    # Whoever has no token cannot move the mark.
    assert [ask("99", path, {}) for path in ("/versions", "/health", "/ready")] == [401, 200, 200]
    assert ask("13") == 200


def test_ready_is_who_has_the_version_that_is_wanted(shard, files, tmp_path):
    """A replica that was away while the others were switched has a version that answers, and it is the wrong one."""
    files.versions = {"101": {1: (9.0, 9.0)}, "102": {1: (7.0, 7.0)}}
    wanted = tmp_path / "wanted.json"
    with AdminServer(shard, token=TOKEN, wanted=wanted) as server:
        admin = Admin(server)

        def ready(text):
            wanted.write_text(text)
            return admin("GET", "/ready", headers={}).status_code == 200

        def switch(name, order):
            headers = admin.headers | {"Cloudedge-Order": str(order)}
            assert admin("POST", f"/versions/{name}/activate", headers=headers).status_code == 200

        assert admin("GET", "/ready").status_code == 200, "nobody has said which yet"
        assert all(ready(text) for text in ("", "{", "[]", "7", '{"pin": 1, "order": "x"}'))
        admin("POST", "/versions", {"path": "101", "name": "101"})
        admin("POST", "/versions", {"path": "102", "name": "102"})
        admin.wait("101", "loaded"), admin.wait("102", "loaded")
        assert not ready('{"order": 5, "pin": "101"}')
        switch("101", 5)
        assert ready('{"order": 5, "pin": "101"}')
        assert not ready('{"order": 8, "pin": "102"}')
        assert admin("GET", "/versions", headers=admin.headers | {"Cloudedge-Order": "9"}).status_code == 200
        assert not ready('{"order": 8, "pin": "102"}'), "a later order that moved nothing changes nothing"
        switch("102", 10)
        assert ready('{"order": 5, "pin": "101"}'), "the file is late, and the switch counts"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_beyond_loopback_a_token_is_required(shard, host):
    assert not is_loopback(host)
    for token in (None, ""):
        with pytest.raises(ConfigError, match="without a token"):
            AdminServer(shard, host=host, token=token)


def test_on_loopback_a_token_is_made_and_found(shard, tmp_path, monkeypatch):
    with AdminServer(shard) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert requests.get(f"{url}/versions", timeout=30).status_code == 401
        assert AdminHttpClient(url).call("GET", "/versions")["active"] == "100"
        (file,) = (tmp_path / "home" / "admin").iterdir()
        assert (file.name, file.stat().st_mode & 0o777) == (f"{server.port}.token", 0o600)
        file.chmod(0o644)
        assert AdminHttpClient(url).token == "", "others may have written it"
        file.chmod(0o600)
        with pytest.raises(Conflict, match="cannot listen"):
            AdminServer(shard, port=server.port)
    assert not file.exists()
    monkeypatch.setenv("CLOUDEDGE_HOME", "/proc/nowhere")
    with AdminServer(shard) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert (server.token_file, AdminHttpClient(url).token) == (None, ""), "nowhere to keep it"
        assert requests.get(f"{url}/health", timeout=30).status_code == 200
        assert requests.get(f"{url}/versions", timeout=30).status_code == 401


CROSS_SITE = {
    "a page's request": ({"Origin": "https://evil.example"}, 403),
    "a page of this machine": ({"Origin": "http://127.0.0.1:8028"}, 403),
    "a name that leads here": ({"Host": "evil.example"}, 403),
    "a name that leads here, with a port": ({"Host": "evil.example:8028"}, 403),
    "text": ({"Content-Type": "text/plain"}, 415),
    "a form": ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    "this machine": ({"Host": "localhost:1", "Content-Type": "application/json; charset=utf-8"}, 202),
    "this machine, by IPv6": ({"Host": "[::1]:1"}, 202),
}


@proves_fault(
    area="strangers",
    fault="a page in a browser sends orders to an admin API on loopback",
    happens="they are refused: orders need the token, JSON, and no `Origin`",
    cure="nothing",
)
@pytest.mark.parametrize(("headers", "status"), CROSS_SITE.values(), ids=CROSS_SITE)
def test_requests_of_pages_in_a_browser_are_refused(admin, headers, status):
    body = json.dumps({"within_s": 0}).encode()
    headers = {"Content-Type": "application/json"} | admin.headers | headers
    assert requests.post(f"{admin.url}/drain", data=body, headers=headers, timeout=30).status_code == status
    if status != 202:
        assert admin("GET", "/ready").status_code == 200, "nothing was drained"


@pytest.mark.parametrize("length", ["9" * 5000, "9" * 16, "-1", "1_0", "\xb2", "0x1"])
def test_a_length_that_is_no_number_of_bytes_is_refused(admin, length, capfd):
    head = (
        f"POST /versions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
    )
    for headers, status in (("", b" 401 "), (f"Authorization: Bearer {TOKEN}\r\n", b" 400 ")):
        assert status in raw(admin, head + headers + "\r\n", "latin-1")
    assert capfd.readouterr().err == ""


def test_slow_heads_do_not_keep_health_from_being_asked(admin):
    def still_answers():
        answer = raw(admin, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        return answer.startswith(b"HTTP/1.1 200 ")

    port = int(admin.url.rpartition(":")[2])
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(140)]
        for round_ in range(3):
            for each in slow:
                with suppress(OSError):
                    each.sendall(b"GET /health HTTP/1.1\r\nX-Slow: " if round_ == 0 else b"x")
            assert all(still_answers() for _ in range(3))
            assert admin("GET", "/versions").status_code == 200


def test_load_activate_unload(admin, shard):
    listed = admin("GET", "/versions").json()
    assert listed["active"] == "100"
    assert [(v["name"], v["rows"], v["active"], v["state"]) for v in listed["versions"]] == [("100", 2, True, "loaded")]
    assert re.fullmatch("[0-9a-f]{32}", listed["versions"][0]["checksum"])
    assert listed["versions"][0]["memory_bytes"] > 0

    started = admin("POST", "/versions", {"path": "files/101", "name": "101"})
    assert (started.status_code, started.json()["name"]) == (202, "101")
    found = admin.wait("101", "loaded")
    assert (found["rows"], found["active"]) == (1, False)
    assert admin("POST", "/versions/101/activate").json() == {"active": "101"}
    assert shard.active == "101"
    assert admin("DELETE", "/versions/101").status_code == 409
    assert admin("DELETE", "/versions/100").status_code == 200
    assert admin("DELETE", "/versions/100").status_code == 404
    assert admin("GET", "/versions/100").status_code == 404
    assert admin("POST", "/versions/100/activate").status_code == 404


def test_a_load_can_activate_and_go_on_top_of_another(admin, shard):
    admin("POST", "/versions", {"path": "files/102", "name": "102", "base": "100", "activate": True})
    admin.wait("102", "loaded")
    assert shard.active == "102"


def test_a_load_that_fails_says_why_and_may_be_tried_again(admin, files, shard):
    assert admin("POST", "/versions", {"path": "files/103", "name": "103"}).status_code == 202
    assert "no files under files/103" in admin.wait("103", "failed")["error"]
    assert admin("POST", "/versions", {"path": "x", "name": "104", "base": "nothing"}).status_code == 202
    assert "'nothing' is not loaded" in admin.wait("104", "failed")["error"]
    files.versions["103"] = {1: (1.0, 1.0)}
    assert admin("POST", "/versions", {"path": "files/103", "name": "103"}).status_code == 202
    admin.wait("103", "loaded")
    assert shard.active == "100"


def test_a_load_under_way_is_shown_and_not_doubled(admin, files):
    running, release = threading.Event(), threading.Event()
    files.before_load = lambda: (running.set(), release.wait(10))
    try:
        admin("POST", "/versions", {"path": "files/101", "name": "101"})
        assert running.wait(10)
        admin("POST", "/versions", {"path": "files/102", "name": "102"})
        assert admin("GET", "/versions/101").json()["state"] == "loading"
        assert admin("GET", "/versions/102").json()["state"] == "queued"
        assert admin("POST", "/versions", {"path": "files/101", "name": "101"}).status_code == 409
        assert admin("GET", "/versions").json()["active"] == "100"
    finally:
        release.set()
    admin.wait("102", "loaded")
    assert admin("POST", "/versions", {"path": "files/101", "name": "101"}).status_code == 409


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"path": "x"},
        {"path": 5, "name": "x"},
        {"path": "x", "name": ""},
        {"path": "x", "name": "a\nb"},
        {"path": "x", "name": "y", "base": 1},
        {"path": "x", "name": "y", "activate": "yes"},
        {"path": "x", "name": "y", "force": True},
        [],
    ],
)
def test_loads_that_are_not_understood(admin, files, body):
    answer = admin("POST", "/versions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert files.loads == 0


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/nothing"), ("DELETE", "/versions"), ("POST", "/versions/100/fly")]
)
def test_paths_that_are_not_there(admin, method, path):
    assert admin(method, path).status_code == 404


def test_bodies_that_are_not_taken(admin):
    post = {"url": admin.url + "/versions", "timeout": 5, "headers": admin.headers | JSON}
    assert requests.post(**post, data=b"{").status_code == 400
    assert requests.post(**post, data=b"x" * 70_000).status_code == 400
    assert requests.post(**post, data=iter([b"{}"])).status_code == 400


def test_ready_follows_the_active_version(start):
    server = start()
    with AdminServer(server) as http:
        admin = Admin(http)
        assert (admin("GET", "/ready").status_code, admin("GET", "/health").status_code) == (503, 200)


def test_drain_ends_the_server_and_reports_it(shard):
    drained = threading.Event()
    with AdminServer(shard, token=TOKEN, on_drained=drained.set) as server:
        admin = Admin(server)
        assert admin("POST", "/drain", {"within_s": "soon"}).status_code == 400
        assert admin("POST", "/drain", {"within_s": 1}).status_code == 202
        assert admin("POST", "/drain", {"within_s": 1}).status_code == 409
        assert drained.wait(10)
        assert admin("GET", "/ready").status_code == 503


def test_stats_and_metrics(admin, shard):
    url = f"http://127.0.0.1:{shard.port}/DictService/seek"
    for keys in ([1, 2], [1], []):
        requests.post(url, json={"keys": keys}, timeout=5)
    requests.post(url, data="{", timeout=5)
    stats = admin("GET", "/stats").json()
    assert (stats["requests"], stats["errors"], stats["keys"], stats["missing_keys"]) == (4, 1, 3, 1)

    answer = admin("GET", "/metrics")
    assert answer.headers["Content-Type"] == "text/plain"
    samples: dict[str, float] = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            name, number = line.rsplit(" ", 1)
            assert name not in samples
            samples[name] = float(number)
    assert samples["cloudedge_cube_requests_total"] == 4
    assert samples["cloudedge_cube_missing_keys_total"] == 1
    buckets = [(name, n) for name, n in samples.items() if name.startswith("cloudedge_cube_request_seconds_bucket")]
    assert buckets[0][0].endswith('{le="1e-06"}')
    assert buckets[-1][0].endswith('{le="+Inf"}')
    assert [n for _, n in buckets] == sorted(n for _, n in buckets)
    assert buckets[-1][1] == samples["cloudedge_cube_request_seconds_count"] == 4
    checksum = shard.versions()[0].checksum
    labels = f'{{version="100",checksum="{checksum}"}}'
    assert samples["cloudedge_cube_version_active" + labels] == 1
    assert samples["cloudedge_cube_version_rows" + labels] == 2
    assert samples["cloudedge_cube_ready"] == 1
    assert samples["process_resident_memory_bytes"] > 1_000_000
    for line in answer.text.splitlines():
        assert line.startswith("# ") or re.fullmatch(r'[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+', line), line
