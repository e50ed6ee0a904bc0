"""Servers for tests: in this process, on a free port, closed at the end whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from net_cubes import BIG, Files, Rows, make_version
from net_fake import Answer, FakeServer

from cloudedge.cube.client._client import Client, ClientConfig
from cloudedge.cube.server._server import Server, ServerConfig


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
