"""The lab as a server: what it keeps, who may come, what it counts, and how badly it can behave."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import requests

from cloudedge.edge_bie.lab import Faults, Lab
from cloudedge.edge_bie.lab.ports._requests import LIMITS
from cloudedge.errors import ConfigError, Conflict, InputError
from tests.edge_bie.lab.transcript import app, model

pytestmark = pytest.mark.parts


def put(lab, path, body):
    return requests.put(lab.admin_url + path, json=body, timeout=10)


def test_a_restart_knows_what_was_answered(tmp_path):
    with Lab(tmp_path) as lab:
        requests.post(f"{lab.admin_url}/v1/nodes", json={"name": "n1", "labels": {"a": "b"}}, timeout=10)
        requests.post(f"{lab.admin_url}/v1/apps", json=app("a1", selector="a=b"), timeout=10)
        before = requests.get(f"{lab.admin_url}/v1/nodes/n1", timeout=10).json()
    with Lab(tmp_path) as lab:
        assert requests.get(f"{lab.admin_url}/v1/nodes/n1", timeout=10).json() == before
        # What refers to what is known again, too.
        assert put(lab, "/v1/nodes/n1", {"labels": {}}).ok
        assert requests.get(f"{lab.admin_url}/v1/nodes/n1", timeout=10).json()["desire"]["apps"] == []


def start(tmp_path, *options):
    command = [sys.executable, "-m", "cloudedge", "edge", "lab", "--state", str(tmp_path / "state"), "--json"]
    ports = ["--admin", ":0", "--sync", ":0", "--objects", ":0"]
    process = subprocess.Popen([*command, *ports, *options], stdout=subprocess.PIPE, text=True)
    lines = ""
    while "}" not in lines:
        line = process.stdout.readline()
        assert line, "it ended"
        lines += line
    return process, json.loads(lines)


def test_a_killed_lab_has_lost_nothing_it_answered(tmp_path):
    process, where = start(tmp_path)
    done = []
    try:
        for number in range(30):
            body = {"name": f"c-{number:02}"}
            assert requests.post(f"{where['admin']}/v1/configs", json=body, timeout=10).ok
            done.append(body["name"])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    process, where = start(tmp_path)
    try:
        found = requests.get(f"{where['admin']}/v1/configs", timeout=10).json()["items"]
        assert sorted(item["name"] for item in found) == done
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_beyond_loopback_a_token_is_needed(tmp_path):
    with pytest.raises(ConfigError, match="without a token"):
        Lab(tmp_path, sync="0.0.0.0:0")
    with pytest.raises(ConfigError, match="not an address"):
        Lab(tmp_path, sync="nowhere")
    with Lab(tmp_path, token="geheim") as lab:
        (lab.objects / "f").write_bytes(b"x")
        assert requests.get(f"{lab.admin_url}/health", timeout=10).ok
        for url in (f"{lab.admin_url}/v1/apps", f"{lab.admin_url}/_lab/faults", f"{lab.objects_url}/f"):
            assert requests.get(url, timeout=10).status_code == 401
            assert requests.get(url, headers={"Authorization": "Bearer geheim"}, timeout=10).ok
        assert requests.post(f"{lab.sync_url}/v1/sync/report", json={}, timeout=10).status_code == 401


def test_a_port_in_use_is_said(tmp_path):
    with Lab(tmp_path / "a") as first:
        port = first.admin_url.rpartition(":")[2]
        with (
            pytest.raises(Conflict, match=f"cannot listen on 127.0.0.1:{port}: Address already in use$"),
            Lab(tmp_path / "b", admin=f":{port}"),
        ):
            pass


def test_objects_have_ranges_and_are_counted(tmp_path):
    with Lab(tmp_path) as lab:
        (lab.objects / "sha256").mkdir()
        data = os.urandom(1 << 20)
        (lab.objects / "sha256/abc").write_bytes(data)
        (tmp_path / "secret").write_text("not yours")
        url = f"{lab.objects_url}/sha256/abc"
        named = {"common-name": f"{lab.namespace}.n1"}
        whole = requests.get(url, headers=named, timeout=10)
        assert (whole.content, whole.headers["Accept-Ranges"]) == (data, "bytes")
        tag = whole.headers["ETag"]
        part = requests.get(url, headers={**named, "Range": "bytes=1000-", "If-Range": tag}, timeout=10)
        assert (part.status_code, part.content) == (206, data[1000:])
        assert part.headers["Content-Range"] == f"bytes 1000-{len(data) - 1}/{len(data)}"
        changed = requests.get(url, headers={**named, "Range": "bytes=1000-", "If-Range": '"x"'}, timeout=10)
        assert (changed.status_code, len(changed.content)) == (200, len(data))
        for wanted, expected in (("bytes=0-0", data[:1]), ("bytes=-5", data[-5:]), ("bytes=5-9", data[5:10])):
            assert requests.get(url, headers={"Range": wanted}, timeout=10).content == expected
        beyond = requests.get(url, headers={"Range": f"bytes={len(data)}-"}, timeout=10)
        assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{len(data)}")
        head = requests.head(url, timeout=10)
        assert (head.headers["Content-Length"], head.content) == (str(len(data)), b"")
        for path in ("/../lab.db", "/%2e%2e/lab.db", "/sha256", "/none", "/\0"):
            assert requests.get(lab.objects_url + path, timeout=10).status_code == 404
        assert requests.post(url, timeout=10).status_code == 405
        traffic = requests.get(f"{lab.admin_url}/_lab/traffic", timeout=10).json()
        assert traffic["clients"] == {"n1": 3 * len(data) - 1000, "127.0.0.1": 11}
        assert traffic["requests"] == {"n1": 3, "127.0.0.1": 3}
        assert lab.traffic() == traffic["clients"]
        requests.delete(f"{lab.admin_url}/_lab/traffic", timeout=10)
        assert lab.traffic() == {}


def test_requests_are_counted_by_route(tmp_path):
    with Lab(tmp_path) as lab:
        for name in ("c1", "c2"):
            requests.get(f"{lab.admin_url}/v1/configs/{name}", headers={"x-bce-request-id": name}, timeout=10)
        found = requests.get(f"{lab.admin_url}/_lab/requests", timeout=10).json()
        assert found["counts"] == {"admin GET /v1/configs/NAME": 2}
        assert [request["requestId"] for request in found["requests"]] == ["c1", "c2"]


def talk(url, data):
    """Send bytes and return what comes back until the other side hangs up."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(data)
        found = b""
        while chunk := sock.recv(65536):
            found += chunk
    return found


