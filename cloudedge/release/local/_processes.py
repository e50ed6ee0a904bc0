"""The processes of a local target, their ports and their files. Starts nothing.

FOLDER/ports.json     the ports, taken by the first `up` and kept; also those of shards of earlier layouts
FOLDER/token          the token of the admin APIs, made by the first `up`, and anew if it is lost
FOLDER/cube.conf      the addresses of shards: TABLE for readers without a pin, TABLE@SHARDS for each layout
FOLDER/NAME/          each process's own files

A shard replica is called sparse/TABLE/SHARDofSHARDS/REPLICA. When cloudedge.yaml cuts a table anew, that makes new
processes, and those of the layout before stay until no release needs them. They no longer belong to the target from the
moment that processes.json does not name them, even if files of theirs remain.
"""

from __future__ import annotations

import json
import random
import secrets
import shutil
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from cloudedge.config import TargetConfig, home
from cloudedge.cube import CubeConf
from cloudedge.errors import StorageError
from cloudedge.io import write_atomically
from cloudedge.release.places import cube_conf, live_shards, parse_place, shard_place
from cloudedge.supervisor import ProcessSpec, read_specs, write_json, write_text

__all__ = ["ProcessLayout", "ServerProcess", "is_free"]

_HOST = "127.0.0.1"
_CUBE = (sys.executable, "-m", "cloudedge", "cube", "serve")
_SERVE = (sys.executable, "-m", "cloudedge", "serve")
_LENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 10_000
_STOP_S = 20.0
"""Longer than the servers take to drain."""


@dataclass(frozen=True)
class ServerProcess:
    """A server of the target: a process and the ports it listens on."""

    place: str
    """The name of its place: ``sparse/embedding/0of2/1``, ``dense/0``."""
    port: int
    admin_port: int
    table: str = ""
    shard: int = 0
    shards: int = 1

    @property
    def process(self) -> str:
        """Its name in the supervisor."""
        return self.place.replace("/", "-")

    @property
    def address(self) -> str:
        """The address that answers requests."""
        return f"{_HOST}:{self.port}"

    @property
    def admin(self) -> str:
        """The URL of its admin API."""
        return f"http://{_HOST}:{self.admin_port}"


