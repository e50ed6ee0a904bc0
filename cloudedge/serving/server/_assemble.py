"""A whole serving replica from its settings: runtime, data ports, admin API, and the document it follows.

`run_replica` builds it, serves until asked to stop, and lets requests under way finish.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloudedge.bundle import Bundle
from cloudedge.errors import ConfigError, NotFound
from cloudedge.hub import Hub, LocalHub
from cloudedge.serving.control import Desired
from cloudedge.serving.model import RowSource
from cloudedge.serving.protocols import Traces, load_ops
from cloudedge.serving.runtime import Follower, Runtime, RuntimeConfig
from cloudedge.serving.server._admin_api import AdminServer
from cloudedge.serving.server._server import Server, ServerConfig

__all__ = ["ReplicaHooks", "ReplicaSettings", "run_replica"]

_FIRST_AGAIN_S, _AGAIN_S = 0.25, 5.0
"""The first and the longest pause before versions that a restart did not bring back are tried again: where everything
was restarted at once, the shards that they need are there a moment later."""
_LOOK_S = 0.1


@dataclass(frozen=True)
class ReplicaSettings:
    """Everything a serving replica is started with. Immutable; checked when made."""

    server: ServerConfig
    """Its ``service`` is used unless `service` or the hooks name one."""
    runtime: RuntimeConfig
    bundles: Sequence[str] = ()
    """Loaded at the start; the first is activated unless the state names another."""
    service: str = ""
    """Of the Pipeline service; left out, the hooks' or the first bundle's name."""
    ops: str = ""
    """Hooks around Pipeline predictions: ``MODULE:NAME``."""
    admin_host: str = "127.0.0.1"
    admin_port: int = 9394
    state: Path | None = None
    follow: Path | None = None
    """The document to follow; needs `state`, and excludes `bundles`."""
    listen_when_loaded: bool = False
    """With `follow`: listen once everything that it names is loaded."""
    traces: bool = False
    drain_s: float = 10.0

    def __post_init__(self) -> None:
        if self.follow is not None and (self.bundles or self.state is None):
            raise ConfigError("--follow needs --state FILE, and neither bundles nor --cube: the document says which")


@dataclass(frozen=True)
class ReplicaHooks:
    """The surroundings of a replica: what it gets from them and reports to them."""

    hub: LocalHub
    stop: threading.Event
    """Ends it."""
    rows: Callable[[Bundle, Mapping[str, str]], RowSource] | None = None
    """Makes the source of a bundle's rows; left out, the bundle's own tables."""
    desired_rows: Callable[[Desired, Bundle, Mapping[str, str]], RowSource] | None = None
    """The same for a replica that follows a document."""
    source: Hub | None = None
    """Where bundles come from that the hub does not have."""
    on_listening: Callable[[Server, AdminServer], None] = field(default=lambda *_: None)
    on_lost: Callable[[str], None] = field(default=lambda _: None)
    """Gets a message for each version that was not brought back."""
    on_stopping: Callable[[], None] = field(default=lambda: None)


def run_replica(settings: ReplicaSettings, hooks: ReplicaHooks) -> None:
    """Serve until the stop event is set, then finish the requests under way."""
    ops, ops_service = load_ops(settings.ops) if settings.ops else (None, None)
    named = settings.service or ops_service
    following: list[Follower] = []
    runtime = Runtime(
        settings.runtime,
        hub=hooks.hub,
        rows=hooks.rows if settings.follow is None else _followed_rows(following, hooks),
        state=settings.state if settings.follow is None else None,
    )
    with runtime, ExitStack() as stack:
        lost = _restore(runtime, hooks)
        follower = _follow(runtime, settings, hooks)
        if follower is not None:
            following.append(follower)  # before it begins: loading asks it for the document
            stack.enter_context(follower)
            while settings.listen_when_loaded and not follower.has_loaded and not hooks.stop.wait(_LOOK_S):
                pass
        _load(runtime, settings.bundles)
        config = replace(settings.server, service=named or _first_service(runtime))
        spans = Traces(config.service) if settings.traces else None
        with (
            Server(runtime, config, ops=ops, traces=spans) as server,
            AdminServer(
                server,
                host=settings.admin_host,
                port=settings.admin_port,
                token=config.admin_token,
                on_drained=hooks.stop.set,
                orders=None if settings.state is None else settings.state.with_name(f"{settings.state.name}.order"),
                follower=follower,
            ) as admin,
        ):
            hooks.on_listening(server, admin)
            tries = 0
            while not hooks.stop.wait(pause_before_restore(tries) if lost else None):
                tries += 1
                lost = _restore(runtime, hooks)
            hooks.on_stopping()
            server.drain(settings.drain_s)
            if spans is not None:
                spans.close()


def pause_before_restore(tries: int) -> float:
    """Return the pause before lost versions are tried again, after so many further tries."""
    return min(_AGAIN_S, _FIRST_AGAIN_S * 2.0 ** min(tries, 30))


def _load(runtime: Runtime, bundles: Sequence[str]) -> None:
    pins = [runtime.load(bundle).pin for bundle in bundles]
    if runtime.wanted.active is None and pins:
        runtime.activate(pins[0])


def _restore(runtime: Runtime, hooks: ReplicaHooks) -> list[str]:
    lost = runtime.restore()
    for each in lost:
        hooks.on_lost(each)
    return lost


def _first_service(runtime: Runtime) -> str:
    active = next((version for version in runtime.versions() if version.active), None)
    return active.name if active else "model"


def _followed_rows(
    following: Sequence[Follower], hooks: ReplicaHooks
) -> Callable[[Bundle, Mapping[str, str]], RowSource]:
    """Return what makes the source of rows for a bundle of the document; the follower is there by then."""

    def rows(bundle: Bundle, tables: Mapping[str, str]) -> RowSource:
        desired = following[0].desired if following else Desired()
        if hooks.desired_rows is None:
            raise ConfigError("a replica that follows a document has nothing to make sources of rows with")
        return hooks.desired_rows(desired, bundle, tables)

    return rows


def _follow(runtime: Runtime, settings: ReplicaSettings, hooks: ReplicaHooks) -> Follower | None:
    if settings.follow is None or settings.state is None:
        return None

    def fetch(ref: str, tables: bool) -> None:  # noqa: FBT001 - as the follower calls it
        try:
            bundle = Bundle.open(ref, hub=runtime.hub)
            rows = {layer.digest for layers in bundle.table_layers.values() for layer in layers if not tables}
            needed = [blob for blob in bundle.manifest.blobs if blob.digest not in rows]
            if all(runtime.hub.has_blob(bundle.name, blob) for blob in needed):
                return
        except NotFound:
            if hooks.source is None:
                raise
        if hooks.source is not None:
            Bundle.pull(ref, hooks.source, hub=runtime.hub, tables=tables)

    return Follower(runtime, settings.follow, kept=settings.state, fetch=fetch)
