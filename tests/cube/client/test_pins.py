"""Pinned reads: a request is answered from the version it names, or refused; switches disturb nobody."""

from __future__ import annotations

import gc
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
import requests

from cloudedge import _core
from cloudedge.cube.client import _client
from tests.cube import plain_wire as plain
from tests.cube.memory_versions import value

pytestmark = pytest.mark.parts

PIN = 1001


def pinned(version: bytes, *keys: int) -> bytes:
    return plain.request(plain.keys(*keys) + plain.text(PIN, version) + plain.number(2, 1))


def test_both_versions_answer_side_by_side(shard, files):
    files.versions["101"] = {1: (9.0, 9.0)}
    shard.load("files/101", "101")
    with plain.Peer(shard.port) as peer:
        old, new = peer.call(pinned(b"100", 1)), peer.call(pinned(b"101", 1))
        assert (old.version, old.values) == (b"100", [(0, value(1.0, 2.0))])
        assert (new.version, new.values) == (b"101", [(0, value(9.0, 9.0))])
        assert peer.call(plain.request(bytes.fromhex("08011001"))).version == b"100"
        shard.activate("101")
        assert peer.call(plain.request(bytes.fromhex("08011001"))).version == b"101"
        assert peer.call(pinned(b"100", 1)).values == old.values
        shard.unload("100")
        assert peer.call(pinned(b"100", 1)).code == 10404


def test_an_unknown_version_is_an_error_and_never_an_empty_answer(shard):
    with plain.Peer(shard.port) as peer:
        for keys in ((1,), ()):
            response = peer.call(pinned(b"999", *keys))
            assert (response.code, response.payload) == (10404, b"")
            assert b'version "999" is not loaded here' in response.error
    answer = requests.post(
        f"http://127.0.0.1:{shard.port}/DictService/seek", json={"keys": [1], "version": "999"}, timeout=5
    )
    assert (answer.status_code, answer.headers["x-bd-error-code"]) == (404, "10404")


def test_pins_over_json(shard, files):
    files.versions["101"] = {1: (9.0, 9.0)}
    shard.load("files/101", "101")
    url = f"http://127.0.0.1:{shard.port}/DictService/seek"
    for version in ("100", "101"):
        answer = requests.post(url, json={"keys": [1], "version": version, "version_required": True}, timeout=5)
        assert answer.json()["version"] == version


def test_a_pin_on_an_unnamed_version(start):
    server = start({1: (1.0, 2.0)}, version="")
    with plain.Peer(server.port) as peer:
        assert peer.call(pinned(b"", 1)).version == b""
        assert peer.call(pinned(b"x", 1)).code == 10404


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Switching:
    """A server whose version changes while readers pin what is current and check that they see only that.

    Every second version is a delta on the one before, whose memory it shares and which goes before it.
    """

    ROWS, READERS = 2000, 32
    CHANGED = 200
    """Rows of a delta: few enough for an overlay, which is not merged into a table."""

    def __init__(self, server) -> None:
        self.server = server
        self.keys = np.arange(self.ROWS, dtype=np.uint64)
        self.current = 0
        self.loaded: set[int] = set()
        self.holds = [0] * self.READERS  # the oldest version each reader may still ask for
        self.reads = [0] * self.READERS
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(i,)) for i in range(self.READERS)]

    def switch_to(self, number: int) -> None:
        count = self.CHANGED if number % 2 else self.ROWS
        rows = np.full((count, 8), number, np.float32).view(np.uint8)
        if number % 2:
            none = np.empty(0, np.uint64)
            self._newest = _core.apply_delta(self._newest, self.keys[:count], rows, none, str(number))
        else:
            self._newest = _core.memory_version(str(number), self.keys, rows)
        self.server.add(self._newest)
        self.server.activate(str(number))
        self.loaded.add(number)
        self.current = number
        # A reader takes `current` and then says so; what is two behind is safe from the moment in between.
        self.unload(below=min(*self.holds, number - 2))

    def unload(self, below: int) -> None:
        for old in sorted(self.loaded):
            if old < below:
                self.server.unload(str(old))
                self.loaded.discard(old)

    def _read(self, number: int) -> None:
        config = _client.ClientConfig([[self.server.address]], timeout_ms=20_000)
        with _client.Client(config) as client:
            while not self._stop.is_set() and not self.failures:
                self.holds[number] = wanted = self.current
                try:
                    result = client.seek(self.keys[number :: self.READERS], pin=str(wanted))
                except Exception as error:  # noqa: BLE001 - any error is a failure here
                    self.failures.append(repr(error))
                    return
                mine = self.keys[number :: self.READERS]
                base = wanted - wanted % 2
                expected = np.where(mine < self.CHANGED, wanted, base)[:, None]
                if not (result.values == expected).all() or result.version != str(wanted):
                    self.failures.append(f"asked for {wanted}, got {np.unique(result.values)}")
                self.reads[number] += 1

    def __enter__(self) -> Switching:  # noqa: PYI034 - typing.Self is not in 3.10
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_a_thousand_switches_under_load(start):
    switches = 1000
    switching = Switching(start(threads=2))
    switching.switch_to(0)
    with switching:
        early = 0
        for number in range(1, switches + 1):
            switching.switch_to(number)
            if number == switches // 5:
                gc.collect()
                early = resident_bytes()
            if switching.failures:
                break
    assert not switching.failures, switching.failures[:3]
    assert min(switching.reads) > 0
    switching.unload(below=switches)
    gc.collect()
    assert resident_bytes() - early < 30_000_000, "versions that are gone give their memory back"
