"""Old programs (``.pdmodel``, Paddle 2 and 3): describe them as a `Graph`, and rewrite them with look-ups cut out.

Runs only in the splitting process (see `__main__`), which switches PIR off before it imports Paddle.
"""

from __future__ import annotations

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

__all__ = ["OldProgram"]

_LOOKUP = "lookup_table_v2"
_SUB_BLOCK = "sub_block"
"""The attribute of branch and loop operators that holds their block."""
_UNSUPPORTED_LOOKUPS = {
    "c_embedding",
    "distributed_lookup_table",
    "fused_embedding_seq_pool",
    "lookup_table",
    "lookup_table_dequant",
    "pull_box_sparse",
    "pull_gpups_sparse",
    "pull_sparse",
    "pull_sparse_v2",
}
"""Look-ups with remote, pooled or packed rows, and Paddle 1's, which Paddle 3 cannot run."""
_KIND_OF_OPERATOR: dict[str, tuple[str, tuple[str, ...]]] = {
    "assign": ("assign", ()),
    "cast": ("cast", ()),
    "concat": ("concat", ("axis",)),
    "flatten_contiguous_range": ("flatten", ("start_axis", "stop_axis")),
    "reshape2": ("reshape", ("shape",)),
    "squeeze2": ("squeeze", ("axes",)),
    "transpose2": ("transpose", ("axis",)),
    "unsqueeze2": ("unsqueeze", ("axes",)),
}
"""By operator: its kind and the attributes that parametrise it."""
_OPERATOR_OF_KIND = {kind: (operator, attributes) for operator, (kind, attributes) in _KIND_OF_OPERATOR.items()}


