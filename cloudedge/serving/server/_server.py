"""The server of a runtime: HTTP and baidu_std on one port, gRPC on another, in its own thread.

`start` returns when it listens; `drain` stops accepting, lets requests under way finish, and closes.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from cloudedge.errors import CloudEdgeError, ConfigError, Conflict
from cloudedge.http1 import Connections, EventLoopThread, HeldBytes, OtherProtocol, is_loopback
from cloudedge.io import join_address
from cloudedge.serving.protocols import (
    DataPortAuth,
    HttpLimits,
    Intake,
    Ops,
    RequestObserver,
    Tls,
    Traces,
    too_long_http,
)
from cloudedge.serving.runtime import Runtime
from cloudedge.serving.server._routes import Routes

__all__ = ["Server", "ServerConfig"]

_BACKLOG = 1024
_START_S = 30.0
_SWITCH_S = 0.0005
"""Longest time that a thread keeps the interpreter while another waits for it: a worker with an answer should not wait
Python's usual 5 ms for the reader of requests."""


@dataclass(frozen=True)
class ServerConfig:
    """The ports of a server and their protection. Immutable; checked when made."""

    host: str = "127.0.0.1"
    """Address to listen on; loopback by default."""
    port: int = 9393
    """Port of HTTP and baidu_std; Paddle Serving's own default. 0 takes any free one."""
    grpc_port: int | None = None
    """Port of gRPC; 0 takes any free one, None serves no gRPC."""
    service: str = "model"
    """Name of the Pipeline service: the first part of its path."""
    token: str | None = field(default=None, repr=False)
    """Token required of every caller; None requires nothing, which beyond loopback needs `tls` or `is_open`."""
    tls: Tls | None = None
    """The certificate of all data ports; None serves without TLS."""
    is_open: bool = False
    """Every client that reaches the data ports may ask, as with Paddle Serving, whose clients cannot send a token."""
    admin_token: str | None = field(default=None, repr=False)
    """Token that allows its bearer to choose a version by header; it also counts as `token`. None allows the choice to
    every caller where only this machine reaches the port, and to no caller elsewhere."""
    access_log: float = 0.0
    """Share of requests to log, one JSON line each."""
    limits: HttpLimits = field(default_factory=HttpLimits)

    def __post_init__(self) -> None:
        for port in (self.port, self.grpc_port or 0):
            if not 0 <= port < 1 << 16:
                raise ConfigError(f"a port is 0 to 65535, not {port}")
        if not 0 <= self.access_log <= 1:
            raise ConfigError(f"access_log is a share from 0 to 1, not {self.access_log}")
        if not self.service or "/" in self.service:
            raise ConfigError(f"a service's name is one part of a path, not {self.service!r}")
        if not (self.token or self.tls or self.is_open or is_loopback(self.host)):
            raise ConfigError(
                f"the data ports would listen on {self.host} without a token or TLS",
                hint="Give `--data-token-file`, or `--tls-cert` and `--tls-key`; `--open` admits every client, "
                "as Paddle Serving does.",
            )


