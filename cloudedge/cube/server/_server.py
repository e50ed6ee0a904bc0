"""The cube server in this process: one shard's versions behind one port, answered by native threads.

Python decides which versions are loaded and when to stop; no request passes through it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cloudedge import _core
from cloudedge.cube.server._load import load_patch, load_version
from cloudedge.errors import ConfigError, Conflict, NotFound
from cloudedge.io import join_address

__all__ = ["Loader", "PatchLoader", "Server", "ServerConfig", "VersionInfo"]

Loader = Callable[[str, str], _core.Version]
"""Loads a version from the files under a path: path, name."""
PatchLoader = Callable[[_core.Version, str, str], _core.Version]
"""Loads a version from the files under a path on top of another one: base, path, name."""


_HELD_BY_THREAD = 16 << 20


@dataclass(frozen=True)
class ServerConfig:
    """The address and the limits of a cube server. Immutable; checked when made."""

    host: str = "127.0.0.1"
    """Loopback by default: the data port has no authentication, like upstream's."""
    port: int = 8027
    """0 takes any free one."""
    threads: int = 0
    """Threads that answer requests; 0: one for each core that this process may use."""
    data_dir: Path = Path("data")
    """The directory that control commands load from; they cannot name anything outside of it."""
    remote_control: bool = False
    """Accept control commands from other machines too. They can load, switch and unload without a token."""
    max_body_bytes: int = 64 * 1024 * 1024
    """The most bytes of a request and of an answer; brpc's own limit."""
    max_keys: int = 262_144
    """The most keys in one request."""
    max_connections: int = 20_000
    max_held_bytes: int | None = None
    """Bytes of half-received requests and unread answers over all connections; beyond it, those that have held some for
    longest are closed. By default 16 MiB for each thread."""
    idle_timeout_s: float = 600
    """For a connection between two requests."""
    request_timeout_s: float = 30
    """From a request's first byte to its last."""
    write_timeout_s: float = 30
    """For a client that does not read its answers."""
    spin_us: int = 100
    """Microseconds that a busy thread polls for the next request before it sleeps; 0: never."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"port must be 0 to 65535, not {self.port}")
        if self.threads < 0:
            raise ConfigError(f"threads must not be below 0, not {self.threads}")
        if self.spin_us < 0:
            raise ConfigError(f"spin_us must not be below 0, not {self.spin_us}")
        positive = ("max_body_bytes", "max_keys", "max_connections", "max_held_bytes")
        for name in (*positive, "idle_timeout_s", "request_timeout_s", "write_timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value}")


@dataclass(frozen=True)
class VersionInfo:
    """A loaded version."""

    name: str
    rows: int
    memory_bytes: int
    """The memory that this version alone adds; a delta does not count its base."""
    checksum: str
    active: bool


class Server:
    """One shard behind one port.

    >>> with Server(ServerConfig(port=0)) as server:  # doctest: +SKIP
    ...     server.load("data/100", "100", activate=True)
    """

    def __init__(
        self,
        config: ServerConfig | None = None,
        *,
        loader: Loader = load_version,
        patch_loader: PatchLoader = load_patch,
    ) -> None:
        self.config = config or ServerConfig()
        threads = self.config.threads or len(os.sched_getaffinity(0))
        self._core = _core.CubeServer(
            loader=loader,
            patch_loader=patch_loader,
            host=self.config.host,
            port=self.config.port,
            threads=threads,
            data_dir=str(self.config.data_dir),
            remote_control=self.config.remote_control,
            max_body=self.config.max_body_bytes,
            max_keys=self.config.max_keys,
            max_connections=self.config.max_connections,
            idle_ms=int(self.config.idle_timeout_s * 1000),
            message_ms=int(self.config.request_timeout_s * 1000),
            write_ms=int(self.config.write_timeout_s * 1000),
            held_bytes=self.config.max_held_bytes or threads * _HELD_BY_THREAD,
            spin_us=self.config.spin_us,
        )

    def start(self) -> Server:
        """Listen and answer.

        Raises:
            Conflict: another program listens on that address.
            ConfigError: this process may not listen on that address.
        """
        try:
            self._core.start()
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            hint = "Choose another port, or stop what listens there." if taken else "Choose another host or port."
            raise (Conflict if taken else ConfigError)(f"cannot {error.strerror}", hint=hint) from error
        except RuntimeError as error:
            raise ConfigError(f"cannot listen: {error}") from error
        return self

    def refuse_control(self, reason: str) -> None:
        """Answer every control command but ``status`` with a reason, for a server whose versions a store keeps."""
        self._core.refuse_control(reason)

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._core.port

    @property
    def address(self) -> str:
        """host:port, the form that clients take."""
        return join_address(self.config.host, self.port)

    @property
    def is_ready(self) -> bool:
        """Tell whether requests are answered with rows: a version is active and the server is not stopping."""
        return self._core.active() is not None and not self._core.draining

    def add(self, version: _core.Version) -> None:
        """Add a version that is in memory already.

        Raises:
            Conflict: a version of that name is loaded.
        """
        with _translated():
            self._core.add(version)

    def load(self, path: str | Path, name: str, *, base: str | None = None, activate: bool = False) -> None:
        """Load a version beside the others, on top of `base` where the path holds a delta.

        Raises:
            Conflict: a version of that name is loaded, or being loaded.
            NotFound: the base is not loaded.
            CloudEdgeError: the loader refused the files; loaded versions stay.
        """
        with _translated():
            if base is None:
                self._core.load(str(path), name)
            else:
                self._core.patch(base, str(path), name)
        if activate:
            self.activate(name)

    def activate(self, name: str) -> None:
        """Make a loaded version the one that answers requests without a pin.

        Raises:
            NotFound: it is not loaded.
        """
        with _translated():
            self._core.activate(name)

    def deactivate(self) -> None:
        """Answer requests without a pin with nothing, as before the first version was activated."""
        self._core.deactivate()

    def unload(self, name: str) -> None:
        """Unload a version that is not active; requests that use it finish first.

        Raises:
            NotFound: it is not loaded.
            Conflict: it is active.
        """
        with _translated():
            self._core.unload(name)

    @property
    def active(self) -> str | None:
        """The version that answers requests without a pin."""
        return self._core.active()

    def versions(self) -> list[VersionInfo]:
        """List the loaded versions by name."""
        active = self._core.active()
        return sorted(
            (
                VersionInfo(name, rows, memory_bytes, f"{high:016x}{low:016x}", active=name == active)
                for name, rows, memory_bytes, (low, high) in self._core.versions()
            ),
            key=lambda version: version.name,
        )

    def stats(self) -> dict[str, Any]:
        """Count requests, keys, bytes and connections since the start."""
        return self._core.stats()

    def drain(self, within_s: float = 10) -> None:
        """Stop accepting, finish the requests under way, and close, at the latest when the time is up.

        Connected clients are answered as before during the first half of the time. During the second half they learn
        that the server is stopping.
        """
        self._core.drain(int(within_s * 1000))

    def close(self) -> None:
        """Stop at once; requests under way get no answer."""
        self._core.stop()

    def __enter__(self) -> Server:  # noqa: PYI034 - typing.Self is not in 3.10
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the core's errors about names into errors of cloudedge's tree; a loader's own errors pass."""
    try:
        yield
    except _core.NotLoaded as error:
        raise NotFound(str(error), hint="Load it first; `cloudedge cube stat` lists the loaded versions.") from error
    except _core.NameTaken as error:
        raise Conflict(str(error)) from error
