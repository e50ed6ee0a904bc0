"""`cloudedge status | watch | history`: a target's places, their traffic, and what was live when."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cloudedge.cli._output import JSON, json_line, json_out, say, size, table_out

if TYPE_CHECKING:
    from cloudedge.release import PlaceStatus, Status, Target, Traffic

__all__ = ["TARGET", "history", "open_target", "status", "watch"]

TARGET = typer.Argument(..., help="A target from cloudedge.yaml.")
EVERY = typer.Option(2.0, "--every", min=0.1, help="Seconds between two looks.")


def open_target(name: str) -> Target:
    """Open a target that cloudedge.yaml names; it reports on standard error what it waits for."""
    from cloudedge.release import Target  # noqa: PLC0415 - numpy is not needed for --help

    return Target.load(name, tell=lambda text: say("{}", text))


def status(
    target: str = TARGET,
    watching: bool = typer.Option(False, "--watch", "-w", help="Keep looking; with --json, print a line each time."),
    every: float = EVERY,
    as_json: bool = JSON,
) -> None:
    """Ask every place which version it answers with now. Exits with 1 if one is not on the live version."""
    found = open_target(target)
    if watching and as_json:
        while True:
            json_line(found.status().to_json())
            time.sleep(every)
    if watching:
        _redraw(lambda: _status_table(found.status()), every)
        return
    now = found.status()
    if as_json:
        json_out(now.to_json())
    else:
        table_out(_STATUS, _status_rows(now), title=_status_title(now))
        say("{}", _status_title(now))
    if not now.is_whole:
        raise typer.Exit(1)


def watch(
    target: str = TARGET,
    looks: int = typer.Option(0, help="The number of looks; 0: until interrupted."),
    every: float = EVERY,
    as_json: bool = JSON,
) -> None:
    """Show requests, errors, latency, misses and scores of every version at every place, look by look."""
    found = open_target(target)
    columns = ("place", "version", "requests", "errors", "p50 ms", "p99 ms", "misses", "mean score")
    seen = 0
    while not looks or seen < looks:
        if seen:
            time.sleep(every)
        seen += 1
        now = found.watch()
        if as_json:
            json_line({name: {pin: vars(t) for pin, t in health.traffic.items()} for name, health in now.items()})
        else:
            lines = [(name, pin, *_figures(t)) for name, health in now.items() for pin, t in health.traffic.items()]
            table_out(columns, lines)


def history(
    target: str = TARGET,
    limit: int = typer.Option(20, "--limit", "-n", help="The number of operations, the newest first."),
    as_json: bool = JSON,
) -> None:
    """List every operation: what was live when, who began it, and its outcome."""
    records = open_target(target).history(limit)
    if as_json:
        json_out([record.to_json() for record in records])
        return
    columns = (
        *("number", "what", "bundle", "digest", "state", "live from", "live until"),
        *("begun", "seconds", "bytes", "by", "why"),
    )
    rows = [
        (
            r.number,
            r.kind,
            r.title,
            r.ref.partition("@")[2][:19],
            r.state,
            r.live_from,
            r.live_until or ("now" if r.live_from else ""),
            r.begun_at,
            r.seconds,
            size(r.bytes),
            r.by,
            r.why,
        )
        for r in records
    ]
    table_out(columns, rows)


_STATUS = ("place", "state", "answers with", "since", "lag", "loaded", "memory", "free")


def _status_rows(now: Status) -> list[tuple[object, ...]]:
    return [_status_row(each) for place in now.places for each in (place, *place.members)]


def _status_row(place: PlaceStatus) -> tuple[object, ...]:
    answers = ", ".join(f"{pin} {share:.0%}" for pin, share in place.answers.items())
    used = size(place.memory_bytes) if place.memory_share is None else f"{place.memory_share:.0%}"
    return (
        place.name,
        place.state,
        ": ".join(filter(None, (answers, place.error))) or "nothing",
        place.since,
        "" if place.lag is None else place.lag,
        ", ".join(pin if state == "ready" else f"{pin} ({state})" for pin, state in place.versions.items()),
        used if place.memory_bytes or place.memory_share is not None else "",
        size(place.free_memory_bytes) if place.free_memory_bytes is not None else "",
    )


def _status_title(now: Status) -> str:
    live = f"{now.live.title} ({now.live.pin})" if now.live else "nothing"
    words = [f"{now.target}: {live} is live"]
    words += [f"the {leg} leg is skewed ({', '.join(pins)})" for leg, pins in now.skew.items()]
    late = [node for place in now.places for node in place.members if node.state != "current"]
    if late and now.live:
        words.append(f"{len(late)} of {sum(len(place.members) for place in now.places)} nodes do not run it yet")
    away = sum(place.state == "away" for place in now.places)
    if away and not now.live:
        words.append(f"{away} of {len(now.places)} places do not answer: start them with `cloudedge up {now.target}`")
    words += [f"{place.name} {place.restarts}" for place in now.places if place.restarts]
    if now.unfinished:
        words.append(
            f"{now.unfinished} is unfinished: run `cloudedge resume {now.target}` or `cloudedge abort {now.target}`"
        )
    elif now.lagging and now.live:
        words.append(f"{len(now.lagging)} of {len(now.places)} places lag behind: run `cloudedge resume {now.target}`")
    if now.doubt:
        words.append(f"{now.doubt}: run `cloudedge journal rebuild {now.target}`")
    return "; ".join(words)


def _status_table(now: Status) -> Any:
    table = Table(*_STATUS, box=None, header_style="bold", pad_edge=False)
    for row in _status_rows(now):
        table.add_row(*(escape(str(cell)) for cell in row))
    return Group(escape(_status_title(now)), table)


def _redraw(draw: Callable[[], Any], every: float) -> None:
    with Live(draw(), auto_refresh=False, screen=sys.stdout.isatty()) as live:
        while True:
            time.sleep(every)
            live.update(draw(), refresh=True)


def _figures(traffic: Traffic) -> tuple[object, ...]:
    mean = f"{traffic.score_sum / traffic.scores:.4g}" if traffic.scores else ""
    misses = f"{traffic.misses / traffic.lookups:.2%}" if traffic.lookups else ""
    latency = (f"{traffic.latency_p50_ms:.1f}", f"{traffic.latency_p99_ms:.1f}")
    return (traffic.requests, traffic.errors, *latency, misses, mean)
