"""PIR programs (``.json``, Paddle 3): describe them as a `Graph`, and rewrite them with look-ups cut out.

Runs only in the splitting process (see `__main__`): Paddle's static mode and its scope are global.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloudedge.bundle.splitting._cut_plan import (
    Concat,
    CutPlan,
    Feed,
    Fetch,
    Graph,
    Ids,
    Move,
    Site,
    Slot,
    Unknown,
    unsupported_lookup,
)
from cloudedge.bundle.splitting._loaded_model import LoadedModel
from cloudedge.bundle.splitting._trace_ids import INPUT, Origin, trace

__all__ = ["PirProgram"]

_LOOKUP = "pd_op.embedding"
_UNSUPPORTED_LOOKUPS = {
    "pd_op.c_embedding": "its table is spread over devices",
    "pd_op.sparse_weight_embedding": "its table is sparse itself",
    "pd_op.embedding_with_scaled_gradient": "it scales what it looks up",
}
"""Look-ups whose result is not one table row per id."""


class PirProgram(LoadedModel):
    """A loaded program with its parameters."""

    kind = "pir"
    suffix = ".json"

    def __init__(self, prefix: Path) -> None:
        super().__init__(prefix)
        self._ops: list[Any] = list(self._program.global_block().ops)
        self._sites = [op for op in self._ops if op.name() == _LOOKUP]
        for op in _all_ops(self._ops):
            if op.name() in _UNSUPPORTED_LOOKUPS:
                read = [name for value in op.operands_source() if (name := _parameter(value))]
                raise unsupported_lookup(
                    op.name(), ", ".join(read) or _describe(op.result(0)), _UNSUPPORTED_LOOKUPS[op.name()]
                )
        self.graph = self._read_graph()

    def save(self, plan: CutPlan, prefix: Path) -> None:
        """Cut the program and write the rest; parameters that nothing reads any more are left out."""
        static = self._paddle.static
        shapes = {feed.name: feed.shape for feed in self.graph.feeds}
        dims = {table: site.dim for site in self.graph.sites for table, p in plan.tables.items() if p == site.parameter}
        with static.program_guard(self._program):
            rows = {
                lookup.input: static.data(lookup.input, [*shapes[lookup.feed], dims[lookup.table]], "float32")
                for lookup in plan.lookups
            }
            for cut in plan.cuts:
                op = self._sites[cut.site]
                self._paddle.pir.set_insertion_point(op)
                op.result(0).replace_all_uses_with(self._move_rows(cut.ids, rows, self.graph.sites[cut.site].dim))
            self._paddle.pir.reset_insertion_point_to_end()
        fetches = [op.operand_source(0) for op in self._fetch_ops()]
        needed = _dependencies(fetches)
        data = [op for op in self._program.global_block().ops if op.name() == "pd_op.data"]
        feeds = [op.result(0) for op in data if op.id() in needed]
        static.save_inference_model(str(prefix), feeds, fetches, self._executor, program=self._program)

    def _move_rows(self, ids: Ids, rows: dict[str, Any], dim: int) -> Any:
        """Apply to the rows what the program did to the ids."""
        paddle = self._paddle
        if isinstance(ids, Slot):
            return rows[ids.feed]
        if isinstance(ids, Concat):
            return paddle.concat([self._move_rows(part, rows, dim) for part in ids.parts], axis=ids.axis)
        assert isinstance(ids, Move)  # noqa: S101 - a plan holds nothing unknown
        rows_before, arguments = self._move_rows(ids.ids, rows, dim), list(ids.arguments)
        if ids.kind == "flatten":
            return paddle.flatten(rows_before, *arguments)
        behind = {"reshape": [dim], "transpose": [len(arguments)]}.get(ids.kind, [])
        return getattr(paddle, ids.kind)(rows_before, [*arguments, *behind])

    def _fetch_ops(self) -> list[Any]:
        return sorted((op for op in self._ops if op.name() == "pd_op.fetch"), key=lambda op: op.attrs()["col"])

    def _read_graph(self) -> Graph:
        # Look-ups of nested blocks come after those of the main block, which alone are cut: a plan counts sites.
        nested = [(inner, op.name()) for op in self._ops for inner in _all_ops([op])[1:] if inner.name() == _LOOKUP]
        sites = [*((op, "") for op in self._sites), *nested]
        other: dict[str, str] = {}
        for site, _ in sites:
            weight = site.operand_source(1)
            if _parameter(weight) == "":
                made_by = weight.get_defining_op()
                raise unsupported_lookup(
                    site.name(),
                    _describe(weight),
                    f"it reads what {made_by.name() if made_by is not None else 'a loop'} makes, not a parameter",
                )
            for reader in weight.all_used_ops():
                if reader.name() != _LOOKUP or reader.operand_source(0).is_same(weight):
                    other[_parameter(weight)] = reader.name()
        return Graph(
            feeds=tuple(
                Feed(op.attrs()["name"], self.dtype(op.result(0)), tuple(op.result(0).shape))
                for op in self._ops
                if op.name() == "pd_op.data"
            ),
            fetches=tuple(
                Fetch(self.dtype(op.operand_source(0)), tuple(op.operand_source(0).shape)) for op in self._fetch_ops()
            ),
            sites=tuple(
                Site(
                    operator=op.name(),
                    parameter=_parameter(op.operand_source(1)),
                    rows=op.operand_source(1).shape[0],
                    dim=op.operand_source(1).shape[1],
                    dtype=self.dtype(op.operand_source(1)),
                    ids=Unknown(inside, _describe(op.operand_source(0)), "")
                    if inside
                    else trace(self, op.operand_source(0)),
                    padding_id=op.attrs()["padding_idx"],
                    inside=inside,
                )
                for op, inside in sites
            ),
            other_readers=other,
        )

    def dtype(self, value: Any) -> str:
        """Return a value's element type."""
        return str(self._paddle.base.data_feeder.convert_dtype(value.dtype))

    def rank(self, value: Any) -> int:
        """Return how many dimensions a value has."""
        return len(value.shape)

    def origin(self, value: Any) -> Origin:
        """Return how a value comes about."""
        op = value.get_defining_op()
        operator, attributes = op.name(), op.attrs()
        if operator == "pd_op.data":
            return Origin(operator, attributes["name"], INPUT)
        kind = operator.removeprefix("pd_op.").rstrip("_")  # in-place operators end in _
        sources = op.operands_source()
        arguments: Sequence[int] | None = None
        if kind == "flatten":
            arguments = attributes["start_axis"], attributes["stop_axis"]
        elif kind == "transpose":
            arguments = attributes["perm"]
        elif kind in {"reshape", "squeeze", "unsqueeze", "concat"}:
            arguments = _constant(sources[1])
        if kind == "concat":
            sources = sources[0].get_defining_op().operands_source()
        return Origin(operator, _describe(value), kind, sources, arguments)