def test_nonsense_and_too_much_are_refused(tmp_path):
    with Lab(tmp_path) as lab:
        url = lab.admin_url
        assert b" 400 " in talk(url, b"nonsense\r\n\r\n")
        assert b" 431 " in talk(url, b"GET / HTTP/1.1\r\nA: " + b"x" * 40_000 + b"\r\n\r\n")
        assert b" 413 " in talk(url, b"POST /v1/configs HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        two = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 2 + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
        assert talk(url, two).count(b'{"success":true}') == 3
        assert requests.get(f"{url}/health", timeout=10).ok


def outcome(lab, number):
    try:
        return requests.put(
            f"{lab.admin_url}/v1/configs/c1", json=model("c1", md5=f"{number:032x}"), timeout=10
        ).status_code
    except requests.ConnectionError:
        return 0


def test_faults_come_from_a_seed(tmp_path):
    seen = []
    for run in ("a", "b"):
        with Lab(tmp_path / run) as lab:
            requests.post(f"{lab.admin_url}/v1/configs", json=model("c1"), timeout=10)
            put(lab, "/_lab/faults", {"seed": 3, "error": 0.2, "drop": 0.2, "lost_answer": 0.1})
            seen.append([outcome(lab, number) for number in range(40)])
            happened = requests.get(f"{lab.admin_url}/_lab/faults", timeout=10).json()["happened"]
            assert happened.keys() == {"error", "drop", "lost_answer"}
            requests.delete(f"{lab.admin_url}/_lab/faults", timeout=10)
            assert outcome(lab, 99) == 200
    assert seen[0] == seen[1]
    assert {0, 200, 500} == set(seen[0])


def test_a_lost_write_is_answered_and_not_there(tmp_path):
    with Lab(tmp_path, faults=Faults(lost_write=1, delay=0, error=0, drop=0, lost_answer=0, duplicate=0)) as lab:
        requests.delete(f"{lab.admin_url}/_lab/faults", timeout=10)
        requests.post(f"{lab.admin_url}/v1/nodes", json={"name": "n1"}, timeout=10)
        requests.post(f"{lab.admin_url}/v1/apps", json=app("a1", selector="a=b"), timeout=10)
        put(lab, "/_lab/faults", {"lost_write": 1})
        assert put(lab, "/v1/nodes/n1", {"labels": {"a": "b"}}).json()["labels"]["a"] == "b"
        assert requests.post(f"{lab.admin_url}/v1/configs", json={"name": "c1"}, timeout=10).ok
        requests.delete(f"{lab.admin_url}/_lab/faults", timeout=10)
        assert "a" not in requests.get(f"{lab.admin_url}/v1/nodes/n1", timeout=10).json()["labels"]
        assert requests.get(f"{lab.admin_url}/v1/configs/c1", timeout=10).status_code == 404
        assert put(lab, "/v1/nodes/n1", {"labels": {"a": "b"}}).ok
        assert len(requests.get(f"{lab.admin_url}/v1/nodes/n1", timeout=10).json()["desire"]["apps"]) == 1


def test_a_node_can_lose_its_apps_and_keep_its_labels(tmp_path):
    with Lab(tmp_path) as lab:
        requests.post(f"{lab.admin_url}/v1/nodes", json={"name": "n1"}, timeout=10)
        requests.post(f"{lab.admin_url}/v1/apps", json=app("a1", selector="a=b"), timeout=10)
        put(lab, "/_lab/faults", {"lost_desire": 1})
        assert put(lab, "/v1/nodes/n1", {"labels": {"a": "b"}}).ok
        requests.delete(f"{lab.admin_url}/_lab/faults", timeout=10)
        node = requests.get(f"{lab.admin_url}/v1/nodes/n1", timeout=10).json()
        assert (node["labels"]["a"], node["desire"]["apps"]) == ("b", [])
        assert put(lab, "/v1/nodes/n1", {"labels": {"a": "b"}}).ok
        assert len(requests.get(f"{lab.admin_url}/v1/nodes/n1", timeout=10).json()["desire"]["apps"]) == 1


def test_downloads_are_cut_at_random_bytes(tmp_path):
    with Lab(tmp_path) as lab:
        data = os.urandom(300_000)
        (lab.objects / "f").write_bytes(data)
        put(lab, "/_lab/faults", {"cut": 0.8, "seed": 1})
        have = b""
        attempts = 0
        while len(have) < len(data):
            attempts += 1
            headers = {"Range": f"bytes={len(have)}-"} if have else {}
            with requests.get(f"{lab.objects_url}/f", headers=headers, stream=True, timeout=10) as answer:
                try:
                    for chunk in answer.iter_content(1000):
                        have += chunk
                except requests.RequestException:
                    pass
        assert have == data
        assert attempts > 1
        assert sum(lab.traffic().values()) >= len(data)


@pytest.mark.parametrize("body", [{"cut": 2}, {"nonsense": 1}, [], {"cut": "x"}, {"longest_delay_s": 1e9}])
def test_faults_that_make_no_sense_are_refused(tmp_path, body):
    with pytest.raises(InputError):
        Faults.from_json(body)
    with Lab(tmp_path) as lab:
        assert put(lab, "/_lab/faults", body).status_code == 400
        assert requests.get(f"{lab.admin_url}/_lab/faults", timeout=10).json() == {"on": False}
        assert put(lab, "/_lab/settings", {"rate": 0}).status_code == 400
        assert requests.get(f"{lab.admin_url}/_lab/none", timeout=10).status_code == 404


def test_many_writers_at_once_are_all_kept(tmp_path):
    with Lab(tmp_path) as lab:

        def write(number):
            return requests.post(f"{lab.admin_url}/v1/configs", json={"name": f"c-{number}"}, timeout=30).status_code

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(write, range(100))) == {200}
    with Lab(tmp_path) as lab:
        assert requests.get(f"{lab.admin_url}/v1/configs", timeout=10).json()["total"] == 100


