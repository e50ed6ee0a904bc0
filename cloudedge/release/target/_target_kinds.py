"""The kinds of targets, and how a target is built from its section of cloudedge.yaml.

`register_kind` adds a kind: a function that makes its places, and one that makes its `Layouts` if its tables can be cut
anew. The kinds that come with cloudedge are added the same way, below. A kind named as `module:function` is imported
when a target of that kind is first opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cloudedge.bundle import SeenVersions
from cloudedge.config import TargetConfig, accept_target_kind, home, load
from cloudedge.errors import ConfigError
from cloudedge.hub import LocalHub, open_hub
from cloudedge.io import who
from cloudedge.journal import Journal
from cloudedge.release.core import FixedLayout, Layouts, Place, ReleaseContext
from cloudedge.release.target._bundle_source import HubBundleSource

if TYPE_CHECKING:
    from cloudedge.config import Config

__all__ = ["Builder", "TargetKind", "build", "journal_path", "register_kind"]

_Made = TypeVar("_Made", bound=Callable[..., Any])
Builder = Callable[[str, TargetConfig], Sequence[Place]]
"""Makes the places of a target from its name and its section of cloudedge.yaml."""
LayoutsBuilder = Callable[[str, TargetConfig], Layouts]
"""Makes the layouts of a target from its name and its section of cloudedge.yaml."""


@dataclass(frozen=True)
class TargetKind:
    """The functions behind a kind of target, or where to import them from, as `module:function`."""

    places: str | Builder
    layouts: str | LayoutsBuilder | None = None
    """None: the tables of such a target stay cut as they are."""


_RESERVE_BYTES = 4 << 20
"""Room for a rollback on a full disk: the journal's lines, tags in the local hub, and the state of local servers."""
_kinds: dict[str, TargetKind] = {}


def register_kind(kind: str, builder: str | Builder, layouts: str | LayoutsBuilder | None = None) -> None:
    """Add a kind of target, or replace one.

    Args:
        kind: Its name in cloudedge.yaml.
        builder: Makes the places of such a target.
        layouts: Makes its layouts, if its tables can be cut anew.
    """
    _kinds[kind] = TargetKind(builder, layouts)
    accept_target_kind(kind)


register_kind("local", "cloudedge.release.local:places", "cloudedge.release.local:layouts")
register_kind("kubernetes", "cloudedge.release.kubernetes:places", "cloudedge.release.kubernetes:layouts")
register_kind("bie", "cloudedge.release.edge:places")


def journal_path(name: str) -> Path:
    """Return the path of a target's journal."""
    return home() / "targets" / f"{name}.db"


def build(name: str, config: Config | None = None) -> ReleaseContext:
    """Open a target that cloudedge.yaml names.

    Raises:
        ConfigError: there is no target of that name, or its kind is unknown here.
    """
    settings = config or load()
    section = settings.targets.get(name)
    if section is None:
        known = ", ".join(sorted(settings.targets)) or "none"
        raise ConfigError(f"there is no target {name!r}", hint=f"Targets in cloudedge.yaml: {known}.")
    kind = _kind(section.kind)
    places = {place.name: place for place in (*_function(kind.places)(name, section), *_edge(name, settings))}
    hub = settings.hubs.get(section.hub or settings.default_hub or "")
    key = Path(section.key).expanduser() if section.key else None
    source = HubBundleSource(
        name,
        LocalHub(),
        source=open_hub(hub) if hub is not None else None,
        shards=_shards(places, section),
        key=key,
        seen=SeenVersions(home() / "seen-versions", key) if key is not None else None,
    )
    layouts = _function(kind.layouts)(name, section) if kind.layouts is not None else FixedLayout()
    journal = Journal(journal_path(name), reserve_bytes=_RESERVE_BYTES)
    return ReleaseContext(name, places, journal, source, by=who(), layouts=layouts)


def _edge(name: str, config: Config) -> Sequence[Place]:
    if config.targets[name].edge is None:
        return ()
    from cloudedge.release.edge import fleet_place  # noqa: PLC0415 - other targets need no BIE client

    return (fleet_place(name, config),)


def _kind(name: str) -> TargetKind:
    found = _kinds.get(name)
    if found is None:
        raise ConfigError(f"there is no kind of target {name!r} here", hint=f"Choose one of {', '.join(_kinds)}.")
    return found


def _function(named: str | _Made) -> _Made:
    if not isinstance(named, str):
        return named
    module, _, function = named.partition(":")
    found: _Made = getattr(importlib.import_module(module), function)
    return found


def _shards(places: Mapping[str, Place], section: TargetConfig) -> Mapping[str, int]:
    """Return by table the number of its shards; a place of the sparse leg is called sparse/TABLE/SHARD/REPLICA."""
    tables = {name.split("/")[1] for name, place in places.items() if place.leg == "sparse"}
    return dict.fromkeys(tables, section.sparse.shards if section.sparse else 1)
