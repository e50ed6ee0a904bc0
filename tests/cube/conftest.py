"""Tables, and servers in this process: each on a free port, closed at the end whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudedge.cube.client._client import Client, ClientConfig
from cloudedge.cube.delivery import ArtifactCache
from cloudedge.cube.server._server import Server, ServerConfig
from tests.cube.delivery.tables import Tables
from tests.cube.fake_server import Answer, FakeServer
from tests.cube.memory_versions import BIG, Files, Rows, make_version
from tests.cube.reference import RECORDS, write_sequence


@pytest.fixture
def vector(tmp_path: Path) -> Path:
    """The published SequenceFile, in a directory of its own."""
    return write_sequence(tmp_path / "input" / "feature", RECORDS)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "tables")


@pytest.fixture
def workshop(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "work")


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def start(files: Files) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(rows: Rows | None = None, version: str = "100", **config: object) -> Server:
        settings = {"port": 0, "threads": 1, **config}
        server = Server(ServerConfig(**settings), loader=files.load, patch_loader=files.patch)
        servers.append(server)
        if rows is not None:
            server.add(make_version(version, rows))
            server.activate(version)
        return server.start()

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def shard(start: Callable[..., Server]) -> Server:
    """Shard 1 of 2 of the three-row example."""
    return start({1: (1.0, 2.0), BIG: (3.0, -1.5)})


@pytest.fixture
def fake() -> Iterator[Callable[[Answer], FakeServer]]:
    made: list[FakeServer] = []

    def make(answer: Answer) -> FakeServer:
        made.append(FakeServer(answer))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def client() -> Iterator[Callable[..., Client]]:
    """A client of servers, each argument a shard or a list of its replicas."""
    made: list[Client] = []

    def make(*shards, **config) -> Client:
        addresses = [[one.address for one in (shard if isinstance(shard, list) else [shard])] for shard in shards]
        made.append(Client(ClientConfig(addresses, **{"timeout_ms": 5000, **config})))
        return made[-1]

    yield make
    for one in made:
        one.close()
