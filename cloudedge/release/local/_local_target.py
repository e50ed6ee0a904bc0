"""A local target as a whole: up, down, and the places a release works with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import requests

from cloudedge import supervisor
from cloudedge.clock import Clock, SystemClock
from cloudedge.config import Config, TargetConfig, load
from cloudedge.cube.delivery import ArtifactCache
from cloudedge.errors import ConfigError, Conflict
from cloudedge.hub import LocalHub
from cloudedge.release.core import Layouts, Place, Shards
from cloudedge.release.local._processes import ProcessLayout, Seat, is_free
from cloudedge.release.places import Dispatch, ServingPlace, ShardPlace, shard_replica

__all__ = ["down", "layout_of", "layouts", "places", "serving_urls", "target_folder", "up"]

_HEALTH_S = 2.0
_PORTS_S = 5.0
"""How long a port may still be taken: a process that was killed is gone before its listeners are."""


def layout_of(name: str, *, config: Config | None = None) -> ProcessLayout:
    """Return what a local target of cloudedge.yaml consists of.

    Raises:
        ConfigError: there is no such target, or it is not a local one.
    """
    settings = config or load()
    section = settings.targets.get(name)
    if section is None:
        known = ", ".join(sorted(settings.targets)) or "none"
        raise ConfigError(f"there is no target {name!r}", hint=f"cloudedge.yaml names: {known}.")
    if section.kind != "local":
        raise ConfigError(f"target {name!r} is of the kind {section.kind}: its processes are not this machine's")
    return ProcessLayout(name, section, hub=LocalHub().root)


def up(name: str, *, config: Config | None = None, within_s: float = 120.0) -> ProcessLayout:
    """Start a local target's processes, under a supervisor that outlives the caller; what runs is left alone.

    Raises:
        Conflict: somebody else listens on one of its ports.
        Unavailable: a process does not come up; says what it wrote last.
    """
    layout = layout_of(name, config=config)
    layout.take_ports()
    seats = [*layout.sparse(), *layout.dense()]
    _require_ports(layout, seats, SystemClock())
    admins = {seat.process: seat.admin for seat in seats}
    supervisor.up(layout.folder, layout.specs(), is_ready=lambda process: _is_there(admins[process]), within_s=within_s)
    return layout


def down(name: str, *, config: Config | None = None) -> None:
    """End a local target's processes; what they have loaded is there again after the next `up`."""
    supervisor.down(layout_of(name, config=config).folder)


def serving_urls(name: str, *, config: Config | None = None) -> list[str]:
    """Return where a local target answers predictions."""
    return [f"http://{seat.address}" for seat in layout_of(name, config=config).dense()]


def target_folder(name: str, *, config: Config | None = None) -> Path:
    """Return where a local target keeps its files."""
    return layout_of(name, config=config).folder


def places(name: str, section: TargetConfig) -> Sequence[Place]:
    """Make the places of a local target."""
    hub = LocalHub()
    layout = ProcessLayout(name, section, hub=hub.root)
    seats = layout.sparse()
    artifacts = ArtifactCache(layout.folder / "artifacts")
    cuts = {
        shards: Dispatch(
            [seat for seat in seats if seat.shards == shards], token=layout.token, workshop=artifacts, hub=hub
        )
        for shards in {seat.shards for seat in seats}
    }
    sparse: list[Place] = [ShardPlace(seat, cuts[seat.shards], host="here") for seat in seats]
    return [*sparse, *(ServingPlace(seat, token=layout.token, hub=hub, host="here") for seat in layout.dense())]


def layouts(name: str, section: TargetConfig) -> Layouts:
    """Make what cuts the tables of a local target anew."""
    return LocalLayouts(ProcessLayout(name, section, hub=LocalHub().root))


class LocalLayouts:
    """The layouts of a local target: cloudedge.yaml says the next one, `up` has started its servers."""

    def __init__(self, layout: ProcessLayout) -> None:
        self._layout = layout

    def now(self) -> Shards:
        """See `Layouts`."""
        return self._layout.now()

    def publish(self, shards: Shards) -> None:
        """See `Layouts`: cube.conf's plain names follow what is live."""
        self._layout.publish(shards or None)

    def retire(self) -> Collection[str]:
        """See `Layouts`: what no longer shall run is gone, and the supervisor sees to it whatever happens to us."""
        empty = [seat for seats in self._layout.earlier() if self._hold_nothing(seats) for seat in seats]
        gone = [seat.process for seat in empty]
        if empty:
            left = [spec for spec in self._layout.specs() if spec.name not in gone]
            supervisor.change(self._layout.folder, left, gone=gone)
        self._layout.tidy()
        return [seat.place for seat in empty]

    def _hold_nothing(self, seats: Sequence[Seat]) -> bool:
        token = self._layout.token()
        return not any(shard_replica(seat, token).status().versions for seat in seats)


def _require_ports(layout: ProcessLayout, seats: Sequence[Seat], clock: Clock) -> None:
    running = supervisor.find_processes(layout.folder)
    end = clock.monotonic() + _PORTS_S
    for seat in seats:
        for port in (seat.port, seat.admin_port) if seat.process not in running else ():
            while not is_free(port):
                if clock.monotonic() > end:
                    raise Conflict(
                        f"{seat.place} of {layout.name} cannot listen on port {port}: somebody else does",
                        hint=f"End whoever does, or remove {layout.folder / 'ports.json'}: then others are taken, and "
                        "clients have to learn them.",
                        port=port,
                    )
                clock.sleep(_PORTS_S / 50)


def _is_there(admin: str) -> bool:
    try:
        return requests.get(f"{admin}/health", timeout=_HEALTH_S).ok
    except requests.RequestException:
        return False
