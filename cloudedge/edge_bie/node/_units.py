"""The saved state of a node: the live and the previous version of each app, and the highest accepted number.

One small file, published by rename. It decides what runs: after a crash the node brings the machine to the state of the
file, so no half-done change is ever visible.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudedge.edge_bie.model import AppRef
from cloudedge.edge_bie.node._sync import Desire
from cloudedge.errors import IntegrityError
from cloudedge.supervisor import write_json

__all__ = ["Bind", "Lead", "NodeState", "ServiceRun", "Slot", "Unit", "remembered"]

_FORMAT = 1


@dataclass(frozen=True)
class Lead:
    """A host port, the service's own port, and the private port of this machine that leads to it."""

    host: int
    container: int
    private: int


@dataclass(frozen=True)
class Bind:
    """A folder or file of the node, and its path in the container."""

    source: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class ServiceRun:
    """One service of a unit, ready to start."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str = ""
    image: str = ""
    leads: tuple[Lead, ...] = ()
    binds: tuple[Bind, ...] = ()
    cpus: str = ""
    memory: str = ""
    gpus: int = 0
    privileged: bool = False
    entry_words: int = 0
    """Number of first words that replace the image's own entry point; the rest are its arguments."""

    def with_ports(self, port: Callable[[int], int]) -> ServiceRun:
        """Return it with private ports replaced by `port`."""
        leads = tuple(replace(lead, private=port(lead.private)) for lead in self.leads)
        moved = {str(old.private): str(new.private) for old, new in zip(self.leads, leads, strict=True)}
        env = {k: moved.get(v, v) if k == "PORT" or k.startswith("PORT_") else v for k, v in self.env.items()}
        return replace(self, leads=leads, env=env)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ServiceRun:
        """Read the data of `asdict`."""
        return cls(
            **{
                **value,
                "argv": tuple(value["argv"]),
                "leads": tuple(Lead(**lead) for lead in value["leads"]),
                "binds": tuple(Bind(**bind) for bind in value["binds"]),
            }
        )


@dataclass(frozen=True)
class Unit:
    """One version of an app, assembled on this node."""

    ref: AppRef
    slot: str
    created: str
    runs: tuple[ServiceRun, ...] = ()
    sequence: int = 0
    revision: str = ""
    bundle: str = ""
    """name@digest; empty for an app that cloudedge did not publish."""
    blobs: tuple[str, ...] = ()
    """Digests of its blobs in the hub."""
    objects: tuple[str, ...] = ()
    """Folders of downloaded files it uses."""
    probe: str = ""
    """Its Pipeline service, for its probes."""

    @property
    def id(self) -> str:
        """The name of its folder, its processes and its containers."""
        return f"{self.ref.name}.{self.ref.version}"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Unit:
        """Read the data of `asdict`."""
        return cls(
            **{
                **value,
                "ref": AppRef(**value["ref"]),
                "runs": tuple(ServiceRun.from_json(run) for run in value["runs"]),
                "blobs": tuple(value["blobs"]),
                "objects": tuple(value["objects"]),
            }
        )


@dataclass(frozen=True)
class Slot:
    """The revisions of one app on this node."""

    highest: int = 0
    """The highest accepted number of a statement."""
    accepted: str = ""
    """The revision that had it."""
    live: Unit | None = None
    previous: Unit | None = None
    candidate: Unit | None = None
    """Started and not yet trusted."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """Every unit whose files must stay."""
        return tuple(unit for unit in (self.live, self.previous, self.candidate) if unit is not None)

    @property
    def running(self) -> tuple[Unit, ...]:
        """Every unit that should run."""
        return tuple(unit for unit in (self.live, self.candidate) if unit is not None)

    def trying(self, unit: Unit) -> Slot:
        """Return the slot with a version under trial; its number is spent from now on."""
        if not unit.revision or unit.sequence < self.highest:  # the live one may return; its number stays lower
            return replace(self, candidate=unit)
        return replace(self, candidate=unit, highest=unit.sequence, accepted=unit.revision)

    def settled(self) -> Slot:
        """Return the slot with the version under trial as the live one.

        Another revision of the live bundle, as after a failed release, does not replace the previous one.
        """
        live, new = self.live, self.candidate
        is_same = live is not None and new is not None and live.bundle == new.bundle != ""
        previous = self.previous or live if is_same else live or self.previous
        return replace(self, live=new, previous=previous, candidate=None)

    def emptied(self) -> Slot:
        """Return the slot with nothing to run; the last unit is kept for a return."""
        return replace(self, live=None, previous=self.live or self.previous, candidate=None)


@dataclass(frozen=True)
class NodeState:
    """The content of a node's state file."""

    desire: Desire = field(default_factory=Desire)
    slots: Mapping[str, Slot] = field(default_factory=dict)
    fetched: int = 0
    """Bytes downloaded since the node was set up."""
    kept: int = 0
    """Bytes that new versions needed and that were on the node already."""

    def with_slot(self, name: str, slot: Slot) -> NodeState:
        """Return the state with one slot changed."""
        return replace(self, slots={**self.slots, name: slot})

    @property
    def units(self) -> Iterator[Unit]:
        """Every unit whose files must stay."""
        for slot in self.slots.values():
            yield from slot.units

    @property
    def running(self) -> tuple[Unit, ...]:
        """Every unit that should run."""
        return tuple(unit for slot in self.slots.values() for unit in slot.running)

    def save(self, path: Path) -> None:
        """Write the file; survives a power cut.

        Raises:
            StorageError: there is no room; the one before stays.
        """
        write_json(
            path,
            {
                "format": _FORMAT,
                "desire": self.desire.to_json(),
                "slots": {name: asdict(slot) for name, slot in self.slots.items()},
                "fetched": self.fetched,
                "kept": self.kept,
            },
        )

    @classmethod
    def load(cls, path: Path) -> NodeState:
        """Read the file of `save`; a missing one is empty.

        Raises:
            IntegrityError: it cannot be read.
        """
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if value["format"] != _FORMAT:
                raise IntegrityError(f"{path} is of format {value['format']}; this cloudedge knows {_FORMAT}")
            return cls(
                Desire.from_json(value["desire"]),
                {name: _slot(slot) for name, slot in value["slots"].items()},
                value["fetched"],
                value["kept"],
            )
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IntegrityError(
                f"what this node remembers cannot be read: {path}",
                hint="Restore it, or move the node's folder away: the node then fetches its apps again.",
            ) from error


def _slot(value: Mapping[str, Any]) -> Slot:
    units = {key: Unit.from_json(value[key]) if value[key] else None for key in ("live", "previous", "candidate")}
    return Slot(**{**value, **units})


def remembered(folder: Path) -> dict[str, Any]:
    """Return the saved desire and slots of a node's folder, without touching it.

    Raises:
        IntegrityError: it cannot be read.
    """
    state = NodeState.load(folder / "node.json")
    return {
        "desire": state.desire.to_json(),
        "slots": {
            name: {
                "live": slot.live.id if slot.live else None,
                "previous": slot.previous.id if slot.previous else None,
                "bundle": slot.live.bundle if slot.live else "",
                "highest": slot.highest,
            }
            for name, slot in state.slots.items()
        },
        "fetched": state.fetched,
        "kept": state.kept,
    }
