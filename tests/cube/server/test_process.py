"""Servers as processes: started by the command line, killed, drained, restarted, while clients go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import requests
from click.testing import Result
from typer.testing import CliRunner

from cloudedge.admin import AdminHttpClient
from cloudedge.cli.cube_net import app
from cloudedge.cube.client._client import Client, ClientConfig
from cloudedge.cube.server import find_version
from cloudedge.errors import ConfigError, Conflict, InputError, NotFound, Unavailable
from tests.cube import plain_wire as plain
from tests.cube.memory_versions import BIG, make_version, value

pytestmark = pytest.mark.parts

COMMAND = [sys.executable, "-c", "from cloudedge.cli.cube_net import app; app()"]


def write_part(path: Path, rows: dict[int, bytes]) -> None:
    """Write a part's files by hand."""
    path.mkdir(parents=True)
    index, data = b"", b""
    for key, content in rows.items():
        index += struct.pack("<QQ", key, len(data))
        data += struct.pack("<I", len(content) + 4) + content
    (path / "index.0").write_bytes(index)
    (path / "data.0").write_bytes(data)
    (path / "index.n").write_bytes(struct.pack("<IIIQ", 0, len(rows), 1, len(index)))
    (path / "data.n").write_bytes(struct.pack("<II", 1, len(data)))