class Server:
    """Serves a runtime until closed.

    >>> with Server(Runtime(), ServerConfig(port=0)) as server:  # doctest: +SKIP
    ...     print(server.port)
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ServerConfig | None = None,
        *,
        ops: Ops | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.runtime = runtime
        self._traces = traces
        self.config = config or ServerConfig()
        self._ops = ops
        self._runs = EventLoopThread("serving-loop")
        self._listener: asyncio.Server | None = None
        self._grpc: Any = None
        self._connections: Connections | None = None
        self.is_draining = False

    def start(self) -> Server:
        """Listen and answer.

        Raises:
            Conflict: Another program listens there.
            ConfigError: This process may not listen on the address.
        """
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        self._runs.start()
        try:
            self._runs.call(self._listen()).result(_START_S)
        except CloudEdgeError:
            self.close()
            raise
        return self

    async def _listen(self) -> None:
        from cloudedge.serving.protocols import BaiduStdProtocol  # noqa: PLC0415 - protobuf

        config, limits = self.config, self.config.limits
        self.runtime.reader_loop = self._runs.loop
        auth = DataPortAuth(
            self.runtime, token=config.token, admin_token=config.admin_token, is_local=is_loopback(config.host)
        )
        held = HeldBytes(limits.max_held_bytes)
        intake = Intake(limits.bodies, held)
        observer = RequestObserver(config.access_log, self._traces)
        routes = Routes(
            self.runtime,
            service=config.service,
            ops=self._ops,
            auth=auth,
            observer=observer,
            intake=intake,
            is_draining=lambda: self.is_draining,
            connections=lambda: self._connections,
        )
        # baidu_std cannot carry a token: it is off where a token is required.
        prpc = OtherProtocol(
            b"PRPC",
            lambda end_connection: BaiduStdProtocol(
                self.runtime,
                max_body=limits.max_body_bytes,
                max_answer=limits.max_answer_bytes,
                held=held,
                intake=intake,
                observer=observer,
                end_connection=end_connection,
            ),
        )
        self._connections = Connections(
            routes, limits, self._runs.loop, None if config.token else prpc, held, too_long=too_long_http
        )
        secured: dict[str, Any] = {}
        if config.tls is not None:
            secured = {"ssl": config.tls.context(), "ssl_handshake_timeout": limits.body_timeout_s}
        try:
            self._listener = await self._runs.loop.create_server(
                self._connections, config.host, config.port, backlog=_BACKLOG, **secured
            )
        except OSError as error:
            kind = Conflict if error.errno == errno.EADDRINUSE else ConfigError
            raise kind(f"cannot listen on {join_address(config.host, config.port)}: {error.strerror}") from error
        if config.grpc_port is not None:
            from cloudedge.serving.protocols import serve_grpc  # noqa: PLC0415 - heavy

            self._grpc = await serve_grpc(
                auth, service=config.service, ops=self._ops, host=config.host, port=config.grpc_port,
                max_message_bytes=limits.max_body_bytes, max_answer_bytes=limits.max_answer_bytes,
                max_connections=limits.max_connections, max_calls=limits.max_calls, held=held, intake=intake,
                observer=observer, tls=config.tls,
            )  # fmt: skip
        # The objects loaded so far stay: scanning them in every collection would cost milliseconds.
        gc.collect()
        gc.freeze()

    @property
    def port(self) -> int:
        """The port of HTTP and baidu_std, once started."""
        if self._listener is None:
            return self.config.port
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def grpc_port(self) -> int | None:
        """The port of gRPC, if it is served."""
        return None if self._grpc is None else int(self._grpc.port)

    @property
    def connections(self) -> Connections | None:
        """The open connections, once started."""
        return self._connections

    def drain(self, within_s: float = 10.0) -> bool:
        """Stop accepting, let requests under way finish, close; return True if all finished in time."""
        if not self._runs.is_running:
            return True
        finished = self._runs.call(self._drain(within_s)).result(within_s + _START_S)
        self.close()
        return finished

    async def _drain(self, within_s: float) -> bool:
        self.is_draining = True
        end = time.monotonic() + within_s
        if self._listener is not None:
            self._listener.close()
        connections = self._connections
        if connections is not None:
            connections.draining = True
        if self._grpc is not None:
            await self._grpc.stop(within_s)
        if connections is None:
            return True
        # A client with an open connection learns from its next answer to reconnect; it may have sent a request already.
        linger_end = min(end, time.monotonic() + self.config.limits.linger_s)
        while (  # noqa: ASYNC110 - no event for all
            connections.busy or (connections.open and time.monotonic() < linger_end)
        ) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        has_finished = not connections.busy
        await connections.hang_up()
        return has_finished

    def close(self) -> None:
        """Close everything at once."""
        if self._runs.is_running:
            self._runs.call(self._close()).result(_START_S)
            self._runs.stop()
        if self.runtime.reader_loop is self._runs.loop:
            self.runtime.reader_loop = None

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._grpc is not None:
            await self._grpc.stop(0)
        if self._connections is not None:
            self._connections.close()
        await asyncio.sleep(0)

    def __enter__(self) -> Server:  # noqa: PYI034 - typing.Self is not in 3.10
        return self if self._runs.is_running else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
