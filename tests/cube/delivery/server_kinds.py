"""The two kinds of servers that tables are delivered to, with one face, and what each can promise."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from cloudedge.cube import Client, ClientConfig
from cloudedge.cube.delivery import ArtifactCache, Delivery, DeliveryPolicy
from cloudedge.cube.upstream import UpstreamDelivery, UpstreamReplica, UpstreamTimes, VersionIds
from cloudedge.testing.upstream_cube import UpstreamCluster
from tests.cube.delivery.fleet import Fleet

SHARDS, REPLICAS = 2, 2
SCALE = 0.001
POLICY = DeliveryPolicy(attempts=2, pause_s=0.01, deadline_s=60)


@dataclass(frozen=True)
class Guarantees:
    """What differs; everything else the suite asks of both."""

    deltas: bool
    """Only rows that changed travel."""
    pins: bool
    """A version can be read before it is active, and after."""
    back_after_restart: bool
    """A server that was started again still has the version to go back to."""
    reads_never_fail: bool
    """While one replica of each shard lives, also when servers die within a switch."""
    damage_is_found: str
    """When bytes that were damaged on their way are noticed, by which digest."""


GUARANTEES = {
    "cube": Guarantees(deltas=True, pins=True, back_after_restart=True, reads_never_fail=True, damage_is_found="stage"),
    "upstream": Guarantees(
        deltas=False, pins=False, back_after_restart=False, reads_never_fail=False, damage_is_found="stage"
    ),
}


class Servers:
    """Servers of one table, two shards with two replicas each."""

    kind: str
    table = "emb"

    @property
    def can(self) -> Guarantees:
        return GUARANTEES[self.kind]

    def actives(self):
        return {replica.status().active for replica in self.replicas()}

    def read(self, keys):
        """Read keys from every server of their shard, without a pin; the answers of all of them, as sets."""
        found = {key: set() for key in keys}
        for shard, address in self.addresses():
            mine = [key for key in keys if key % SHARDS == shard]
            with Client(ClientConfig([[address]], timeout_ms=20_000)) as client:
                rows = client.seek(mine, dtype="uint8")
            for key, row, there in zip(mine, rows.values, rows.found, strict=True):
                found[key].add(row.tobytes() if there else None)
        return found

    def client(self):
        """Open a client of all servers."""
        shards = [[address for each, address in self.addresses() if each == shard] for shard in range(SHARDS)]
        return Client(ClientConfig(shards, timeout_ms=20_000, retry=3))

    def processes(self):
        """List what can be killed: pairs of how to kill and how to start it again."""
        return [(partial(self.kill, number), partial(self.start, number)) for number in range(SHARDS * REPLICAS)]

    def serves(self, rows, version):
        """Tell whether every server answers with these rows, under this name."""
        keys = list(rows)[:100]
        return self.actives() == {version} and self.read(keys) == {key: {rows[key].tobytes()} for key in keys}


class CubeServers(Servers):
    """Processes of ours."""

    kind = "cube"

    def __init__(self, fleet):
        self._fleet = fleet

    def replicas(self):
        return self._fleet.replicas()

    def addresses(self):
        return [(server.shard, server.address) for server in self._fleet.servers]

    def delivery(self, work):
        return Delivery(self.replicas(), ArtifactCache(work), policy=POLICY)

    def kill(self, number):
        self._fleet.servers[number].kill()

    def start(self, number):
        self._fleet.servers[number].start().wait()


class _Facts(dict):
    recall = dict.get
    remember = dict.__setitem__


class UpstreamServers(Servers):
    """Upstream's server and agent as they behave, on real sockets."""

    kind = "upstream"

    def __init__(self, cluster):
        self._cluster = cluster
        self._ids = VersionIds(self.table, _Facts())

    def replicas(self):
        conf = self._cluster.conf(donefile_address=os.devnull, table=self.table)
        times = UpstreamTimes(stage_s=20, load_s=10, call_s=5, refused_s=1.5 * SCALE)
        return [
            UpstreamReplica(
                table=self.table, shard=each.shard, copy=each.copy, agent=conf.agents[each.shard, each.copy],
                cube=conf.cubes[each.shard, each.copy], ids=self._ids, times=times,
            )
            for each in self._cluster.instances
        ]  # fmt: skip

    def addresses(self):
        return [(each.shard, f"127.0.0.1:{each.server.port}") for each in self._cluster.instances]

    def delivery(self, work):
        return UpstreamDelivery(self.replicas(), ArtifactCache(work), policy=POLICY)

    def kill(self, number):
        self._cluster.instances[number].server.kill()

    def start(self, number):
        self._cluster.instances[number].server.start()

    def processes(self):
        agents = [(each.agent.kill, each.agent.start) for each in self._cluster.instances]
        return [*super().processes(), *agents]


@contextmanager
def running(kind, folder):
    if kind == "cube":
        with Fleet(folder, SHARDS, REPLICAS) as fleet:
            yield CubeServers(fleet)
    else:
        with UpstreamCluster(folder, shards=SHARDS, copies=REPLICAS, time_scale=SCALE) as cluster:
            yield UpstreamServers(cluster)
