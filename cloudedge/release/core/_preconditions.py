"""The rules that refuse a plan before anything is touched. Pure.

Each rule is one function below: `@rule` gives it the name that a refusal carries and the hint that goes with it, its
docstring says why it is there, and it yields a message for everything that is wrong. To add a rule, write one more
such function here; nothing else has to change. `refusals` asks them all, in the order in which they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudedge.release.core._places import Estimate, Observed
from cloudedge.release.core._steps import Options, Refusal, is_other
from cloudedge.release.core._table_layouts import takes
from cloudedge.release.core._version import TableFacts, Version

if TYPE_CHECKING:
    from cloudedge.bundle import Signature, Variable
    from cloudedge.release.core._plan import ReleaseWorld

__all__ = ["CUBE_VALUE_BYTES", "RULES", "Proposal", "Rule", "refusals", "room", "rule", "signature_changes", "warnings"]

CUBE_VALUE_BYTES = 1024
"""Upstream loads longer values and then reports them as not found."""


@dataclass(frozen=True)
class Proposal:
    """Everything that a rule may look at: the version, the target as it is, and what the operator chose."""

    desired: Version
    world: ReleaseWorld
    able: Sequence[Observed]
    """The places that answer and have a part of the version to hold."""
    options: Options = field(default_factory=Options)
    freed: Mapping[str, int] = field(default_factory=dict)
    """By place: bytes of memory that the plan frees before the version comes."""
    may_leave: bool = False
    """Whether the plan may go on without places that do not answer, as long as others answer for them."""

    @property
    def sharded(self) -> Iterator[tuple[str, TableFacts, list[Observed]]]:
        """The version's tables that the target has shards for, each with the shard replicas that would hold it."""
        cut = {place.table for place in self.world.legs["sparse"]}
        for name, table in self.desired.tables.items():
            if name in cut:
                yield name, table, [place for place in self.able if place.table == name]


Rule = Callable[[Proposal], Iterable[Refusal]]
RULES: list[Rule] = []
"""Every rule, in the order in which it is asked."""


def rule(
    name: str, hint: str = ""
) -> Callable[[Callable[[Proposal], Iterable[str | Refusal]]], Callable[[Proposal], Iterable[str | Refusal]]]:
    """Add a function to the rules.

    Args:
        name: What the refusal is called in JSON, such as `value-size`.
        hint: What would help, as a sentence.
    """

    def add(
        find: Callable[[Proposal], Iterable[str | Refusal]],
    ) -> Callable[[Proposal], Iterable[str | Refusal]]:
        def ask(proposal: Proposal) -> Iterator[Refusal]:
            for found in find(proposal):
                yield found if isinstance(found, Refusal) else Refusal(name, found, hint)

        RULES.append(ask)
        return find

    return add


def refusals(proposal: Proposal) -> list[Refusal]:
    """List every reason why a target cannot take a version, not only the first.

    Of places that do not answer the other rules know nothing, so while such a place is needed it is the only reason.
    """
    return list(_unreachable(proposal)) or [refusal for ask in RULES for refusal in ask(proposal)]


def _unreachable(proposal: Proposal) -> Iterator[Refusal]:
    """Everything that has a part of the version to hold must answer, or something else must answer for it."""
    for place in proposal.world.places:
        if place.is_reachable or not takes(place, proposal.desired):
            continue
        # A fleet of edge nodes answers for itself.
        is_spared = place.leg == "edge" or any(_stands_in(other, place) for other in proposal.able)
        if not (proposal.may_leave and is_spared):
            what = f"{place.name} cannot be observed: {place.error}"
            yield Refusal("unreachable", what, "Start it, or take it out of the target.")


def _stands_in(other: Observed, place: Observed) -> bool:
    """Tell whether another place can answer the requests of this one."""
    if place.leg == "sparse" and place.table:
        return (other.table, other.shard, other.shards) == (place.table, place.shard, place.shards)
    return other.leg == place.leg  # a shard of unknown number: the rule `shards` finds what is missing