class ProcessLayout:
    """The processes of a local target.

    Args:
        name: The target's name.
        config: Its section of cloudedge.yaml.
        hub: The folder of the hub that its servers read bundles from.
        folder: The folder of its files; below cloudedge's own folder if left out.
    """

    def __init__(self, name: str, config: TargetConfig, *, hub: Path, folder: Path | None = None) -> None:
        self.name = name
        self.config = config
        self.hub = hub
        self.folder = (folder or home() / "targets" / name).absolute()

    def sparse(self) -> list[ServerProcess]:
        """List the shard replicas: those of cloudedge.yaml, then those of earlier layouts that still run."""
        ports = self._ports()
        wanted = [place for place in self._names() if place.startswith("sparse/")]
        earlier = [place for place in ports if place.startswith("sparse/") and not self._is_now(place)]
        earlier = [place for place in earlier if self._shall_run(place)] if earlier else []
        cuts = {place: parse_place(place) for place in [*wanted, *earlier]}
        return [
            ServerProcess(place, *ports[place], table, shard, shards) for place, (table, shard, shards) in cuts.items()
        ]

    def now(self) -> Mapping[str, int]:
        """Return by table the number of its shards from now on."""
        leg = self.config.sparse
        return dict.fromkeys(leg.tables, leg.shards) if leg else {}

    def earlier(self) -> list[list[ServerProcess]]:
        """List the layouts that cloudedge.yaml no longer names, each with its servers."""
        found: dict[tuple[str, int], list[ServerProcess]] = {}
        for server in self.sparse():
            if not self._is_now(server.place):
                found.setdefault((server.table, server.shards), []).append(server)
        return list(found.values())

    def _shall_run(self, place: str) -> bool:
        try:
            return ServerProcess(place, 0, 0).process in {spec.name for spec in read_specs(self.folder)}
        except FileNotFoundError:
            return True  # no process was ever started, so none was ended

    def _is_now(self, place: str) -> bool:
        table, _, shards = parse_place(place)
        return self.now().get(table) == shards

    def dense(self) -> list[ServerProcess]:
        """List the serving replicas."""
        ports = self._ports()
        return [ServerProcess(place, *ports[place]) for place in self._names() if place.startswith("dense/")]

    def token(self) -> str:
        """Return the token of the admin APIs; empty before the first `up`, which makes it.

        Raises:
            StorageError: servers were started with a token, and it is gone.
        """
        found = self._read_token()
        if not found and (self.folder / "processes.json").exists():
            raise StorageError(
                f"the token {self.folder / 'token'} is gone: `cloudedge up {self.name}` makes a new one",
                hint=f"Run `cloudedge up {self.name}`: it also restarts the servers, one after the other.",
            )
        return found

    def _read_token(self) -> str:
        try:
            return (self.folder / "token").read_text()
        except FileNotFoundError:
            return ""

    def _make_token(self) -> None:
        if self._read_token():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / "token", secrets.token_hex(32), mode=0o600)

    def cube_conf(self, live: Mapping[str, int] | None = None) -> CubeConf:
        """Return the cube.conf of all layouts.

        Args:
            live: By table: the number of shards of the layout that readers without a pin get; that of cloudedge.yaml if
                left out.
        """
        servers = self.sparse()
        cuts = {
            (table, shards): [_addresses(servers, table, shards, shard) for shard in range(shards)]
            for table, shards in dict.fromkeys((server.table, server.shards) for server in servers)
        }
        return cube_conf(cuts, {**self.now(), **(live or {})})

    def publish(self, live: Mapping[str, int] | None = None) -> None:
        """Write cube.conf; without `live`, readers without a pin keep the layout that they have."""
        path = self.folder / "cube.conf"
        if live is None and path.exists():
            live = live_shards(CubeConf.from_file(path))
        if self.sparse():
            write_text(path, self.cube_conf(live).to_text())

    def tidy(self) -> None:
        """Remove the ports and files of shards that have ended, and write cube.conf without them."""
        ports, there = self._ports(), {server.place for server in [*self.sparse(), *self.dense()]}
        gone = [place for place in ports if place.startswith("sparse/") and place not in there]
        gone = [place for place in gone if not self._is_now(place)]  # one replica less is not another layout
        for place in gone:
            shutil.rmtree(self.folder / ServerProcess(place, 0, 0).process, ignore_errors=True)
        write_json(self.folder / "ports.json", {place: pair for place, pair in ports.items() if place not in gone})
        self.publish()

    def specs(self) -> list[ProcessSpec]:
        """List the processes that shall run, shards first, and write the files they need."""
        self.take_ports()
        self._make_token()
        conf = self.folder / "cube.conf"
        self.publish()
        return [*map(self._cube, self.sparse()), *(self._serve(server, conf) for server in self.dense())]

    def _cube(self, server: ServerProcess) -> ProcessSpec:
        data = self.folder / server.process
        data.mkdir(parents=True, exist_ok=True)
        argv = (*_CUBE, str(data), "--empty", "--state", str(data), *self._listen(server))
        return ProcessSpec(server.process, argv, stop_s=_STOP_S, health=f"{server.admin}/health")

    def _serve(self, server: ServerProcess, conf: Path) -> ProcessSpec:
        data = self.folder / server.process
        data.mkdir(parents=True, exist_ok=True)
        cube = ("--cube", str(conf)) if self.config.sparse else ()
        service = self.config.dense.service if self.config.dense else ""
        more = ("--hub", str(self.hub), "--service", service, "--state", str(data / "state.json"), *cube)
        argv = (*_SERVE, *self._listen(server), *more)
        return ProcessSpec(server.process, argv, stop_s=_STOP_S, health=f"{server.admin}/health")

    def _listen(self, server: ServerProcess) -> tuple[str, ...]:
        ports = ("--port", str(server.port), "--admin-port", str(server.admin_port))
        return (*ports, "--token-file", str(self.folder / "token"))

    def _names(self) -> Iterator[str]:
        sparse, dense = self.config.sparse, self.config.dense
        if sparse:
            for table in sparse.tables:
                for shard in range(sparse.shards):
                    yield from (shard_place(table, shard, sparse.shards, each) for each in range(sparse.replicas))
        if dense:
            yield from (f"dense/{replica}" for replica in range(dense.replicas))

    def take_ports(self) -> None:
        """Write down the ports that the target has from now on."""
        ports = self._ports()
        if ports != self._taken():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "ports.json", ports)

    def _taken(self) -> dict[str, tuple[int, int]]:
        path = self.folder / "ports.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        # Shards were once called sparse/TABLE/SHARD/REPLICA; those end, and a repair loads what is live into new ones.
        known = [name for name in found if not name.startswith("sparse/") or "of" in name.split("/")[2]]
        return {name: (found[name][0], found[name][1]) for name in known}

    def _ports(self) -> Mapping[str, tuple[int, int]]:
        """Return every place's data and admin port; a new place has those that `up` would take now."""
        taken = self._taken()
        new = [name for name in self._names() if name not in taken]
        if new:
            first, used = self.config.port, {port for pair in taken.values() for port in pair}
            free = iter(self._free_ports(used) if first is None else (p for p in count(first) if p not in used))
            taken |= {name: (next(free), next(free)) for name in new}
        return taken

    def _free_ports(self, used: Collection[int]) -> Iterator[int]:
        """Choose free ports below the range that the kernel lends to outgoing connections.

        Inside that range, any connection could take the port of a server during its restart. The choice follows from
        the folder: a look before the first `up` shows the ports that it will take.
        """
        lent = int(_LENT_PORTS.read_text(encoding="ascii").split()[0]) if _LENT_PORTS.exists() else _FIRST_PORT
        candidates = range(_FIRST_PORT, max(lent, 2 * _FIRST_PORT))
        drawn = random.Random(str(self.folder)).sample(candidates, len(candidates))  # noqa: S311 - no secret
        return (port for port in drawn if port not in used and is_free(port))


def _addresses(servers: list[ServerProcess], table: str, shards: int, shard: int) -> list[str]:
    return [
        server.address for server in servers if (server.table, server.shards, server.shard) == (table, shards, shard)
    ]


def is_free(port: int) -> bool:
    """Tell whether a process can listen on a port of this machine."""
    try:
        socket.create_server((_HOST, port)).close()
    except OSError:
        return False
    return True