def test_a_report_is_written_down_later(tmp_path):
    with Lab(tmp_path) as lab:
        requests.post(f"{lab.admin_url}/v1/nodes", json={"name": "n1"}, timeout=10)
        named = {"common-name": f"{lab.namespace}.n1"}
        requests.post(f"{lab.sync_url}/v1/sync/report", json={"apps": []}, headers=named, timeout=10)
    with Lab(tmp_path) as lab:
        assert requests.get(f"{lab.admin_url}/v1/nodes/n1", timeout=10).json()["ready"] == 1


def test_closing_does_not_wait_for_clients(tmp_path):
    began = time.monotonic()
    with Lab(tmp_path) as lab:
        sock = socket.create_connection(("127.0.0.1", int(lab.admin_url.rpartition(":")[2])))
    sock.close()
    assert time.monotonic() - began < 9


def test_a_silent_client_is_hung_up_on(tmp_path, monkeypatch):
    limits = replace(LIMITS, idle_timeout_s=0.1, body_timeout_s=0.1)
    monkeypatch.setattr("cloudedge.edge_bie.lab._lab.LIMITS", limits)
    with Lab(tmp_path) as lab:
        assert talk(lab.admin_url, b"") == b""
        assert talk(lab.admin_url, b"GET /health HTTP/1.1\r\nHost: x\r\n").startswith(b"HTTP/1.1 408 ")
