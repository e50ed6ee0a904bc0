"""What a local target consists of: which processes, on which ports, with which files. Starts nothing.

FOLDER/ports.json                         the ports, taken once and kept
FOLDER/token                              what the admin APIs want to hear
FOLDER/cube.conf                          where the shards are, for serving replicas and everyone else
FOLDER/journal.db                         the releases
FOLDER/NAME/                              each process's own files
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cloudedge.config import TargetConfig, home
from cloudedge.cube import CubeConf, CubeDict
from cloudedge.release.local._files import write_json
from cloudedge.release.local._supervisor import ProcessSpec

__all__ = ["Layout", "Seat", "is_free"]

_HOST = "127.0.0.1"
_CUBE = (sys.executable, "-m", "cloudedge", "cube", "serve")
_SERVE = (sys.executable, "-m", "cloudedge", "serve")
_TIMEOUT_MS, _RETRY = 1000, 2
_LENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 10_000
_STOP_S = 20.0
"""Longer than the servers themselves take to drain."""


@dataclass(frozen=True)
class Seat:
    """A place of the target: a process and where it listens."""

    place: str
    """As the release calls it: ``sparse/embedding/0/1``, ``dense/0``."""
    port: int
    admin_port: int
    table: str = ""
    shard: int = 0

    @property
    def process(self) -> str:
        """What the supervisor calls it."""
        return self.place.replace("/", "-")

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"{_HOST}:{self.port}"

    @property
    def admin(self) -> str:
        """Where it takes orders."""
        return f"http://{_HOST}:{self.admin_port}"


class Layout:
    """The processes of a local target.

    Args:
        name: The target's name.
        config: Its section of cloudedge.yaml.
        hub: The folder of the hub its servers read bundles from.
        folder: Where its files are; below cloudedge's own folder if left out.
    """

    def __init__(self, name: str, config: TargetConfig, *, hub: Path, folder: Path | None = None) -> None:
        self.name = name
        self.config = config
        self.hub = hub
        self.folder = (folder or home() / "targets" / name).absolute()

    def sparse(self) -> list[Seat]:
        """List the shard replicas."""
        ports, leg = self._ports(), self.config.sparse
        if leg is None:
            return []
        return [
            Seat(place, *ports[place], table=table, shard=shard)
            for table in leg.tables
            for shard in range(leg.shards)
            for replica in range(leg.replicas)
            for place in [f"sparse/{table}/{shard}/{replica}"]
        ]

    def dense(self) -> list[Seat]:
        """List the serving replicas."""
        ports = self._ports()
        return [Seat(place, *ports[place]) for place in self._names() if place.startswith("dense/")]

    def token(self) -> str:
        """Return the token of the admin APIs; made at first."""
        path = self.folder / "token"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self.folder / f".token.{os.getpid()}"
            temporary.touch(mode=0o600)
            temporary.write_text(secrets.token_hex(32))
            temporary.rename(path)
        return path.read_text()

    def cube_conf(self) -> CubeConf:
        """Say where the shards are."""
        leg = self.config.sparse
        seats = self.sparse()
        return CubeConf(
            tuple(
                CubeDict.model_validate(
                    {
                        "dict_name": table,
                        "shard": leg.shards,
                        "dup": leg.replicas,
                        "timeout": _TIMEOUT_MS,
                        "retry": _RETRY,
                        "backup_request": 0,
                        "type": "ipport_list",
                        "nodes": [
                            {"ipport_list": "list://" + ",".join(_addresses(seats, table, shard))}
                            for shard in range(leg.shards)
                        ],
                    }
                )
                for table in leg.tables
            )
            if leg
            else ()
        )

    def specs(self) -> list[ProcessSpec]:
        """List what shall run, shards first; writes the files that go with it."""
        self.token()
        conf = self.folder / "cube.conf"
        if self.config.sparse:
            conf.write_text(self.cube_conf().to_text())
        return [*map(self._cube, self.sparse()), *(self._serve(seat, conf) for seat in self.dense())]

    def _cube(self, seat: Seat) -> ProcessSpec:
        data = self.folder / seat.process
        data.mkdir(parents=True, exist_ok=True)
        return ProcessSpec(
            seat.process, (*_CUBE, str(data), "--empty", "--state", str(data), *self._listen(seat)), stop_s=_STOP_S
        )

    def _serve(self, seat: Seat, conf: Path) -> ProcessSpec:
        data = self.folder / seat.process
        data.mkdir(parents=True, exist_ok=True)
        cube = ("--cube", str(conf)) if self.config.sparse else ()
        service = self.config.dense.service if self.config.dense else ""
        more = ("--hub", str(self.hub), "--service", service, "--state", str(data / "state.json"), *cube)
        return ProcessSpec(seat.process, (*_SERVE, *self._listen(seat), *more), stop_s=_STOP_S)

    def _listen(self, seat: Seat) -> tuple[str, ...]:
        ports = ("--port", str(seat.port), "--admin-port", str(seat.admin_port))
        return (*ports, "--token-file", str(self.folder / "token"))

    def _names(self) -> Iterator[str]:
        sparse, dense = self.config.sparse, self.config.dense
        if sparse:
            for table in sparse.tables:
                for shard in range(sparse.shards):
                    yield from (f"sparse/{table}/{shard}/{replica}" for replica in range(sparse.replicas))
        if dense:
            yield from (f"dense/{replica}" for replica in range(dense.replicas))

    def _ports(self) -> Mapping[str, tuple[int, int]]:
        """Return every place's data and admin port; those of places that are new are taken now."""
        path = self.folder / "ports.json"
        taken: dict[str, tuple[int, int]] = {}
        if path.exists():
            taken = {name: (pair[0], pair[1]) for name, pair in json.loads(path.read_text()).items()}
        names = list(self._names())
        new = [name for name in names if name not in taken]
        if new:
            first = self.config.port
            if first is None:
                free = _free_ports(2 * len(new))
                taken |= {name: (free[2 * i], free[2 * i + 1]) for i, name in enumerate(new)}
            else:
                taken = {name: (first + 2 * i, first + 2 * i + 1) for i, name in enumerate(names)}
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, taken)
        return taken


def _addresses(seats: list[Seat], table: str, shard: int) -> list[str]:
    return [seat.address for seat in seats if (seat.table, seat.shard) == (table, shard)]


def is_free(port: int) -> bool:
    """Tell whether one can listen on a port of this machine."""
    try:
        socket.create_server((_HOST, port)).close()
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    """Choose ports that nobody listens on, below those that the kernel lends to connections.

    From among those, a connection of anybody's could take the port of a server that is just being restarted.
    """
    lent = int(_LENT_PORTS.read_text(encoding="ascii").split()[0]) if _LENT_PORTS.exists() else _FIRST_PORT
    candidates = range(_FIRST_PORT, max(lent, 2 * _FIRST_PORT))
    drawn = random.SystemRandom().sample(candidates, len(candidates))
    return list(islice(filter(is_free, drawn), count))
