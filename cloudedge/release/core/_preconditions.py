"""What cannot work is refused before anything is touched: each rule in one place, each with what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from cloudedge.release.core._places import Estimate, Observed
from cloudedge.release.core._steps import Options, Refusal
from cloudedge.release.core._table_layouts import takes
from cloudedge.release.core._version import Version

if TYPE_CHECKING:
    from cloudedge.bundle import Signature, Variable
    from cloudedge.release.core._plan import ReleaseWorld

__all__ = ["CUBE_VALUE_BYTES", "refusals", "room", "signature_changes", "warnings"]

CUBE_VALUE_BYTES = 1024
"""Upstream loads longer values and then reports them as not found."""


def refusals(
    desired: Version,
    world: ReleaseWorld,
    able: Sequence[Observed],
    options: Options,
    *,
    freed: Mapping[str, int],
    may_leave: bool = False,
) -> list[Refusal]:
    """List every reason why a target cannot take a version, not only the first.

    Args:
        desired: The version.
        world: What is there.
        able: The places that would hold it and answer.
        options: What somebody chose.
        freed: Bytes that go before it comes, by place.
        may_leave: Going on without places that do not answer will do, as long as requests can be answered.
    """
    away = [place for place in world.places if not place.is_reachable and takes(place, desired)]
    if may_leave:  # a fleet of edge nodes answers for itself
        away = [p for p in away if p.leg != "edge" and not any(_stands_in(other, p) for other in able)]
    return [_away(place) for place in away] or list(
        chain(
            _trust(desired),
            _legs(desired, world),
            _tables(desired, world, able, options),
            room(desired, able, world.estimates, freed),
            _clients(desired, world, options),
        )
    )


def _away(place: Observed) -> Refusal:
    what = f"{place.name} cannot be observed: {place.error}"
    return Refusal("unreachable", what, "Start it, or take it out of the target.")


def _stands_in(other: Observed, place: Observed) -> bool:
    """Tell whether requests that a place would have answered can be answered by another."""
    if place.leg == "sparse" and place.table:
        return (other.table, other.shard, other.shards) == (place.table, place.shard, place.shards)
    return other.leg == place.leg  # of a shard that nobody can tell from others, `shards` says what is missing


def warnings(desired: Version, world: ReleaseWorld, options: Options) -> Iterator[str]:
    """List what works and should be known."""
    for place in world.places:
        if not place.is_reachable:
            yield f"{place.name} cannot be observed ({place.error}): it is brought along once it is back"
        strange = [pin for pin in place.active if pin not in (world.live, desired.pin)]
        if strange and world.live:
            yield f"{place.name} answers with {', '.join(strange)} and not with {world.live}"
        if place.leg == "sparse" and place.is_reachable and place.table not in desired.tables:
            yield f"{place.name}: {desired} has no table {place.table!r}; what it holds stays"
    for table, shards in world.shards.items():
        live = next((life.shards.get(table, shards) for life in world.lives[:1]), shards)
        lives_on = desired.shards.get(table, shards)
        if lives_on != shards:
            yield f"{table}: {desired} stays in {lives_on} shards; what is released next goes to {shards}"
        elif live != shards:
            yield f"{table}: cut anew, from {live} to {shards} shards; the old ones stay as long as {world.live}"
    if desired.tables and world.legs["dense"] and not world.legs["sparse"]:
        names = ", ".join(sorted(desired.tables))
        yield f"{world.target} has no sparse leg: each serving replica reads {names} from the bundle, for itself"
    if options.canary and not world.live:
        yield "nothing is live yet, so there is nothing to compare a canary with: all move at once"


def _trust(desired: Version) -> Iterator[Refusal]:
    if desired.untrusted:
        yield Refusal("signature", desired.untrusted, "Its owner signs it with: cloudedge bundle sign REF --key KEY")


def _legs(desired: Version, world: ReleaseWorld) -> Iterator[Refusal]:
    legs = world.legs
    if not world.places:
        yield Refusal("empty", f"{world.target} has no places", "Give it a leg in cloudedge.yaml: sparse, dense, edge.")
    for lookup in desired.signature.lookups:
        if lookup.table not in desired.tables:
            yield Refusal(
                "tables",
                f"{desired} looks up rows in the table {lookup.table!r} and does not have it",
                f"Pack it with --sparse {lookup.table}=FILE.",
            )
    if legs["sparse"]:  # without that leg, serving replicas read rows from the bundle
        for table in desired.tables:
            if table not in {place.table for place in legs["sparse"]}:
                yield Refusal(
                    "no-shards",
                    f"{world.target} has no shards for the table {table!r} of {desired}",
                    "Give the target's sparse leg shards for it.",
                )


def _tables(desired: Version, world: ReleaseWorld, able: Sequence[Observed], options: Options) -> Iterator[Refusal]:
    sparse = world.legs["sparse"]
    for name, table in desired.tables.items():
        shards = len(table.shard_rows)
        cuts = {place.shards for place in sparse if place.table == name}
        if not cuts:
            continue
        holders = [place for place in able if place.table == name]
        if table.row_bytes > CUBE_VALUE_BYTES:
            yield Refusal(
                "value-size",
                f"{name}: a row of {table.dim} x {table.dtype} has {table.row_bytes} bytes, and cube answers at most "
                f"{CUBE_VALUE_BYTES}",
                "Pack it as float16 or int8, or with fewer columns.",
            )
        found = {v.shards for place in holders for p, v in place.versions.items() if p in place.active and v.shards}
        if {place.shard for place in holders} != set(range(shards)):
            yield Refusal(
                "shards",
                f"{name} goes into {shards} shards and {world.target} has servers for {_numbers(cuts)}",
                "Start the missing ones; of a local target: cloudedge up.",
            )
        elif found - {shards}:
            yield Refusal(
                "shards",
                f"{name} is live in {_numbers(found)} shards and its servers are now to hold {shards}",
                "These servers hold one layout at a time: add a target with the new number, release there, move the "
                "clients, then remove this one.",
            )
        # Whoever has it loaded has shown that it can be; and counting takes longer than going back there.
        counted = not all(place.has(desired.pin) for place in holders)
        for shard, rows in enumerate(table.shard_rows if counted else ()):
            if not rows:
                yield Refusal(
                    "empty-shard",
                    f"{name}: shard {shard} of {len(table.shard_rows)} would get none of the {table.rows} rows, and a "
                    "cube server does not load an empty part",
                    "Use fewer shards, or give the table a row there (a padding row will do).",
                )
        before = world.was.tables.get(name) if world.was else None
        if before and (before.dtype, before.dim) != (table.dtype, table.dim) and not options.allow_signature_change:
            yield Refusal(
                "tables",
                f"{name}: rows change from {before.dim} x {before.dtype} to {table.dim} x {table.dtype}, which readers "
                "without a pin would notice",
                "If none of them minds: --allow-signature-change.",
            )


def _numbers(found: set[int] | set[int | None]) -> str:
    return " and ".join(str(number) for number in sorted(number or 0 for number in found))


def room(
    desired: Version, able: Sequence[Observed], estimates: Mapping[str, Estimate], freed: Mapping[str, int]
) -> Iterator[Refusal]:
    """Yield who has no room for a version beside what is loaded; places of one host need it all together."""
    hosts: dict[str, list[Observed]] = {}
    for place in able:
        if not place.has(desired.pin):
            hosts.setdefault(f"host {place.host}" if place.host else place.name, []).append(place)
    for places in hosts.values():
        needs = [estimates.get(place.name, Estimate()) for place in places]
        frees = [p.memory_free_bytes for p in places if p.memory_free_bytes is not None]
        disks = [p.disk_free_bytes for p in places if p.disk_free_bytes is not None]
        gone = sum(freed.get(p.name, 0) for p in able if p in places or (p.host and p.host == places[0].host))
        rooms = {  # what is unloaded first is known to free memory; what of its files goes is not
            "memory": (sum(need.memory_bytes for need in needs), min(frees) + gone if frees else None),
            "disk": (sum(need.disk_bytes for need in needs), min(disks, default=None)),
        }
        for what, (wanted, free) in rooms.items():
            if free is not None and wanted > free:
                names = places[0].name if len(places) == 1 else f"{len(places)} places of one host"
                sparse = any(place.leg == "sparse" for place in places)
                yield Refusal(
                    what,
                    f"{names}: {desired} beside what is loaded needs {wanted} bytes of {what}, and {free} are free",
                    "Both versions are there while requests move. Give it more"
                    + (", or cut the table into more shards." if sparse and len(places) == 1 else "."),
                )


def _clients(desired: Version, world: ReleaseWorld, options: Options) -> Iterator[Refusal]:
    if options.allow_signature_change:
        return
    seen: list[Signature] = []
    for place in world.places:
        used = place.signature
        if used is None or desired.pin in place.active or used in seen:
            continue
        seen.append(used)
        for change in signature_changes(used, desired.signature):
            yield Refusal(
                "clients",
                f"clients of {place.name} would notice: {change}",
                "Move the clients first, or say that they can cope: --allow-signature-change.",
            )


def signature_changes(used: Signature, offered: Signature) -> list[str]:
    """List what a client that knows one signature would trip over with another."""
    changes: list[str] = []
    now = {_alias(variable): variable for variable in offered.feed}
    was = {_alias(variable): variable for variable in used.feed}
    changes += [f"the feed {name!r} is gone" for name in was if name not in now]
    changes += [f"the feed {name!r} is new, and no client sends it" for name in now if was and name not in was]
    changes += _differences("feed", was, now)
    changes += _paddings(used, offered)
    out = {_alias(variable): variable for variable in offered.fetch}
    wanted = {_alias(variable): variable for variable in used.fetch}
    changes += [f"the fetch {name!r} is gone" for name in wanted if name not in out]
    return changes + _differences("fetch", wanted, out)


def _alias(variable: Variable) -> str:
    return variable.alias or variable.name


def _differences(what: str, was: Mapping[str, Variable], now: Mapping[str, Variable]) -> list[str]:
    return [
        f"the {what} {name!r} changes from {_shape(was[name])} to {_shape(now[name])}"
        for name in was
        if name in now and (was[name].dtype, was[name].shape) != (now[name].dtype, now[name].shape)
    ]


def _paddings(used: Signature, offered: Signature) -> list[str]:
    """List feeds whose ids a client fills up with something that is now an ordinary id, or the other way round."""
    was, now = _padding_ids(used), _padding_ids(offered)
    return [
        f"the feed {name!r} was padded with {_ids(was[name])} and is now with {_ids(now[name])}"
        for name in was
        if name in now and was[name] != now[name]
    ]


def _padding_ids(signature: Signature) -> Mapping[str, set[int]]:
    aliases = {variable.name: _alias(variable) for variable in signature.feed}
    found: dict[str, set[int]] = {}
    for lookup in signature.lookups:
        found.setdefault(aliases.get(lookup.feed, lookup.feed), set()).add(lookup.padding_id)
    return found


def _ids(padding: set[int]) -> str:
    return " and ".join(str(each) if each >= 0 else "nothing" for each in sorted(padding))


def _shape(variable: Variable) -> str:
    return f"{variable.dtype}{list(variable.shape)}"
