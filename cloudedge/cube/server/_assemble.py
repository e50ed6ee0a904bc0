"""Assembly of a whole cube server from its settings: data port, versions on disk, admin API.

`run_shard` builds it, serves until asked to stop, and lets requests under way finish.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cloudedge.cube.server._admin_api import AdminServer
from cloudedge.cube.server._server import Server, ServerConfig
from cloudedge.cube.server._version_store import VersionStore
from cloudedge.errors import ConfigError, InputError
from cloudedge.http1 import is_loopback

__all__ = ["ShardHooks", "ShardSettings", "find_version", "run_shard"]


@dataclass(frozen=True)
class ShardSettings:
    """The settings of a cube server. Immutable; checked when made."""

    server: ServerConfig
    directory: Path
    """A part, or the directory of versions."""
    version: str = ""
    empty: bool = False
    """Load nothing at the start."""
    is_open: bool = False
    """Let any client that reaches the data port read, beyond loopback."""
    admin_host: str = "127.0.0.1"
    admin_port: int = 8028
    token: str | None = field(default=None, repr=False)
    state: Path | None = None
    """The directory of versions that survive restarts."""
    wanted: Path | None = None
    fetch_limit: float | None = None
    """In bytes per second."""
    drain_s: float = 10.0

    def __post_init__(self) -> None:
        if not (self.is_open or is_loopback(self.server.host)):
            raise ConfigError(
                f"any client that reaches {self.server.host} could read every row: cube's protocol has no token",
                hint="Add `--open` if the network lets only trusted clients through, or leave `--host` at 127.0.0.1.",
            )
        if self.server.remote_control and self.state is not None:
            raise InputError(
                "a server with --state takes no control commands, so --remote-control cannot be had with it"
            )


@dataclass(frozen=True)
class ShardHooks:
    """The stop signal of a cube server, and the callbacks it reports to."""

    stop: threading.Event
    """Ends the server."""
    on_listening: Callable[[Server, AdminServer], None] = field(default=lambda *_: None)
    on_lost: Callable[[str], None] = field(default=lambda _: None)
    """Gets a message for each version that was not restored."""
    on_stopping: Callable[[], None] = field(default=lambda: None)


def run_shard(settings: ShardSettings, hooks: ShardHooks) -> None:
    """Serve until the stop event is set, then finish the requests under way."""
    server = Server(settings.server)
    store = None
    if settings.state is not None:
        store = VersionStore(server, settings.state, limit_bytes_per_s=settings.fetch_limit)
        for problem in store.restore():
            hooks.on_lost(problem)
    if not settings.empty and not server.versions():
        _load_first(settings, server, store)
    with (
        server,
        AdminServer(
            server,
            host=settings.admin_host,
            port=settings.admin_port,
            token=settings.token,
            on_drained=hooks.stop.set,
            holdings=store,
            wanted=settings.wanted,
        ) as admin,
    ):
        hooks.on_listening(server, admin)
        hooks.stop.wait()
        hooks.on_stopping()
        server.drain(settings.drain_s)


def _load_first(settings: ShardSettings, server: Server, store: VersionStore | None) -> None:
    path, name = find_version(settings.directory, settings.version)
    if store is None:
        server.load(path, name, activate=True)
    else:
        store.load(name, path=str(path.absolute()))
        store.activate(name)


def find_version(directory: Path, version: str = "") -> tuple[Path, str]:
    """Find the version to serve; returns its path and its name.

    As upstream's server: the version that DIR/VERSION names, or DIR itself without a name. With a version:
    DIR/<version>, or DIR itself under that name if it is a part.
    """
    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory", hint="Build a version with `cloudedge cube build`.")
    if version and (directory / version).is_dir():
        return directory / version, version
    if version and not (directory / "index.n").is_file():
        raise InputError(f"there is no version {version!r} under {directory}, and it is not a part itself")
    pointer = directory / "VERSION"
    if version or not pointer.exists():
        return directory, version
    lines = pointer.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0]:
        raise InputError(f"{pointer} is empty", hint="Write the version to serve as its first line.")
    return directory / lines[0], lines[0]