@rule("journal", "Run `cloudedge journal rebuild`: it writes down what the places answer with, and touches none.")
def doubtful_journal(proposal: Proposal) -> Iterator[str]:
    """A plan made from a journal that lost something could take what is live for what is not."""
    if proposal.world.doubt:
        yield f"{proposal.world.target}: {proposal.world.doubt}"


@rule("signature", "Its owner signs it with `cloudedge bundle sign REF --key KEY`.")
def untrusted(proposal: Proposal) -> Iterator[str]:
    """A target with a key takes only bundles that were signed with it."""
    if proposal.desired.untrusted:
        yield proposal.desired.untrusted


@rule("pin", "Pack it again: any change gives it another digest, and another pin.")
def same_pin(proposal: Proposal) -> Iterator[str]:
    """A pin is the beginning of a digest; two bundles with the same one cannot be distinguished where only pins are."""
    desired = proposal.desired
    for life in proposal.world.lives:
        if life.pin == desired.pin and is_other(life.digest, desired.digest):
            yield f"{desired} {desired.digest} has the pin of {life.title} {life.digest}, which was live here"
    for place in proposal.able:
        loaded = place.versions.get(desired.pin)
        if loaded is not None and is_other(loaded.digest, desired.digest):
            yield f"{desired} {desired.digest} has the pin of {loaded.digest}, which {place.name} has loaded"


@rule("stale", "Release it with `--allow-older` if you want it; `cloudedge rollback` goes back to what was live here.")
def stale(proposal: Proposal) -> Iterator[str]:
    """A hub, or an attacker in its place, may offer an old version whose signature still holds."""
    if proposal.desired.stale and not proposal.options.allow_older:
        yield proposal.desired.stale


@rule("empty", "Give it a leg in cloudedge.yaml: sparse, dense or edge.")
def no_places(proposal: Proposal) -> Iterator[str]:
    """A target without places cannot answer with anything."""
    if not proposal.world.places:
        yield f"{proposal.world.target} has no places"


@rule("tables")
def table_not_packed(proposal: Proposal) -> Iterator[Refusal]:
    """A model that looks up rows in a table that the bundle lacks fails on its first request."""
    desired = proposal.desired
    for lookup in desired.signature.lookups:
        if lookup.table not in desired.tables:
            yield Refusal(
                "tables",
                f"{desired} looks up rows in the table {lookup.table!r} and does not have it",
                f"Pack it with `--sparse {lookup.table}=FILE`.",
            )


@rule("no-shards", "Give the target's sparse leg shards for it.")
def no_shards_for_table(proposal: Proposal) -> Iterator[str]:
    """Serving replicas read every table from shards if the target has any; without a sparse leg, from the bundle."""
    sparse = proposal.world.legs["sparse"]
    for table in proposal.desired.tables if sparse else ():
        if table not in {place.table for place in sparse}:
            yield f"{proposal.world.target} has no shards for the table {table!r} of {proposal.desired}"


@rule("value-size", "Pack it as float16 or int8, or with fewer columns.")
def row_too_long(proposal: Proposal) -> Iterator[str]:
    """Upstream's cube loads longer values and then reports them as not found."""
    for name, table, _ in proposal.sharded:
        if table.row_bytes > CUBE_VALUE_BYTES:
            yield (
                f"{name}: a row of {table.dim} x {table.dtype} has {table.row_bytes} bytes, and cube answers at most "
                f"{CUBE_VALUE_BYTES}"
            )


@rule("shards", "Start the missing ones; for a local target run `cloudedge up`.")
def shard_without_server(proposal: Proposal) -> Iterator[str]:
    """Rows of a shard that no server holds would not be found."""
    for name, table, holders in proposal.sharded:
        if not _has_every_shard(table, holders):
            cuts = {place.shards for place in proposal.world.legs["sparse"] if place.table == name}
            yield (
                f"{name} goes into {len(table.shard_rows)} shards and {proposal.world.target} has servers for "
                f"{_numbers(cuts)}"
            )


