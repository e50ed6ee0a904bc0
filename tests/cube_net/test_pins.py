"""Pinned reads: a request is answered from the version it names, or refused; switches disturb nobody."""

from __future__ import annotations

import gc
import resource
import threading
from pathlib import Path

import numpy as np
import plain
import requests
from conftest import value

from cloudedge import _core
from cloudedge.cube import _client

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


def test_a_thousand_switches_under_load(start):
    """Readers pin what is current and see only that; a version goes once no reader can still name it."""
    switches, readers, rows = 1000, 32, 2000
    keys = np.arange(rows, dtype=np.uint64)

    def version(number: int) -> _core.Version:
        return _core.memory_version(
            str(number), keys, np.full((rows, 8), number, np.float32).view(np.uint8)
        )

    server = start(threads=2)
    server.add(version(0))
    server.activate("0")
    current = 0
    holds = [0] * readers  # the oldest version each reader may still ask for
    stop = threading.Event()
    failures: list[str] = []
    reads = [0] * readers

    def read(number: int) -> None:
        config = _client.ClientConfig([[server.address]], timeout_ms=20_000)
        with _client.Client(config) as client:
            while not stop.is_set() and not failures:
                holds[number] = wanted = current
                try:
                    result = client.seek(keys[number::readers], pin=str(wanted))
                except Exception as error:  # noqa: BLE001 - any error is a failure here
                    failures.append(repr(error))
                    return
                if not (result.values == wanted).all() or result.version != str(wanted):
                    failures.append(f"asked for {wanted}, got {np.unique(result.values)}")
                reads[number] += 1

    threads = [threading.Thread(target=read, args=(i,)) for i in range(readers)]
    for thread in threads:
        thread.start()
    loaded = {0}
    early = 0
    try:
        for number in range(1, switches + 1):
            server.add(version(number))
            server.activate(str(number))
            loaded.add(number)
            current = number
            # A reader takes `current` and then says so; two behind is safe from the moment in between.
            for old in [v for v in loaded if v < min(min(holds), number - 2)]:
                server.unload(str(old))
                loaded.discard(old)
            if number == switches // 5:
                gc.collect()
                early = resident_bytes()
            if failures:
                break
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[:3]
    assert min(reads) > 0
    for old in sorted(loaded)[:-1]:
        server.unload(str(old))
    gc.collect()
    assert resident_bytes() - early < 30_000_000, "versions that are gone give their memory back"
