"""Which kinds of targets there are and who builds their places: the seam where a new kind is added."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cloudedge.config import TargetConfig, home, load
from cloudedge.errors import ConfigError
from cloudedge.hub import LocalHub, open_hub, who
from cloudedge.journal import Journal
from cloudedge.release.core import FixedLayout, Layouts, Place, ReleaseContext
from cloudedge.release.target._bundle_source import HubBundleSource

if TYPE_CHECKING:
    from cloudedge.config import Config

__all__ = ["KINDS", "LAYOUTS", "Builder", "build", "journal_path", "register_kind"]

_Made = TypeVar("_Made", bound=Callable[..., Any])
Builder = Callable[[str, TargetConfig], Sequence[Place]]
"""Makes the places of a target from its name and its section of cloudedge.yaml."""

_Cutter = Callable[[str, TargetConfig], Layouts]
LAYOUTS: dict[str, str | _Cutter] = {
    "local": "cloudedge.release.local:layouts",
    "kubernetes": "cloudedge.release.kubernetes:layouts",
}
"""By kind, as `KINDS`: who cuts the tables of a target anew; of other kinds they stay as they are."""


def _no_others(_name: str, section: TargetConfig) -> Sequence[Place]:
    """Make the places of a target that is nothing but a fleet; the fleet itself comes with every edge section."""
    if section.edge is None:
        raise ConfigError("a target of the kind bie needs an edge section", hint="docs/edge.md shows one.")
    return ()


KINDS: dict[str, str | Builder] = {
    "local": "cloudedge.release.local:places",
    "kubernetes": "cloudedge.release.kubernetes:places",
    "bie": _no_others,
}
"""By kind: who builds the places, or where to import that from, `module:function`, when it is first needed."""


def register_kind(kind: str, builder: str | Builder, layouts: str | _Cutter | None = None) -> None:
    """Say who builds the places of a kind of target, and who cuts its tables anew if that is possible there."""
    KINDS[kind] = builder
    LAYOUTS.pop(kind, None)
    if layouts is not None:
        LAYOUTS[kind] = layouts


def journal_path(name: str) -> Path:
    """Return where a target's journal is."""
    return home() / "targets" / f"{name}.db"


def build(name: str, config: Config | None = None) -> ReleaseContext:
    """Open a target that cloudedge.yaml names.

    Raises:
        ConfigError: there is none of that name, or its kind cannot be had here.
    """
    settings = config or load()
    section = settings.targets.get(name)
    if section is None:
        known = ", ".join(sorted(settings.targets)) or "none"
        raise ConfigError(f"there is no target {name!r}", hint=f"cloudedge.yaml names: {known}.")
    places = {place.name: place for place in (*_builder(section.kind)(name, section), *_edge(name, settings))}
    hub = settings.hubs.get(section.hub or settings.default_hub or "")
    bundles = HubBundleSource(
        name,
        LocalHub(),
        source=open_hub(hub) if hub is not None else None,
        shards=_shards(places, section),
        key=Path(section.key).expanduser() if section.key else None,
    )
    layouts = _found(LAYOUTS[section.kind])(name, section) if section.kind in LAYOUTS else FixedLayout()
    return ReleaseContext(name, places, Journal(journal_path(name)), bundles, by=who(), layouts=layouts)


def _edge(name: str, config: Config) -> Sequence[Place]:
    if config.targets[name].edge is None:
        return ()
    from cloudedge.release.edge import fleet_place  # noqa: PLC0415 - other targets need no BIE client

    return (fleet_place(name, config),)


def _builder(kind: str) -> Builder:
    found = KINDS.get(kind)
    if found is None:
        raise ConfigError(f"targets of the kind {kind!r} cannot be had here", hint=f"There are: {', '.join(KINDS)}.")
    return _found(found)


def _found(builder: str | _Made) -> _Made:
    if not isinstance(builder, str):
        return builder
    module, _, function = builder.partition(":")
    found: _Made = getattr(importlib.import_module(module), function)
    return found


def _shards(places: Mapping[str, Place], section: TargetConfig) -> Mapping[str, int]:
    """Return into how many shards each table is cut; a place of the sparse leg is called sparse/TABLE/SHARD/REPLICA."""
    tables = {name.split("/")[1] for name, place in places.items() if place.leg == "sparse"}
    return dict.fromkeys(tables, section.sparse.shards if section.sparse else 1)