def _all_ops(ops: list[Any]) -> list[Any]:
    """Return operators together with those in their branches and loops."""
    found = []
    for op in ops:
        found.append(op)
        for block in op.blocks():
            found += _all_ops(list(block.ops))
    return found


def _dependencies(values: list[Any]) -> set[int]:
    """Return the ids of the operators that `values` depend on."""
    seen: set[int] = set()
    open_ops = [value.get_defining_op() for value in values]
    while open_ops:
        op = open_ops.pop()
        if op is None or op.id() in seen:
            continue
        seen.add(op.id())
        for inner in _all_ops([op]):
            open_ops += [value.get_defining_op() for value in inner.operands_source()]
    return seen


def _parameter(value: Any) -> str:
    op = value.get_defining_op()  # None for a value that a loop passes on
    return str(op.attrs()["parameter_name"]) if op is not None and op.name() == "builtin.parameter" else ""


def _constant(value: Any) -> tuple[int, ...] | None:
    """Return the integers of a constant."""
    op = value.get_defining_op()
    if op.name() == "pd_op.full_int_array":
        return tuple(int(number) for number in op.attrs()["value"])
    if op.name() == "pd_op.full":
        return (int(op.attrs()["value"]),)
    return None


def _describe(value: Any) -> str:
    """Name a value by the inputs its operator reads, else by its shape: PIR values have no names of their own."""
    op = value.get_defining_op()
    sources = [source.get_defining_op() for source in op.operands_source()] if op is not None else []
    feeds = [op.attrs()["name"] for op in sources if op is not None and op.name() == "pd_op.data"]
    return f"of {', '.join(feeds)}" if feeds else f"shape {list(value.shape)}"
