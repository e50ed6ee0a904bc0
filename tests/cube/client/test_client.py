"""The client: what it sends, how it puts answers together, and what it makes of versions that differ."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from cloudedge import _core
from cloudedge.clock import ManualClock
from cloudedge.cube import CubeConf
from cloudedge.cube.client._client import Client, ClientConfig
from cloudedge.cube.client._errors import ShardUnavailable, UnknownVersion, VersionSkew
from cloudedge.errors import ConfigError, InputError, IntegrityError, Unavailable
from tests.cube import plain_wire as plain
from tests.cube.fake_server import Call, Dead, upstream
from tests.cube.memory_versions import table, value

pytestmark = pytest.mark.parts

# What goes over the wire


def test_the_request_is_upstreams_bytes(fake, client):
    server = fake(upstream({1: value(1.0, 2.0)}))
    result = client(server).seek([1, 2])
    assert server.calls[0].data == plain.request(bytes.fromhex("08010802 1001"))
    assert result.values.tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert result.found.tolist() == [True, False]
    assert (result.version, result.defaulted_share, result.failed_shards) == ("100", 0.0, ())


def test_a_pin_is_field_1001(fake, client):
    server = fake(upstream({1: value(1.0)}))
    client(server).seek([1], pin="100")
    assert server.calls[0].payload == bytes.fromhex("0801 1001 ca3e 03 313030")


def test_answers_in_pieces_and_with_unknown_fields(fake, client):
    def answer(call: Call) -> bytes:
        payload = plain.text(1, plain.number(1, 0) + plain.text(2, value(1.0)) + plain.number(9, 1))
        payload += plain.text(2, b"100") + plain.text(50, b"later")
        meta = plain.text(2, b"") + plain.number(4, call.correlation) + plain.number(11, 7)  # error_code 0 left out
        return plain.frame(meta, payload)

    assert client(fake(answer)).seek([1]).values.tolist() == [[1.0]]


# Splitting and merging


def test_keys_go_to_their_shards_once_and_rows_come_back_in_order(fake, client):
    rows = {key: value(float(key)) for key in range(100)}
    shards = [fake(upstream(rows)) for _ in range(3)]
    keys = [5, 1, 5, 99, 0, 1, 64, 5]
    result = client(*shards).seek(keys)
    assert result.values[:, 0].tolist() == [float(key) for key in keys]
    for number, shard in enumerate(shards):
        asked = shard.calls[0].keys
        assert len(asked) == len(set(asked))
        assert all(key % 3 == number for key in asked)


def test_a_shard_without_keys_is_not_asked(fake, client):
    shards = [fake(upstream({0: value(0.0)})), fake(upstream({}))]
    client(*shards).seek([0, 2, 4])
    assert (len(shards[0].calls), len(shards[1].calls)) == (1, 0)


@pytest.mark.parametrize("shards", [1, 2, 7, 100])
def test_real_servers(start, client, shards):
    servers = [start(table(shards, number), threads=1) for number in range(shards)]
    generator = np.random.default_rng(shards)
    keys = generator.integers(0, 1200, 2600).astype(np.uint64)
    result = client(*servers).seek(keys)
    assert (result.found == (keys < 1000)).all()
    expected = np.where(keys < 1000, keys, 0).astype(np.float32)
    assert (result.values == np.stack([expected, -expected], 1)).all()


def test_large_answers(start, client):
    server = start({key: (float(key),) * 256 for key in range(5000)})
    keys = np.arange(5000, dtype=np.uint64)[::-1].copy()
    values = client(server).seek(keys).values
    assert values.shape == (5000, 256)
    assert (values == keys[:, None]).all()


def test_more_keys_than_a_server_takes_at_once_go_in_several_frames(start, client):
    rows = 300_000
    keys = np.random.default_rng(5).permutation(rows).astype(np.uint64)
    values = np.arange(rows, dtype="<f4").reshape(-1, 1)
    server = start()
    server.add(_core.memory_version("100", np.arange(rows, dtype=np.uint64), values.view(np.uint8)))
    server.activate("100")
    result = client(server, timeout_ms=60_000).seek(keys)
    assert result.found.all()
    assert (result.values[:, 0] == keys).all()
    assert server.stats()["requests"] > 1


def test_frames_of_one_shard_from_two_versions_are_a_mixture(fake, client):
    turn = itertools.count()
    shard = fake(lambda call: call.rows({}, b"100" if next(turn) % 2 else b"101"))
    with pytest.raises(VersionSkew, match="shard 0 has '100', shard 0 has '101'"):
        client(shard, on_version_skew="error", timeout_ms=60_000).seek(np.arange(40_000))


def test_replicas_that_are_away_use_up_no_attempts(start, client):
    """Any one that lives answers, however many refuse."""
    alive = start({1: (1.0,)})
    one = client([Dead(), Dead(), Dead(), alive], retry=0)
    for _ in range(8):
        assert one.seek([1]).found.all()
    with pytest.raises(ShardUnavailable) as caught:
        client([Dead(), Dead(), Dead()], retry=0).seek([1])
    assert len(caught.value.attempts) == 3


@pytest.mark.parametrize("hang_up", [lambda call: b"", lambda call: call.error(2003)])
def test_replicas_that_hang_up_or_stop_use_up_no_attempts(fake, start, client, hang_up):
    one = client([fake(hang_up), fake(hang_up), start({1: (1.0,)})], retry=0)
    for _ in range(6):
        assert one.seek([1]).found.all()


def test_replicas_with_too_much_to_do_use_up_attempts(fake, client):
    """Asking all of them would make it worse."""
    busy = [fake(lambda call: call.error(2004)) for _ in range(3)]
    with pytest.raises(ShardUnavailable) as caught:
        client(busy, retry=1).seek([1])
    assert len(caught.value.attempts) == 2


def test_no_keys(start, client):
    result = client(start({1: (1.0,)})).seek([])
    assert (result.values.shape, result.version) == ((0, 0), None)


@pytest.mark.parametrize("keys", [[1.5], ["1"], np.array([1.0]), np.array([[1]]), 5, [None]])
def test_keys_that_are_none(start, client, keys):
    with pytest.raises(InputError):
        client(start({1: (1.0,)})).seek(keys)


def test_keys_are_unsigned_and_negative_ones_their_complement(start, client):
    one = client(start({2**64 - 1: (7.0,), 2**63: (8.0,)}))
    assert one.seek([2**64 - 1, 2**63]).values[:, 0].tolist() == [7.0, 8.0]
    assert one.seek(np.array([-1])).values[:, 0].tolist() == [7.0]
    assert one.seek([-1]).values[:, 0].tolist() == [7.0]


def test_other_dtypes(start, client):
    one = client(start({1: (1.0, 2.0)}))
    assert one.seek([1], dtype=np.uint8).values.tobytes() == value(1.0, 2.0)
    assert one.seek([1], dtype="<f8").values.shape == (1, 1)
    with pytest.raises(IntegrityError, match="8 bytes"):
        one.seek([1], dtype=np.dtype("V3"))


def test_values_of_two_widths_are_refused(fake, client):
    server = fake(upstream({1: value(1.0), 2: value(1.0, 2.0)}))
    with pytest.raises(IntegrityError, match="key 2 has 8 bytes"):
        client(server).seek([1, 2])
    with pytest.raises(IntegrityError, match="key 1 has 4 bytes"):
        client(server, value_bytes=8).seek([1])


# Versions


def test_a_mixture_is_refused(fake, client):
    shards = [fake(upstream({0: value(0.0)}, b"100")), fake(upstream({1: value(1.0)}, b"101"))]
    for policy in ("error", "retry"):
        with pytest.raises(VersionSkew, match="shard 0 has '100', shard 1 has '101'") as caught:
            client(*shards, on_version_skew=policy).seek([0, 1])
        assert caught.value.versions == {0: "100", 1: "101"}
        assert isinstance(caught.value, Unavailable)


def test_a_mixture_is_settled_by_pins_where_servers_have_both(start, files, client):
    files.versions = {"101": {0: (5.0,), 1: (5.0,)}}
    shards = [start({number: (1.0,)}) for number in range(2)]
    for shard in shards:
        shard.load("x/101", "101")
    shards[1].activate("101")
    result = client(*shards).seek([0, 1])
    assert result.version in {"100", "101"}
    assert len(np.unique(result.values)) == 1
    with pytest.raises(VersionSkew):
        client(*shards, on_version_skew="error").seek([0, 1])


def test_a_mixture_is_settled_by_pins_although_a_shard_is_away_that_has_a_default(start, files, client):
    files.versions = {"101": {0: (5.0,), 1: (5.0,)}}
    shards = [start({number: (1.0,)}) for number in range(2)]
    for shard in shards:
        shard.load("x/101", "101")
    shards[1].activate("101")
    result = client(*shards, Dead(), on_missing_shard="default", default=-1.0).seek([0, 1, 2])
    assert result.version in {"100", "101"}
    assert (result.failed_shards, result.defaulted.tolist()) == ((2,), [False, False, True])
    assert result.values[0] == result.values[1] != -1.0
    assert result.values[2] == -1.0


def test_a_shard_that_had_answered_gets_no_default_to_settle_a_mixture(fake, client):
    """One that answers without a pin and dies of one: the mixture is refused, its row is not made up."""
    shards = [
        fake(upstream({0: value(0.0)}, b"100")),
        fake(lambda call: call.rows({1: value(1.0)}, b"101") if call.pin is None else b""),
    ]
    with pytest.raises(VersionSkew):
        client(*shards, on_missing_shard="default", default=-1.0).seek([0, 1])


def test_a_mixture_is_settled_by_waiting_where_servers_know_no_pins(fake, client):
    late = [0]

    def switching(call: Call) -> bytes:
        late[0] += 1
        return call.rows({1: value(1.0)}, b"100" if late[0] < 5 else b"101")

    shards = [fake(upstream({0: value(0.0)}, b"101")), fake(switching)]
    assert client(*shards).seek([0, 1]).version == "101"


def test_a_mixture_is_settled_within_the_callers_time(fake, client):
    shards = [fake(upstream({0: value(0.0)}, b"100")), fake(upstream({1: value(1.0)}, b"101"))]
    clock = ManualClock()
    with Client(ClientConfig([[each.address] for each in shards], timeout_ms=60_000), clock=clock) as one:
        before = clock.monotonic()
        with pytest.raises(VersionSkew):
            one.seek([0, 1], timeout_s=0.012)  # the second wait would end after it
        assert clock.monotonic() - before < 0.012
        with pytest.raises(VersionSkew):
            one.seek([0, 1])
        assert clock.monotonic() - before > 0.012


def test_a_pin_is_checked_where_servers_know_no_pins(fake, client):
    with pytest.raises(VersionSkew, match="version '99' was asked for: shard 0 has '100'"):
        client(fake(upstream({1: value(1.0)}))).seek([1], pin="99")


def test_an_unknown_pin_is_named(start, client):
    with pytest.raises(UnknownVersion, match="shard 0 does not have version '99'") as caught:
        client(start({1: (1.0,)})).seek([1], pin="99")
    assert (caught.value.shard, caught.value.version) == (0, "99")
    assert not caught.value.retry_helps


# Configuration and life


@pytest.mark.parametrize(
    "config",
    [
        {"shards": []},
        {"shards": [[]]},
        {"shards": ["127.0.0.1:1"]},
        {"shards": [["127.0.0.1"]]},
        {"shards": [["127.0.0.1:x"]]},
        {"shards": [["127.0.0.1:99999"]]},
        {"shards": [["a:1"]], "timeout_ms": 0},
        {"shards": [["a:1"]], "retry": -1},
        {"shards": [["a:1"]], "value_bytes": -1},
    ],
)
def test_configurations_that_are_refused(config):
    with pytest.raises(ConfigError):
        Client(ClientConfig(**config))


def write_conf(path, nodes, load_balancer="la"):
    table = {
        "dict_name": "dict",
        "shard": len(nodes),
        "dup": 1,
        "timeout": 700,
        "retry": 3,
        "backup_request": 50,
        "type": "ipport_list",
        "load_balancer": load_balancer,
        "nodes": [{"ipport_list": f"list://{replicas}"} for replicas in nodes],
    }
    path.write_text(json.dumps([table]))
    return path


def test_a_client_from_cube_conf(start, tmp_path):
    server = start({1: (1.0,)})
    conf = write_conf(tmp_path / "cube.conf", [f"{server.address},[::1]:1"])
    config = ClientConfig.from_table(CubeConf.from_file(conf)["dict"], on_missing_shard="default", value_bytes=4)
    assert config.shards == [[server.address, "[::1]:1"]]
    assert (config.timeout_ms, config.retry, config.backup_request_ms, config.load_balancer) == (700, 3, 50, "least")
    assert (config.on_missing_shard, config.value_bytes) == ("default", 4)
    with Client.from_conf(conf, "dict") as client:
        assert client.seek([1]).found.all()
    other = CubeConf.from_file(write_conf(conf, ["a:1"], load_balancer="c_md5"))
    assert ClientConfig.from_table(other["dict"]).load_balancer == "rr"
    with (
        pytest.deprecated_call(match=r"Client\.from_conf: dict_name is now table"),
        Client.from_conf(conf, dict_name="dict") as client,
    ):
        assert client.config == ClientConfig.from_table(CubeConf.from_file(conf)["dict"])
    with pytest.raises(ConfigError, match="no table 'nope'"):
        Client.from_conf(conf, "nope")


def test_a_name_that_does_not_resolve(client):
    nowhere = type("Nowhere", (), {"address": "no-such-host.invalid:1"})
    with pytest.raises(ShardUnavailable, match=r"no-such-host\.invalid:1"):
        client(nowhere).seek([1])


ENDLESS_LOOKUP = """
#include <unistd.h>
int getaddrinfo(const char* node, const char* service, const void* hints, void** found) {
  int (*real)(const char*, const char*, const void*, void**) = dlsym(RTLD_NEXT, "getaddrinfo");
  while (strcmp(node, "slow.invalid") == 0 && (*(const int*)hints & 4) == 0) pause();  // 4: numbers only
  return real(node, service, hints, found);
}
"""


def test_a_lookup_that_never_ends_ends_with_the_timeout(start, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc)")
    source, library = tmp_path / "lookup.c", tmp_path / "lookup.so"
    source.write_text("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <string.h>\n" + ENDLESS_LOOKUP)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    program = f"""
from cloudedge.cube import Client, ClientConfig, ShardUnavailable
with Client(ClientConfig([["slow.invalid:1", "127.0.0.1:{start({1: (1.0,)}).port}"]], timeout_ms=2000)) as client:
    print(client.seek([1]).found)
with Client(ClientConfig([["slow.invalid:1"]], timeout_ms=200)) as client:
    try:
        client.seek([1])
    except ShardUnavailable as error:
        print(error)
"""
    environment = os.environ | {"LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("[ True]\n")
    assert "slow.invalid:1" in done.stdout
    assert "timed out" in done.stdout


def test_a_closed_client_says_so(start, client):
    one = client(start({1: (1.0,)}))
    one.close()
    with pytest.raises(InputError, match="closed"):
        one.seek([1])


def test_one_client_in_many_threads(start, client):
    servers = [start(table(2, number), threads=2) for number in range(2)]
    one = client(*servers)
    wrong: list[object] = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(50):
            keys = generator.integers(0, 1000, 300).astype(np.uint64)
            if not (one.seek(keys).values[:, 0] == keys).all():
                wrong.append(keys)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
