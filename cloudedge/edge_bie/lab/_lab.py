"""The lab: its three ports, served by a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from types import TracebackType

from cloudedge.clock import Clock, SystemClock
from cloudedge.edge_bie.lab.ports import (
    CRASHED,
    LIMITS,
    Chance,
    Faults,
    Front,
    ObjectFiles,
    RequestHandler,
    answer_admin,
    answer_sync,
    on_calls,
)
from cloudedge.edge_bie.lab.state import LabState
from cloudedge.errors import ConfigError, Conflict, StorageError
from cloudedge.http1 import Connections, EventLoopThread, is_loopback
from cloudedge.io import join_address, parse_address

__all__ = ["NAMESPACE", "Lab"]

_log = logging.getLogger("cloudedge.edge_bie.lab")
NAMESPACE = "baetyl-cloud"
"""The only namespace of the open-source control plane."""
_START_S = 30.0
_STOP_S = 10.0
_FLUSH_S = 2.0


class Lab:
    """A control plane for edge nodes that behaves like BIE's, and a server for the objects that nodes download.

    >>> with Lab(Path("state")) as lab:  # doctest: +SKIP
    ...     print(lab.admin_url, lab.sync_url, lab.objects_url)

    Args:
        state: The folder of the lab's state; a lab started there again continues with it.
        admin: Address of the management API; port 0 takes any free one. Likewise `sync` and `objects`.
        objects_folder: The folder that the objects port serves; `state/objects` by default.
        namespace: The only namespace.
        faults: The faults to inject; none by default.
        token: The token that clients of every port must send as ``Authorization: Bearer TOKEN``; required unless all
            addresses are loopback's. A safeguard of the lab: BAETYL's control plane admits everyone.
        clock: The time, which also decides when a node is offline.
        seed: The seed of names and versions; the system's randomness by default.

    Raises:
        ConfigError: an address is invalid, or other machines could connect without a token.
        Conflict: another process listens there.
        StorageError: the state cannot be read or written.
    """

    def __init__(
        self,
        state: Path,
        *,
        admin: str = "127.0.0.1:0",
        sync: str = "127.0.0.1:0",
        objects: str = "127.0.0.1:0",
        objects_folder: Path | None = None,
        namespace: str = NAMESPACE,
        faults: Faults | None = None,
        token: str | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self._addresses = {
            name: parse_address(text, default_host="127.0.0.1", any_port=True)
            for name, text in (("admin", admin), ("sync", sync), ("objects", objects))
        }
        for name, (host, _) in self._addresses.items():
            if not token and not is_loopback(host):
                raise ConfigError(
                    f"the lab's {name} port would listen on {host} without a token",
                    hint="Set a token, or listen on 127.0.0.1.",
                )
        self.state = state
        self.objects = objects_folder or state / "objects"
        """The folder that the objects port serves."""
        self.namespace = namespace
        self._urls: dict[str, str] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: list[Connections] = []
        self._world = LabState(state, namespace=namespace, clock=clock or SystemClock(), seed=seed)
        self.objects.mkdir(parents=True, exist_ok=True)
        self._front = Front(self._world, ObjectFiles(self.objects), token)
        if faults is not None:
            self._front.chance = self._front.files.chance = Chance(faults)
        self._runs = EventLoopThread("edge-lab")

    def start(self) -> Lab:
        """Listen and answer requests."""
        self._runs.start()
        try:
            self._runs.call(self._listen()).result(_START_S)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def admin_url(self) -> str:
        """The address of the management API."""
        return self._urls["admin"]

    @property
    def sync_url(self) -> str:
        """The address that nodes report to."""
        return self._urls["sync"]

    @property
    def objects_url(self) -> str:
        """The address that nodes download from: the folder `objects`."""
        return self._urls["objects"]

    def traffic(self) -> dict[str, int]:
        """Return the number of object bytes sent to each client."""

        async def read() -> dict[str, int]:
            return dict(self._front.files.by_client)

        return self._runs.call(read()).result(_START_S)

    def close(self) -> None:
        """Stop listening, close connections, and write everything to disk."""
        if self._runs.is_running:
            self._runs.call(self._stop()).result(_STOP_S)
        self._runs.stop(_STOP_S)
        self._world.store.close()

    def __enter__(self) -> Lab:  # noqa: PYI034 - typing.Self is not in 3.10
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _listen(self) -> None:
        front, loop = self._front, self._runs.loop
        handlers: dict[str, RequestHandler] = {
            "sync": front.port("sync", answer_sync),
            "admin": front.port("admin", answer_admin),
            "objects": front.serve_file,
        }
        for name, handler in handlers.items():
            host, port = self._addresses[name]
            connections = Connections(on_calls(handler), LIMITS, loop, crashed=CRASHED)
            self._connections.append(connections)
            try:
                server = await loop.create_server(connections, host, port, backlog=1024)
            except OSError as error:
                raise Conflict(
                    f"the lab cannot listen on {join_address(host, port)}: {os.strerror(error.errno or 0)}"
                ) from error
            self._servers.append(server)
            self._urls[name] = f"http://{join_address(host, server.sockets[0].getsockname()[1])}"
        self._world.sync_url = self._urls["sync"]
        self._flusher = loop.create_task(self._flush())

    async def _flush(self) -> None:
        """Write reports to disk now and then."""
        while True:
            await asyncio.sleep(_FLUSH_S)
            try:
                await self._world.store.commit(lazy=True)
            except StorageError:
                _log.exception("writing reports to disk")

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for connections in self._connections:
            connections.close()
        if hasattr(self, "_flusher"):
            self._flusher.cancel()
        await asyncio.sleep(0)
        await self._world.store.commit(lazy=True)
