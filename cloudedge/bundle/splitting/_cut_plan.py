"""Planning the cuts of a program: which tables come out, their names, and the inputs that replace their look-ups.

Pure: the readers of the two program formats describe a program (`Graph`), `plan_cuts` decides, the writers of the
formats carry it out. Rules:

- A look-up is cut only if each of its ids is an element of some input, moved but never changed on the way.
- The operations between input and look-up are applied to the rows instead, so that rows are fed in the ids' own
  shape plus one dimension.
- A table that any other operator reads stays in the dense program, and so do its look-ups.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cloudedge.bundle.contents import Lookup
from cloudedge.errors import InputError

__all__ = [
    "Concat",
    "Cut",
    "CutPlan",
    "Feed",
    "Fetch",
    "Graph",
    "Ids",
    "Move",
    "Site",
    "Slot",
    "Unknown",
    "plan_cuts",
    "unsupported_lookup",
]


@dataclass(frozen=True)
class Feed:
    """An input of the program."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Fetch:
    """An output of the program; its name comes from the file."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """Ids as they are fed."""

    feed: str


@dataclass(frozen=True)
class Move:
    """Ids in another shape or order: none lost, none changed. Axes are never negative."""

    kind: str
    """reshape, squeeze, unsqueeze, flatten or transpose."""
    arguments: tuple[int, ...]
    ids: Ids


@dataclass(frozen=True)
class Concat:
    """Ids of several inputs side by side."""

    axis: int
    parts: tuple[Ids, ...]


@dataclass(frozen=True)
class Unknown:
    """Ids from an operator that may change them."""

    operator: str
    variable: str
    reason: str


Ids = Slot | Move | Concat | Unknown


@dataclass(frozen=True)
class Site:
    """A look-up in the program."""

    operator: str
    parameter: str
    rows: int
    dim: int
    dtype: str
    ids: Ids
    padding_id: int = -1
    inside: str = ""
    """The operator whose branch or loop contains it; empty for the main block."""


@dataclass(frozen=True)
class Graph:
    """The inputs, outputs and look-ups of a program."""

    feeds: tuple[Feed, ...]
    fetches: tuple[Fetch, ...]
    sites: tuple[Site, ...]
    other_readers: Mapping[str, str]
    """By looked-up parameter: another operator that reads it, too."""


@dataclass(frozen=True)
class Cut:
    """A look-up to cut; `ids` describes how its rows come about, with inputs of rows in place of slots."""

    site: int
    ids: Ids


@dataclass(frozen=True)
class CutPlan:
    """The look-ups to cut, the tables they become, and the parameters that stay."""

    cuts: tuple[Cut, ...]
    lookups: tuple[Lookup, ...]
    """In the program's order."""
    tables: Mapping[str, str]
    """By table: its parameter."""
    kept: Mapping[str, str]
    """By parameter that stays in the dense program: the reason."""


def plan_cuts(graph: Graph, *, keep: Collection[str] = (), names: Mapping[str, str] | None = None) -> CutPlan:
    """Decide which look-ups are cut.

    Args:
        graph: The program.
        keep: Parameters whose look-ups stay in the dense program.
        names: Names for tables, by parameter; by default the parameter's own.

    Raises:
        InputError: a look-up cannot be cut without changing what the model computes; names operator and variable.
    """
    parameters = list(dict.fromkeys(site.parameter for site in graph.sites))
    for given in (*keep, *(names or {})):
        if given not in parameters:
            raise InputError(
                f"no look-up reads a parameter called {given!r}",
                hint=f"The parameters with look-ups are: {', '.join(parameters) or 'none'}.",
            )
    kept = {parameter: f"also read by {reader}" for parameter, reader in graph.other_readers.items()}
    kept |= dict.fromkeys(keep, "asked for")
    tables = _name_tables([p for p in parameters if p not in kept], names or {})
    table_of = {parameter: table for table, parameter in tables.items()}
    feeds = {feed.name for feed in graph.feeds}
    inputs: dict[tuple[str, str, int], Lookup] = {}
    cuts = []
    for number, site in enumerate(graph.sites):
        if site.parameter in kept:
            continue
        if site.inside:
            raise _refusal(site, f"it is inside a branch or a loop, {site.inside}, which no rows can be fed to")
        if site.dtype != "float32":
            raise _refusal(site, f"its rows are {site.dtype}; tables that are split off hold float32")
        cuts.append(Cut(number, _feed_rows(site.ids, site, table_of[site.parameter], inputs, feeds)))
    return CutPlan(tuple(cuts), tuple(inputs.values()), tables, kept)


def _name_tables(parameters: list[str], names: Mapping[str, str]) -> dict[str, str]:
    tables: dict[str, str] = {}
    for parameter in parameters:
        table = names.get(parameter) or re.sub(r"[^A-Za-z0-9._-]", "_", parameter)
        if table in tables:
            raise InputError(
                f"the parameters {tables[table]!r} and {parameter!r} would both become the table {table!r}",
                hint=f"Name one of them with `--table {parameter}=NAME`.",
            )
        tables[table] = parameter
    return tables


def _feed_rows(
    ids: Ids, site: Site, table: str, inputs: dict[tuple[str, str, int], Lookup], feeds: Collection[str]
) -> Ids:
    """Replace slots by inputs of rows; look-ups with the same slot, table and padding share one input."""
    if isinstance(ids, Unknown):
        raise _refusal(site, f"its ids come from {ids.operator} ({ids.variable}): {ids.reason}")
    if isinstance(ids, Move):
        return Move(ids.kind, ids.arguments, _feed_rows(ids.ids, site, table, inputs, feeds))
    if isinstance(ids, Concat):
        return Concat(ids.axis, tuple(_feed_rows(part, site, table, inputs, feeds) for part in ids.parts))
    key = ids.feed, table, site.padding_id
    if key not in inputs:
        name = f"rows.{ids.feed}.{table}"
        while name in feeds or any(name == other.input for other in inputs.values()):
            name += f".{site.padding_id}" if site.padding_id >= 0 else ".all"
        inputs[key] = Lookup(feed=ids.feed, input=name, table=table, padding_id=site.padding_id)
    return Slot(inputs[key].input)


def _refusal(site: Site, why: str) -> InputError:
    return InputError(
        f"the look-up {site.operator} in {site.parameter!r} cannot be split off: {why}",
        hint=f"Feed the ids as they are looked up, or leave this table in the program with `--keep {site.parameter}`.",
        parameter=site.parameter,
        operator=site.operator,
    )


def unsupported_lookup(operator: str, variable: str, why: str) -> InputError:
    """Return the error for a look-up that can neither be cut nor, for want of a name of its own, be kept."""
    return InputError(
        f"the look-up {operator} in {variable!r} cannot be split off: {why}", operator=operator, parameter=variable
    )