@rule(
    "shards",
    "These servers hold one layout at a time: add a target with the new number, release there, move the clients, then "
    "remove this one.",
)
def server_of_another_layout(proposal: Proposal) -> Iterator[str]:
    """A server that was loaded with another number of shards cannot hold both layouts."""
    for name, table, holders in proposal.sharded:
        shards = len(table.shard_rows)
        found = {v.shards for place in holders for p, v in place.versions.items() if p in place.active and v.shards}
        if found - {shards} and _has_every_shard(table, holders):
            yield f"{name} is live in {_numbers(found)} shards and its servers are now to hold {shards}"


@rule("empty-shard", "Use fewer shards, or give the table a row there (a padding row will do).")
def shard_without_rows(proposal: Proposal) -> Iterator[str]:
    """A cube server does not load an empty part.

    Where all holders have the version loaded they have shown that it can be, and counting takes longer than going back.
    """
    for name, table, holders in proposal.sharded:
        if all(place.has(proposal.desired.pin) for place in holders):
            continue
        for shard, rows in enumerate(table.shard_rows):
            if not rows:
                yield (
                    f"{name}: shard {shard} of {len(table.shard_rows)} would get none of the {table.rows} rows, and a "
                    "cube server does not load an empty part"
                )


@rule("tables", "If none of them minds, add `--allow-signature-change`.")
def rows_change(proposal: Proposal) -> Iterator[str]:
    """Readers without a pin get rows of another width or type from one moment to the next."""
    if proposal.options.allow_signature_change or proposal.world.was is None:
        return
    for name, table, _ in proposal.sharded:
        before = proposal.world.was.tables.get(name)
        if before and (before.dtype, before.dim) != (table.dtype, table.dim):
            yield (
                f"{name}: rows change from {before.dim} x {before.dtype} to {table.dim} x {table.dtype}, which readers "
                "without a pin would notice"
            )


@rule("memory")
def no_room(proposal: Proposal) -> Iterator[Refusal]:
    """Both versions are loaded while requests move, so a place needs memory and disk for both."""
    return room(proposal.desired, proposal.able, proposal.world.estimates, proposal.freed)


@rule("clients", "Move the clients first, or declare that they can cope with `--allow-signature-change`.")
def clients_would_notice(proposal: Proposal) -> Iterator[str]:
    """Clients go on sending the feeds and reading the fetches of the version that answers them now."""
    if proposal.options.allow_signature_change:
        return
    seen: list[Signature] = []
    for place in proposal.world.places:
        used = place.signature
        if used is None or proposal.desired.pin in place.active or used in seen:
            continue
        seen.append(used)
        for change in signature_changes(used, proposal.desired.signature):
            yield f"clients of {place.name} would notice: {change}"


def warnings(desired: Version, world: ReleaseWorld, options: Options) -> Iterator[str]:
    """List what works and the operator should know."""
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


def _has_every_shard(table: TableFacts, holders: Sequence[Observed]) -> bool:
    return {place.shard for place in holders} == set(range(len(table.shard_rows)))


def _numbers(found: set[int] | set[int | None]) -> str:
    return " and ".join(str(number) for number in sorted(number or 0 for number in found))


def room(
    desired: Version, able: Sequence[Observed], estimates: Mapping[str, Estimate], freed: Mapping[str, int]
) -> Iterator[Refusal]:
    """Find the places that have no room for a version beside what is loaded; places of one host share theirs."""
    hosts: dict[str, list[Observed]] = {}
    for place in able:
        if not place.has(desired.pin):
            hosts.setdefault(f"host {place.host}" if place.host else place.name, []).append(place)
    for places in hosts.values():
        needs = [estimates.get(place.name, Estimate()) for place in places]
        frees = [p.free_memory_bytes for p in places if p.free_memory_bytes is not None]
        disks = [p.free_disk_bytes for p in places if p.free_disk_bytes is not None]
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


def signature_changes(used: Signature, offered: Signature) -> list[str]:
    """List the differences that break a client written for one signature when it meets another."""
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
    """List feeds whose padding id is now an ordinary id, or the other way round."""
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
