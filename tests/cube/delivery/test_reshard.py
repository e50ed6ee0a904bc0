"""From two shards to three while readers read: both layouts answer until the old one is let go."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from cloudedge.cube import Client, ClientConfig, CubeConf
from cloudedge.cube.delivery import (
    ArtifactCache,
    Delivery,
    ServerLayout,
    TableVersion,
    free_servers,
    reshard,
    write_conf,
)
from cloudedge.cube.delivery._table_shards import add_up, sum_shards
from cloudedge.errors import CloudEdgeError, ConfigError, Conflict, DeadlineExceeded, IntegrityError, Unavailable
from tests.cube.delivery.fleet import TOKEN, Fleet
from tests.cube.delivery.tables import Tables, changed


def layout_of(fleet: Fleet) -> ServerLayout:
    shards = [
        [{"address": s.address, "admin": f"127.0.0.1:{s.admin_port}"} for s in fleet.servers if s.shard == shard]
        for shard in range(fleet.shards)
    ]
    return ServerLayout.model_validate({"tables": {fleet.table: shards}})


class Reader(threading.Thread):
    """Reads pinned rows, through whatever cube.conf says at that moment."""

    def __init__(self, conf, version, rows) -> None:
        super().__init__(daemon=True)
        self._conf, self._version = conf, version
        self._keys = np.array(sorted(rows), np.uint64)
        self._values = np.stack([rows[int(key)] for key in self._keys])
        self.stop = threading.Event()
        self.problems: list[str] = []
        self.reads_by_shards: dict[int, int] = {}

    def run(self) -> None:
        while not self.stop.is_set():
            table = CubeConf.from_file(self._conf)["emb"]
            with Client(ClientConfig.from_table(table)) as client:
                for _ in range(20):
                    try:
                        found = client.seek(self._keys[::7], pin=self._version)
                    except CloudEdgeError as error:
                        self.problems.append(str(error))
                        continue
                    if not np.array_equal(found.values, self._values[::7]):
                        self.problems.append("other rows")
                    self.reads_by_shards[table.shards] = self.reads_by_shards.get(table.shards, 0) + 1


@pytest.mark.parts
def test_readers_move_from_two_shards_to_three_and_lose_nothing(tmp_path):
    tables, conf = Tables(tmp_path / "t"), tmp_path / "cube.conf"
    with Fleet(tmp_path / "old", 2, 1) as old, Fleet(tmp_path / "new", 3, 1) as new:
        first = tables.fresh()
        second = tables.version(changed(tables.rows[first.version], 1), first)
        with Delivery(old.replicas(), ArtifactCache(tmp_path / "w2")) as delivery:
            delivery.deliver([first])
            delivery.deliver([second], [first])
        before = layout_of(old).to_conf()
        before["emb"].model_extra["kept"] = True
        write_conf(conf, CubeConf(tuple(d.model_copy(update={"timeout_ms": 10_000}) for d in before.tables)))
        readers = [Reader(conf, each.version, tables.rows[each.version]) for each in (first, second)]
        for reader in readers:
            reader.start()
        servers = layout_of(old).replicas(token=TOKEN)
        with Delivery(new.replicas(), ArtifactCache(tmp_path / "w3")) as delivery:
            with pytest.raises(ConfigError, match="in both layouts"):
                reshard([second], old=layout_of(new), new=layout_of(new), delivery=delivery, conf=conf)
            with pytest.raises(DeadlineExceeded, match="still asked by readers"):
                free_servers(servers, rest_s=5, deadline_s=0.1)
            done = reshard(
                [first, second], old=layout_of(old), new=layout_of(new), delivery=delivery, conf=conf, token=TOKEN
            )
        assert done.shards == {"emb": (2, 3)}
        assert CubeConf.from_file(conf)["emb"].timeout_ms == 10_000
        free_servers(servers, rest_s=1, deadline_s=60)
        while any(reader.reads_by_shards.get(3, 0) < 5 for reader in readers):
            assert all(reader.is_alive() for reader in readers)
        for reader in readers:
            reader.stop.set()
            reader.join(30)
            assert reader.problems == []
            assert reader.reads_by_shards[2] > 0


@pytest.mark.parts
def test_nobody_is_moved_on_trust(tmp_path):
    tables, conf = Tables(tmp_path / "t"), tmp_path / "cube.conf"
    first, second = tables.fresh(), tables.fresh()
    with Fleet(tmp_path / "old", 2, 2) as old, Fleet(tmp_path / "new", 3, 1) as new:
        with Delivery(old.replicas(), ArtifactCache(tmp_path / "w2")) as delivery:
            delivery.deliver([first])

        def move(version):
            with Delivery(new.replicas(), ArtifactCache(tmp_path / "w3")) as delivery:
                reshard([version], old=layout_of(old), new=layout_of(new), delivery=delivery, conf=conf, token=TOKEN)

        with pytest.raises(Conflict, match=f"answers from {first.version}, not from {second.version}"):
            move(second)
        with pytest.raises(IntegrityError, match="adds up to"):
            move(TableVersion("emb", first.version, second.rows))  # the right name with other rows
        for each in old.servers[2:]:
            each.kill()
        with pytest.raises(Unavailable, match="no server of shard 1"):
            move(first)
        assert not conf.exists()
        old.servers[2].start().wait()  # one of a shard is enough to tell
        move(first)
        assert CubeConf.from_file(conf)["emb"].shards == 3


@pytest.mark.rules
@pytest.mark.parametrize("shards", [1, 2, 3, 5, 16])
def test_shards_add_up_to_the_table_whatever_their_number(tmp_path, shards):
    version = Tables(tmp_path / "t").fresh(40)
    held = sum_shards(version.rows, shards)
    sums = {shard: each.checksum for shard, each in enumerate(held)}
    assert add_up(sums, shards, version.rows.kind.row_bytes) == version.checksum
