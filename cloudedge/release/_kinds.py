"""Which kinds of targets there are and who builds their places: the seam where a new kind is added."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloudedge.config import TargetConfig, home, load
from cloudedge.errors import ConfigError
from cloudedge.hub import LocalHub, open_hub, who
from cloudedge.journal import Journal
from cloudedge.release._ground import Ground
from cloudedge.release._places import Place
from cloudedge.release._shelf import HubShelf

if TYPE_CHECKING:
    from cloudedge.config import Config

__all__ = ["KINDS", "Builder", "build", "journal_path", "register_kind"]

Builder = Callable[[str, TargetConfig], Sequence[Place]]
"""Makes the places of a target from its name and its section of cloudedge.yaml."""

KINDS: dict[str, str | Builder] = {"local": "cloudedge.release.local:places"}
"""By kind: who builds the places, or where to import that from, `module:function`, when it is first needed."""


def register_kind(kind: str, builder: str | Builder) -> None:
    """Say who builds the places of a kind of target."""
    KINDS[kind] = builder


def journal_path(name: str) -> Path:
    """Return where a target's journal is."""
    return home() / "targets" / f"{name}.db"


def build(name: str, config: Config | None = None) -> Ground:
    """Open a target that cloudedge.yaml names.

    Raises:
        ConfigError: there is none of that name, or its kind cannot be had here.
    """
    settings = config or load()
    section = settings.targets.get(name)
    if section is None:
        known = ", ".join(sorted(settings.targets)) or "none"
        raise ConfigError(f"there is no target {name!r}", hint=f"cloudedge.yaml names: {known}.")
    places = {place.name: place for place in _builder(section.kind)(name, section)}
    hub = settings.hubs.get(section.hub or settings.default_hub or "")
    shelf = HubShelf(
        name,
        LocalHub(),
        source=open_hub(hub) if hub is not None else None,
        shards=_shards(places, section),
        key=Path(section.key).expanduser() if section.key else None,
    )
    return Ground(name, places, Journal(journal_path(name)), shelf, by=who())


def _builder(kind: str) -> Builder:
    found = KINDS.get(kind)
    if found is None:
        raise ConfigError(f"targets of the kind {kind!r} cannot be had here", hint=f"There are: {', '.join(KINDS)}.")
    if isinstance(found, str):
        module, _, function = found.partition(":")
        builder: Builder = getattr(importlib.import_module(module), function)
        return builder
    return found


def _shards(places: Mapping[str, Place], section: TargetConfig) -> Mapping[str, int]:
    """Return into how many shards each table is cut; a place of the sparse leg is called sparse/TABLE/SHARD/REPLICA."""
    tables = {name.split("/")[1] for name, place in places.items() if place.leg == "sparse"}
    return dict.fromkeys(tables, section.sparse.shards if section.sparse else 1)
