"""The rollout policy: waves of nodes, maintenance windows, and the limits of failures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cloudedge.config import EdgeLeg
from cloudedge.edge_bie.client import matches
from cloudedge.errors import ConfigError

__all__ = ["RolloutPolicy", "Wave", "Window", "in_waves", "is_open"]

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(
    r"(?:(?P<first>[A-Za-z]{3})(?:-(?P<last>[A-Za-z]{3}))?\s+)?"
    r"(?P<begin>\d\d:\d\d)-(?P<end>\d\d:\d\d|24:00)(?:\s+(?P<zone>\S+))?"
)


@dataclass(frozen=True)
class RolloutPolicy:
    """The settings of a rollout; times in seconds."""

    waves: tuple[str, ...] = ()
    bake_s: float = 0.0
    success: float = 0.95
    """Share of a wave's nodes that tried and must be done before the next wave."""
    abort_failed: float = 0.1
    abort_at_least: int = 1
    """Give up at once if more than this share failed, of at least this many nodes that tried."""
    on_failure: Literal["rollback", "pause"] = "rollback"
    failed_after_s: float = 900.0
    offline_after_s: float = 300.0
    windows: tuple[str, ...] = ()
    approval: Literal["never", "after-first", "every"] = "never"
    probe: Literal["required", "reachable", "off"] = "reachable"
    jobs: int = 16
    every_s: float = 5.0

    def __post_init__(self) -> None:
        for window in self.windows:
            Window.parse(window)
        for wave in self.waves:
            if not wave.removesuffix("%").isdecimal():
                matches(wave, {})

    @classmethod
    def of(cls, leg: EdgeLeg) -> RolloutPolicy:
        """Read it from a target's section of cloudedge.yaml."""
        return cls(
            waves=leg.waves,
            bake_s=leg.bake.total_seconds(),
            success=leg.success,
            abort_failed=leg.abort.failed,
            abort_at_least=leg.abort.at_least,
            on_failure=leg.abort.then,
            failed_after_s=leg.timeouts.failed.total_seconds(),
            offline_after_s=leg.timeouts.offline.total_seconds(),
            windows=leg.windows,
            approval=leg.approval,
            probe=leg.probe,
            jobs=leg.jobs,
            every_s=leg.every.total_seconds(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RolloutPolicy:
        """Read the data of `to_json`, of this or a newer cloudedge."""
        known = {item.name for item in fields(cls)}
        tuples = {name: tuple(value[name]) for name in ("waves", "windows")}
        return cls(**{k: v for k, v in value.items() if k in known} | tuples)


@dataclass(frozen=True)
class Wave:
    """The nodes that move to a revision together."""

    name: str
    """Its definition: ``1``, ``10%``, ``ring=canary``, ``rest``."""
    revision: str
    nodes: tuple[str, ...]


def in_waves(nodes: Sequence[tuple[str, Mapping[str, str]]], waves: Sequence[str], revision: str) -> list[Wave]:
    """Cut nodes into waves.

    A count takes that many more nodes, a percentage fills up to that share of all nodes, a selector takes the nodes
    that match it; the remaining nodes make the last wave. Empty waves are left out.

    Args:
        nodes: Names with labels, in the order in which they move.
        waves: The definitions of the waves.
        revision: The revision they move to.
    """
    left, made, total = list(nodes), [], len(nodes)
    for wave in waves:
        if wave.isdecimal():
            taken = left[: int(wave)]
        elif wave.endswith("%") and wave[:-1].isdecimal():
            taken = left[: max(-(-total * int(wave[:-1]) // 100) - (total - len(left)), 0)]
        else:
            taken = [node for node in left if matches(wave, node[1])]
        if taken:
            made.append(Wave(wave, revision, tuple(name for name, _ in taken)))
            gone = {name for name, _ in taken}
            left = [node for node in left if node[0] not in gone]
    if left:
        made.append(Wave("rest", revision, tuple(name for name, _ in left)))
    return made


@dataclass(frozen=True)
class Window:
    """A time of the week in which nodes may be moved; one that ends before it begins ends on the next day."""

    days: frozenset[int]
    """Days on which it begins; Monday is 0."""
    begin: time
    length: timedelta
    zone: tzinfo

    @classmethod
    def parse(cls, text: str) -> Window:
        """Parse ``Mon-Fri 22:00-06:00 Europe/Berlin``; without days every day, without a zone UTC.

        Raises:
            ConfigError: The text is no window.
        """
        found = _WINDOW.fullmatch(text.strip())
        hint = "Write, say, `Mon-Fri 22:00-06:00 Europe/Berlin` or `02:00-04:00`."
        if found is None:
            raise ConfigError(f"{text!r} is no maintenance window", hint=hint)
        try:
            begin = time.fromisoformat(found["begin"])
            end = 24 * 60 if found["end"] == "24:00" else _minutes(time.fromisoformat(found["end"]))
            zone = ZoneInfo(found["zone"]) if found["zone"] else timezone.utc
            days = _days(found["first"], found["last"])
        except (ValueError, ZoneInfoNotFoundError) as error:
            raise ConfigError(f"{text!r} is no maintenance window: {error}", hint=hint) from error
        minutes = (end - _minutes(begin)) % (24 * 60) or 24 * 60
        return cls(days, begin, timedelta(minutes=minutes), zone)

    def is_open(self, now: datetime) -> bool:
        """Return True if nodes may be moved now."""
        local = now.astimezone(self.zone)
        for back in (0, 1):  # it may have begun yesterday
            day = local - timedelta(days=back)
            begun = day.replace(hour=self.begin.hour, minute=self.begin.minute, second=0, microsecond=0)
            if begun.weekday() in self.days and begun <= local < begun + self.length:
                return True
        return False


def is_open(windows: Sequence[str], now: datetime) -> bool:
    """Return True if one of the windows is open, or if there are none."""
    return not windows or any(Window.parse(window).is_open(now) for window in windows)


def _days(first: str | None, last: str | None) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    begin = _DAYS.index(first.lower())
    end = _DAYS.index((last or first).lower())
    return frozenset((begin + step) % 7 for step in range((end - begin) % 7 + 1))


def _minutes(moment: time) -> int:
    return moment.hour * 60 + moment.minute