class Process:
    def __init__(self, directory: Path, *options: str, port: int = 0, env: dict[str, str] | None = None) -> None:
        command = [*COMMAND, "serve", str(directory), "--json", "--port", str(port), "--admin-port", "0", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.started = self._read()
        self.address = self.started["address"]
        self.port = int(self.address.rpartition(":")[2])
        self.admin = f"http://{self.started['admin']}"

    def _read(self) -> dict[str, str]:
        lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("}"):
                return json.loads("".join(lines))
        raise AssertionError(f"did not start: {self.process.communicate()[1]}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_part(tmp_path / "data" / "100", {1: value(1.0, 2.0), BIG: value(3.0, -1.5)})
    (tmp_path / "data" / "VERSION").write_text("100\n")
    return tmp_path / "data"


@pytest.fixture
def serve(data: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def serve(*options: str, directory: Path | None = None, **more: object) -> Process:
        started.append(Process(directory or data, *options, **more))
        return started[-1]

    yield serve
    for one in started:
        one.stop()


def test_serve_what_the_version_file_says(serve):
    one = serve()
    assert one.started["version"] == "100"
    with plain.Peer(one.port) as peer:
        response = peer.call(plain.request(bytes.fromhex("08010802 1001")))
    assert (response.version, response.values) == (b"100", [(0, value(1.0, 2.0)), (0xFFFFFFFF, b"")])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--version", "nothing"], InputError),
        (["--port", "99999"], ConfigError),
        (["--host", "no-such-host.invalid", "--open"], ConfigError),
        (["--host", "0.0.0.0"], ConfigError),
        (["--admin-host", "0.0.0.0"], ConfigError),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(data, options, error):
    command = ["serve", str(data), "--port", "0", "--admin-port", "0", *options]
    assert isinstance(CliRunner().invoke(app, command).exception, error)


def test_beyond_loopback_somebody_has_to_say_that_anybody_may_ask(serve):
    with plain.Peer(serve("--host", "0.0.0.0", "--open").port) as peer:
        assert peer.call(plain.request(bytes.fromhex("08010802 1001"))).version == b"100"


def test_which_version_a_directory_says(data):
    assert find_version(data) == (data / "100", "100")
    assert find_version(data, "100") == (data / "100", "100")
    assert find_version(data / "100") == (data / "100", "")
    assert find_version(data / "100", "7") == (data / "100", "7")
    with pytest.raises(InputError, match="no version '101'"):
        find_version(data, "101")
    (data / "VERSION").write_text("\n")
    with pytest.raises(InputError, match="empty"):
        find_version(data)
    with pytest.raises(InputError, match="not a directory"):
        find_version(data / "nothing")


def test_a_port_that_is_taken(start):
    taken = start({1: (1.0,)})
    with pytest.raises(Conflict, match="Address already in use"):
        start({1: (1.0,)}, port=taken.port)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_get_stat_and_bench(start):
    one = start({1: (1.0, 2.0), BIG: (3.0, -1.5)})
    got = json.loads(call("get", "1", str(BIG), "-s", one.address, "--json").stdout)
    assert got == {
        "version": "100",
        "rows": [
            {"key": 1, "found": True, "value": [1.0, 2.0]},
            {"key": BIG, "found": True, "value": [3.0, -1.5]},
        ],
    }
    missing = call("get", "1", "2", "-s", one.address)
    assert missing.stdout == "1\t1 2\n2\t-\n"
    assert isinstance(missing.exception, NotFound)
    assert isinstance(call("get", "x", "-s", one.address).exception, InputError)

    stat = json.loads(call("stat", "-s", one.address, "--json").stdout)["servers"][0]
    assert (stat["version"], stat["vars"]["total_key_num"]) == ("100", 4)
    assert call("stat", "-s", one.address).stdout == f"{one.address}\t100\t4\t4\t1\n"
    assert isinstance(call("stat", "-s", "127.0.0.1:1").exception, Unavailable)

    bench = ("bench", "-s", one.address, "--seconds", "0.3", "--keys", "2", "--batch", "4", "--json")
    for how in ((), ("--raw",)):
        row = json.loads(call(*bench, *how).stdout)
        assert row["keys_per_s"] > 0
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert 0.3 < row["missing_share"] < 0.7, "of keys 0 and 1, one is there"
        assert isinstance(call("bench", "-s", "127.0.0.1:1", "--seconds", "0.1", *how).exception, Unavailable)
    assert isinstance(call("bench", "--raw", "-s", one.address, "-s", one.address).exception, InputError)


def test_bench_asks_all_shards_and_counts_what_went_wrong(start, tmp_path):
    shards = [start({key: (1.0,) for key in range(100) if key % 2 == shard}) for shard in range(2)]
    conf = tmp_path / "cube.conf"
    nodes = [{"ip": "127.0.0.1", "port": shard.port} for shard in shards]
    table = {"dict_name": "d", "shard": 2, "dup": 1, "timeout": 5000, "retry": 0, "backup_request": 0, "nodes": nodes}
    conf.write_text(json.dumps([table | {"type": "ipport"}]))
    bench = ("bench", "--conf", str(conf), "--seconds", "0.3", "--keys", "100", "--connections", "3", "--json")
    row = json.loads(call(*bench).stdout)
    assert (row["shards"], row["failed"], row["mixed"], row["missing_share"]) == (2, 0, 0, 0)
    shards[1].add(make_version("101", {1: (2.0,)}))
    shards[1].activate("101")
    assert json.loads(call(*bench).stdout)["mixed"] > 0
    assert shards[0].stats()["requests"] == pytest.approx(shards[1].stats()["requests"], abs=20)
    shards[1].close()
    assert "no call was answered: shard 1" in str(call(*bench).exception)
    assert isinstance(call("bench", "--conf", str(conf), "--table", "none").exception, ConfigError)
    old = call("bench", "--conf", str(conf), "--dict", "none")
    assert isinstance(old.exception, ConfigError)
    assert "--dict is now --table" in old.stderr


def test_sigterm_drains_and_ends_cleanly(serve):
    one = serve("--drain-s", "5")
    half = plain.request(plain.keys(1))
    with plain.Peer(one.port) as idle, plain.Peer(one.port) as busy:
        assert idle.call(half).code == 0
        busy.send(half[:20])
        time.sleep(0.1)
        one.process.send_signal(signal.SIGTERM)
        assert idle.closed(), "what rests is closed"
        with pytest.raises(OSError, match="refused"):  # noqa: PT012 - it takes a moment to stop listening
            for _ in range(100):
                socket.create_connection(("127.0.0.1", one.port), 5).close()
                time.sleep(0.02)
        busy.send(half[20:])
        assert plain.parse_response(busy.read_frame()).values == [(0, value(1.0, 2.0))], "what had begun is finished"
        assert busy.closed()
    assert one.process.wait(10) == 0


def test_a_client_that_never_stops_is_told_and_then_closed(serve):
    one = serve("--drain-s", "0.6")
    ask = plain.request(plain.keys(1))
    codes = set()
    with plain.Peer(one.port) as peer:
        peer.call(ask)
        one.process.send_signal(signal.SIGTERM)
        try:
            while True:
                codes.add(peer.call(ask).code)
        except (EOFError, ConnectionError):
            pass
    assert codes == {0, 2003}
    assert one.process.wait(10) == 0


def test_http_clients_are_asked_to_leave(serve):
    one = serve("--drain-s", "5")
    with requests.Session() as session:
        session.get(f"http://{one.address}/health", timeout=5)
        # Within the quiet time that a drain gives a connection that was just used.
        one.process.send_signal(signal.SIGTERM)
        for _ in range(200):
            answer = session.get(f"http://{one.address}/health", timeout=5)
            if answer.status_code == 503:
                break
        assert answer.headers["Connection"] == "close"
        assert answer.headers["x-bd-error-code"] == "2003"
    assert one.process.wait(10) == 0


class Load:
    """Clients that read all the time and remember what went wrong."""

    def __init__(self, addresses: list[str], threads: int = 4) -> None:
        self.failures: list[str] = []
        self.calls = 0
        self._stop = threading.Event()
        self._client = Client(ClientConfig([addresses], timeout_ms=10_000, retry=2))
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        keys = np.array([1, BIG, 1], np.uint64)
        while not self._stop.is_set():
            try:
                if not self._client.seek(keys).found.all():
                    self.failures.append("a row is missing")
            except Exception as error:  # noqa: BLE001 - any error is a failure here
                self.failures.append(repr(error))
            self.calls += 1

    def run_for(self, calls: int) -> None:
        goal = self.calls + calls
        deadline = time.monotonic() + 20
        while self.calls < goal:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def __enter__(self) -> Load:  # noqa: PYI034 - typing.Self is not in 3.10
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close()


def test_killing_a_replica_fails_no_call(serve):
    replicas = [serve(), serve()]
    with Load([one.address for one in replicas]) as load:
        load.run_for(200)
        replicas[0].process.kill()
        load.run_for(500)
        back = serve(port=replicas[0].port)
        load.run_for(200)
        replicas[1].process.kill()
        load.run_for(500)
    assert load.failures == []
    assert back.process.poll() is None


def test_restarting_replicas_one_after_the_other_fails_no_call(serve):
    replicas = [serve("--drain-s", "1"), serve("--drain-s", "1")]
    with Load([one.address for one in replicas]) as load:
        load.run_for(100)
        for one in replicas:
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(10) == 0
            load.run_for(100)
            serve(port=one.port)
            load.run_for(100)
    assert load.failures == []


def test_limits_are_options(serve):
    one = serve("--max-keys", "3", "--max-connections", "50", "--max-body-mb", "1", "--max-held-mb", "8")
    with plain.Peer(one.port) as peer:
        assert peer.call(plain.request(plain.keys(1, 2, 3))).code == 0
        assert peer.call(plain.request(plain.keys(1, 2, 3, 4))).code != 0


def test_the_admin_api_of_a_process(serve, data):
    write_part(data / "101", {1: value(9.0, 9.0)})
    one = serve(env={"CLOUDEDGE_CUBE_TOKEN": "secret"})
    assert requests.get(one.admin + "/versions", timeout=5).status_code == 401
    headers = {"Authorization": "Bearer secret"}
    body = {"path": str(data / "101"), "name": "101", "activate": True}
    assert requests.post(one.admin + "/versions", json=body, headers=headers, timeout=5).status_code == 202
    deadline = time.monotonic() + 10
    while requests.get(one.admin + "/versions", headers=headers, timeout=5).json()["active"] != "101":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert requests.post(one.admin + "/drain", json={"within_s": 2}, headers=headers, timeout=5).status_code == 202
    assert one.process.wait(10) == 0


def test_a_disk_that_is_gone_stops_loads_and_nothing_else(serve, data):
    write_part(data / "101", {1: value(9.0, 9.0)})
    (data / "101" / "data.0").write_bytes(b"\x0c")
    one = serve()
    ask = plain.request(plain.keys(1))
    admin = AdminHttpClient(one.admin, keep_alive=False)
    with plain.Peer(one.port) as peer:
        for name in ("101", "102"):  # cut off; then not there at all
            body = {"path": str(data / name), "name": name, "activate": True}
            admin.call("POST", "/versions", body)
            deadline = time.monotonic() + 10
            while (state := admin.call("GET", f"/versions/{name}"))["state"] != "failed":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert name in state["error"]
            shutil.rmtree(data, ignore_errors=True)
        assert peer.call(ask).values == [(0, value(1.0, 2.0))]
