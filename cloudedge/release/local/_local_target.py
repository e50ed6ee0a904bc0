"""A local target: start it, end it, and make the places of its releases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import requests

from cloudedge import supervisor
from cloudedge.clock import Clock, SystemClock
from cloudedge.config import Config, TargetConfig, load
from cloudedge.cube.delivery import ArtifactCache
from cloudedge.errors import ConfigError, Conflict, Unavailable
from cloudedge.hub import LocalHub
from cloudedge.release.core import Layouts, Place, Shards
from cloudedge.release.local._processes import ProcessLayout, ServerProcess, is_free
from cloudedge.release.places import Dispatch, ServingPlace, ShardPlace, shard_replica

__all__ = ["down", "layout_of", "layouts", "places", "serving_urls", "target_folder", "up"]

_HEALTH_S = 2.0
_DENIED = 401
_PORTS_S = 5.0
"""The time for which a port may still be taken: a killed process is gone before its listeners are."""


def layout_of(name: str, *, config: Config | None = None) -> ProcessLayout:
    """Return the processes of a local target of cloudedge.yaml.

    Raises:
        ConfigError: there is no such target, or it is not a local one.
    """
    settings = config or load()
    section = settings.targets.get(name)
    if section is None:
        known = ", ".join(sorted(settings.targets)) or "none"
        raise ConfigError(f"there is no target {name!r}", hint=f"Targets in cloudedge.yaml: {known}.")
    if section.kind != "local":
        raise ConfigError(f"target {name!r} is of the kind {section.kind}: its processes are not this machine's")
    return ProcessLayout(name, section, hub=LocalHub().root)


def up(name: str, *, config: Config | None = None, within_s: float = 120.0) -> ProcessLayout:
    """Start a local target's processes, under a supervisor that outlives the caller; running ones are left alone.

    Servers that run with another token than the target's, which was lost, are restarted, one after the other.

    Raises:
        Conflict: another process listens on one of its ports.
        Unavailable: a process does not come up; the message has what it wrote last.
    """
    layout = layout_of(name, config=config)
    layout.take_ports()
    servers = [*layout.sparse(), *layout.dense()]
    _require_ports(layout, servers, SystemClock())
    admins = {server.process: server.admin for server in servers}
    supervisor.up(layout.folder, layout.specs(), is_ready=lambda process: _is_there(admins[process]), within_s=within_s)
    for server in servers:
        _require_token(layout, server, SystemClock(), within_s)
    return layout


def _require_token(layout: ProcessLayout, server: ServerProcess, clock: Clock, within_s: float) -> None:
    """Restart a server that does not accept the target's token, and wait until it does and answers as before."""
    if not _refuses(server, layout.token()):
        return
    was_ready, end = _is_ok(f"{server.admin}/ready"), clock.monotonic() + within_s
    supervisor.restart(layout.folder, server.process)
    while _refuses(server, layout.token()) or not _is_ok(f"{server.admin}/{'ready' if was_ready else 'health'}"):
        if clock.monotonic() > end:
            raise Unavailable(
                f"{server.place} of {layout.name} is not back with the new token after {within_s:.0f} s; its output:\n"
                f"{supervisor.log_tail(layout.folder, server.process)}",
                hint=f"End it with `cloudedge down {layout.name}`, then run `cloudedge up {layout.name}` again.",
            )
        clock.sleep(_PORTS_S / 50)


def down(name: str, *, config: Config | None = None) -> None:
    """End a local target's processes; after the next `up` they have loaded what they have now."""
    supervisor.down(layout_of(name, config=config).folder)


def serving_urls(name: str, *, config: Config | None = None) -> list[str]:
    """Return the URLs of a local target's serving replicas."""
    return [f"http://{server.address}" for server in layout_of(name, config=config).dense()]


def target_folder(name: str, *, config: Config | None = None) -> Path:
    """Return the folder of a local target's files."""
    return layout_of(name, config=config).folder


def places(name: str, section: TargetConfig) -> Sequence[Place]:
    """Make the places of a local target."""
    hub = LocalHub()
    layout = ProcessLayout(name, section, hub=hub.root)
    servers = layout.sparse()
    artifacts = ArtifactCache(layout.folder / "artifacts")
    cuts = {
        shards: Dispatch(
            [server for server in servers if server.shards == shards], token=layout.token, artifacts=artifacts, hub=hub
        )
        for shards in {server.shards for server in servers}
    }

    def restarts(server: ServerProcess) -> Callable[[], str]:
        return partial(_restarts, layout.folder, server.process)

    return [
        *(ShardPlace(each, cuts[each.shards], host="here", restarts=restarts(each)) for each in servers),
        *(
            ServingPlace(each, token=layout.token, hub=hub, host="here", restarts=restarts(each))
            for each in layout.dense()
        ),
    ]


def _restarts(folder: Path, process: str) -> str:
    """Describe the restarts of a process since its supervisor started."""
    state = supervisor.process_states(folder).get(process, {})
    times = state.get("restarts", 0)
    return f"was restarted {times} time{'s' if times > 1 else ''} ({state['last_exit']})" if times else ""


def layouts(name: str, section: TargetConfig) -> Layouts:
    """Make the layouts of a local target."""
    return LocalLayouts(ProcessLayout(name, section, hub=LocalHub().root))


class LocalLayouts:
    """The layouts of a local target: cloudedge.yaml defines the next one, and `up` has started its servers."""

    def __init__(self, layout: ProcessLayout) -> None:
        self._layout = layout

    def now(self) -> Shards:
        """See `Layouts`."""
        return self._layout.now()

    def publish(self, shards: Shards) -> None:
        """See `Layouts`: cube.conf's plain names follow what is live."""
        self._layout.publish(shards or None)

    def retire(self) -> Collection[str]:
        """See `Layouts`: the supervisor ends what is off its list, also if this process dies."""
        empty = [server for servers in self._layout.earlier() if self._hold_nothing(servers) for server in servers]
        gone = [server.process for server in empty]
        if empty:
            left = [spec for spec in self._layout.specs() if spec.name not in gone]
            supervisor.change(self._layout.folder, left, gone=gone)
        self._layout.tidy()
        return [server.place for server in empty]

    def _hold_nothing(self, servers: Sequence[ServerProcess]) -> bool:
        token = self._layout.token()
        return not any(shard_replica(server, token).status().versions for server in servers)


def _require_ports(layout: ProcessLayout, servers: Sequence[ServerProcess], clock: Clock) -> None:
    running = supervisor.find_processes(layout.folder)
    end = clock.monotonic() + _PORTS_S
    for server in servers:
        for port in (server.port, server.admin_port) if server.process not in running else ():
            while not is_free(port):
                if clock.monotonic() > end:
                    raise Conflict(
                        f"{server.place} of {layout.name} cannot listen on port {port}: another process does",
                        hint=f"End that process, or remove {layout.folder / 'ports.json'}: then `cloudedge up` takes "
                        "other ports, and clients have to learn them.",
                        port=port,
                    )
                clock.sleep(_PORTS_S / 50)


def _is_there(admin: str) -> bool:
    return _is_ok(f"{admin}/health")


def _refuses(server: ServerProcess, token: str) -> bool:
    """Tell whether a server answers that it has another token; one that does not answer may have the right one."""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        return requests.get(f"{server.admin}/versions", headers=headers, timeout=_HEALTH_S).status_code == _DENIED
    except requests.RequestException:
        return False


def _is_ok(url: str) -> bool:
    try:
        return requests.get(url, timeout=_HEALTH_S).ok
    except requests.RequestException:
        return False