class OldProgram(LoadedModel):
    """A loaded program with its parameters."""

    kind = "old"
    suffix = ".pdmodel"

    def __init__(self, prefix: Path) -> None:
        super().__init__(prefix)
        self._block: Any = self._program.global_block()
        self._writers: dict[str, list[Any]] = {}
        for op in self._block.ops:
            for name in op.output_arg_names:
                self._writers.setdefault(name, []).append(op)
        for op in self._all_ops():
            if op.type in _UNSUPPORTED_LOOKUPS:
                given = op.input_arg_names
                read = [n for n in given if self._block.has_var(n) and self._block.var(n).persistable] or given
                raise unsupported_lookup(op.type, ", ".join(read), "its rows are elsewhere, pooled or packed")
        self._sites = [op for op in self._block.ops if op.type == _LOOKUP]
        self.graph = self._read_graph()

    def save(self, plan: CutPlan, prefix: Path) -> None:
        """Cut the program and write the rest; parameters that nothing reads any more are left out."""
        static = self._paddle.static
        shapes = {feed.name: feed.shape for feed in self.graph.feeds}
        dims = {table: site.dim for site in self.graph.sites for table, p in plan.tables.items() if p == site.parameter}
        with static.program_guard(self._program):
            for lookup in plan.lookups:
                static.data(lookup.input, [*shapes[lookup.feed], dims[lookup.table]], "float32")
            for cut in plan.cuts:
                op = self._sites[cut.site]
                rows = self._move_rows(cut.ids, op, self.graph.sites[cut.site].dim)
                for block in self._program.blocks:
                    for reader in block.ops:
                        reader._rename_input(op.output("Out")[0], rows)  # noqa: SLF001 - there is no other way
                self._block._remove_op(self._block.ops.index(op))  # noqa: SLF001
        fetches = [op.input("X")[0] for op in self._fetch_ops()]
        needed = self._dependencies(fetches)
        feeds = [*self._feeds, *(lookup.input for lookup in plan.lookups)]
        static.save_inference_model(
            str(prefix),
            [self._block.var(name) for name in feeds if name in needed],
            [self._block.var(name) for name in fetches],
            self._executor,
            program=self._program,
        )

    def _move_rows(self, ids: Ids, before: Any, dim: int) -> str:
        """Apply to the rows what the program did to the ids; returns the name of the variable that holds them."""
        if isinstance(ids, Slot):
            return ids.feed
        if isinstance(ids, Concat):
            parts = [self._move_rows(part, before, dim) for part in ids.parts]
            return self._insert(before, "concat", parts, axis=ids.axis)
        assert isinstance(ids, Move)  # noqa: S101 - a plan holds nothing unknown
        source, arguments = [self._move_rows(ids.ids, before, dim)], list(ids.arguments)
        operator, attributes = _OPERATOR_OF_KIND[ids.kind]
        if ids.kind == "flatten":
            return self._insert(before, operator, source, **dict(zip(attributes, arguments, strict=True)))
        behind = {"reshape": [dim], "transpose": [len(arguments)]}.get(ids.kind, [])
        return self._insert(before, operator, source, **{attributes[0]: [*arguments, *behind]})

    def _insert(self, before: Any, operator: str, sources: list[str], **attributes: Any) -> str:
        out = self._block.create_var(name=self._paddle.utils.unique_name.generate("rows"), dtype="float32")
        outputs = {"Out": [out]}
        if operator != "concat":
            outputs["XShape"] = [self._block.create_var(name=f"{out.name}.shape", dtype="float32")]
        self._block._insert_op(  # noqa: SLF001 - the public way only appends
            self._block.ops.index(before),
            type=operator,
            inputs={"X": [self._block.var(source) for source in sources]},
            outputs=outputs,
            attrs=attributes,
        )
        return str(out.name)

    def _all_ops(self) -> list[Any]:
        return [op for block in self._program.blocks for op in block.ops]

    def _fetch_ops(self) -> list[Any]:
        return sorted((op for op in self._block.ops if op.type == "fetch"), key=lambda op: op.attr("col"))

    def _dependencies(self, names: list[str]) -> set[str]:
        """Return the variables that `names` depend on, themselves included."""
        needed = set(names)
        for op in reversed(self._block.ops):
            if op.type not in {"feed", "fetch"} and needed & set(op.output_arg_names):
                needed |= set(op.input_arg_names)
        return needed

    def _read_graph(self) -> Graph:
        nesting = [op for op in self._all_ops() if op.has_attr(_SUB_BLOCK)]
        owners = {op._block_attr_id(_SUB_BLOCK): op.type for op in nesting}  # noqa: SLF001
        # Look-ups of nested blocks come after those of the main block, which alone are cut: a plan counts sites.
        nested = [
            (op, owners.get(block.idx, "a block"))
            for block in self._program.blocks
            for op in block.ops
            if op.type == _LOOKUP and block.idx != self._block.idx
        ]
        sites = [*((op, "") for op in self._sites), *nested]
        for op, _ in sites:
            weight = op.input("W")[0]
            if weight in self._writers or not self._block.has_var(weight):
                made_by = self._writers[weight][0].type if weight in self._writers else "a branch or a loop"
                raise unsupported_lookup(op.type, weight, f"{made_by} makes it; it is no parameter")
        weights = {op.input("W")[0] for op, _ in sites}
        other = {
            name: op.type
            for op in self._all_ops()
            for name in op.input_arg_names
            if name in weights and op.type != _LOOKUP and not op.has_attr(_SUB_BLOCK)
        }
        return Graph(
            feeds=tuple(Feed(name, self.dtype(name), self._shape(name)) for name in self._feeds),
            fetches=tuple(
                Fetch(self.dtype(op.input("X")[0]), self._shape(op.input("X")[0])) for op in self._fetch_ops()
            ),
            sites=tuple(
                Site(
                    operator=op.type,
                    parameter=op.input("W")[0],
                    rows=self._shape(op.input("W")[0])[0],
                    dim=self._shape(op.input("W")[0])[1],
                    dtype=self.dtype(op.input("W")[0]),
                    ids=Unknown(inside, op.input("Ids")[0], "") if inside else trace(self, op.input("Ids")[0]),
                    padding_id=op.attr("padding_idx"),
                    inside=inside,
                )
                for op, inside in sites
            ),
            other_readers=other,
        )

    def dtype(self, name: str) -> str:
        """Return a variable's element type."""
        return str(self._paddle.base.data_feeder.convert_dtype(self._block.var(name).dtype))

    def rank(self, name: str) -> int:
        """Return how many dimensions a variable has."""
        return len(self._shape(name))

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._block.var(name).shape)

    def origin(self, name: str) -> Origin:
        """Return how a variable comes about."""
        writers = self._writers.get(name, [])
        if len(writers) != 1:
            return Origin(" and ".join(op.type for op in writers) or "no operator", name, "")
        (op,) = writers
        if op.type == "feed":
            # A variable with levels of detail is not a plain array of ids.
            return Origin(op.type, name, "" if self._block.var(name).lod_level else INPUT)
        kind, attributes = _KIND_OF_OPERATOR.get(op.type, ("", ()))
        computed = any(op.input(other) for other in op.input_names if other != "X")
        values = [op.attr(attribute) for attribute in attributes]
        arguments = values[0] if values and isinstance(values[0], list) else values
        return Origin(op.type, name, kind, op.input("X") if kind else (), None if computed else arguments)
