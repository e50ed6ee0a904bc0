"""Rows from cube's shards, pinned to the version that runs."""

import json
import socket
from types import SimpleNamespace

import numpy as np
import pytest

from cloudedge import _core
from cloudedge.cube import CubeConf, ServerConfig
from cloudedge.cube import Server as CubeServer
from cloudedge.errors import ConfigError, DeadlineExceeded, NotFound, Unavailable
from cloudedge.release import CubeRows
from cloudedge.serving import Runtime, RuntimeConfig
from tests.serving.models import pack_rows, row_table

pytestmark = pytest.mark.parts

SHARDS = 2
FEED = {"ids": np.array([[4], [99], [7]]), "more": np.array([[2], [7], [5]])}


def expected(shift):
    def row(key):
        return [0, 0, 0] if key > 39 else [key + shift, key + shift + 0.25, key + shift + 0.5]

    return [row(4) + row(2), [*row(99), 0, 0, 0], row(7) + row(5)]


@pytest.fixture
def shards():
    servers = [CubeServer(ServerConfig(port=0, threads=1)).start() for _ in range(SHARDS)]
    yield servers
    for server in servers:
        server.close()


def put(shards, pin, shift):
    """Load one version of the table onto all shards, active."""
    arrays = row_table(gaps=False)
    for i, server in enumerate(shards):
        mine = arrays["keys"] % SHARDS == i
        values = np.ascontiguousarray(arrays["values"][mine] + np.float32(shift))
        server.add(_core.memory_version(pin, arrays["keys"][mine], values.view(np.uint8)))
        server.activate(pin)


def conf(shards, name="t"):
    nodes = [{"ip": "127.0.0.1", "port": server.port} for server in shards]
    table = {"dict_name": name, "shard": len(nodes), "dup": 1, "timeout": 2000, "retry": 1, "backup_request": 0}
    return CubeConf.from_text(json.dumps([table | {"type": "ipport", "nodes": nodes}]))


@pytest.fixture
def bundles(models, tmp_path):
    """Two releases: the same program, other rows."""
    made = []
    for shift in (0.0, 100.0):
        arrays = row_table(gaps=False)
        arrays["values"] += np.float32(shift)
        made.append(pack_rows(tmp_path / f"m{shift}", models.hub, arrays))
    return made


def serve(models, table, **policy):
    config = RuntimeConfig(workers=2)
    return Runtime(config, hub=models.hub, rows=lambda bundle, _: CubeRows(table, bundle, **policy))


def test_every_read_is_pinned_to_the_version_that_runs(models, shards, bundles):
    old, new = bundles
    put(shards, old.pin, 0.0)
    put(shards, new.pin, 100.0)
    shards[0].activate(old.pin)  # what the shards hold active does not matter, not even where they disagree
    with serve(models, conf(shards)) as runtime:
        for bundle in bundles:
            runtime.load(models.ref(bundle))
        runtime.activate(old.pin)
        for bundle, shift in ((old, 0.0), (new, 100.0), (old, 0.0)):
            runtime.activate(bundle.pin)
            answer = runtime.ask(FEED)
            assert (answer.pin, answer.defaulted) == (bundle.pin, 0.0)
            np.testing.assert_array_equal(answer.outputs["rows"], expected(shift))
        assert not runtime.version(old.pin).inline
        assert runtime.queues[old.pin].version.metrics.missing_keys == 2  # 99, asked for twice


def test_a_version_the_shards_do_not_have_is_not_served(models, shards, bundles):
    old, new = bundles
    put(shards, old.pin, 0.0)
    with serve(models, conf(shards)) as runtime:
        runtime.load(models.ref(old))
        runtime.activate(old.pin)
        with pytest.raises(NotFound, match=new.pin):
            runtime.load(models.ref(new))
        np.testing.assert_array_equal(runtime.ask(FEED).outputs["rows"], expected(0.0))


def test_a_dead_shard_is_an_error_by_default(models, shards, bundles):
    put(shards, bundles[0].pin, 0.0)
    with serve(models, conf(shards)) as runtime:
        runtime.load(models.ref(bundles[0]))
        runtime.activate(bundles[0].pin)
        shards[1].close()
        with pytest.raises(Unavailable):
            runtime.ask(FEED)
        even = {"ids": np.array([[4]]), "more": np.array([[2]])}
        assert runtime.ask(even).outputs["rows"].tolist() == [expected(0.0)[0]]


def test_a_shard_that_hangs_is_not_waited_for_longer_than_the_caller_waits(models, shards, bundles):
    """Its table has 2 s for a read; the caller has a fraction of that, and then is told so."""
    put(shards, bundles[0].pin, 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and never answers
        hanging = [shards[0], SimpleNamespace(port=silent.getsockname()[1])]
        tables = [conf(shards), conf(hanging)]
        rows = [CubeRows(table, bundles[0]) for table in tables]

        class Turns:
            def __init__(self):
                self.at, self.deadlines = 0, []

            def rows(self, *arguments):
                self.deadlines.append(arguments[-1])
                return rows[self.at].rows(*arguments)

            def close(self):
                for each in rows:
                    each.close()

        turns = Turns()
        with Runtime(RuntimeConfig(workers=1), hub=models.hub, rows=lambda *_: turns) as runtime:
            runtime.load(models.ref(bundles[0]))
            runtime.activate(bundles[0].pin)
            turns.at = 1
            with pytest.raises(DeadlineExceeded, match="no answer within"):
                runtime.ask(FEED, timeout_s=0.3)
            assert turns.deadlines[-1] is not None
            with pytest.raises(Unavailable, match="no answer within 2000 ms"):
                runtime.ask(FEED, timeout_s=60)


def test_a_declared_default_is_counted_and_said(models, shards, bundles):
    put(shards, bundles[0].pin, 0.0)
    with serve(models, conf(shards), on_missing_shard="default") as runtime:
        runtime.load(models.ref(bundles[0]))
        runtime.activate(bundles[0].pin)
        assert runtime.ask(FEED).defaulted == 0.0
        shards[1].close()
        answer = runtime.ask(FEED)
        assert answer.defaulted == pytest.approx(4 / 6)  # 99, 7, 7 and 5 live on shard 1
        even = {"ids": np.array([[4]]), "more": np.array([[2]])}
        assert runtime.ask(even).defaulted == 0.0
        assert answer.outputs["rows"][2].tolist() == [0.0] * 6
        assert runtime.queues[bundles[0].pin].version.metrics.defaulted_keys == 4


def test_a_table_cube_does_not_have_is_refused_at_load(models, shards, bundles):
    with serve(models, conf(shards, "other")) as runtime, pytest.raises(ConfigError):
        runtime.load(models.ref(bundles[0]))


def test_the_old_keyword_of_the_names_in_cube_conf_works_and_warns(shards, bundles):
    with pytest.deprecated_call(match=r"CubeRows\.__init__: dictionaries is now names_in_conf"):
        CubeRows(conf(shards, name="t@2"), bundles[0], dictionaries={"t": "t@2"}).close()
    with pytest.raises(ConfigError, match="no table 't@3'"):
        CubeRows(conf(shards, name="t@2"), bundles[0], names_in_conf={"t": "t@3"})
