"""The splitting process, ``python -m cloudedge.bundle.splitting``: reads a job from stdin, writes an answer to stdout.

It is a process of its own because Paddle's static mode, scope and program format are global: a trainer that calls
`split` must find Paddle as it left it. The order bounds memory: read the program, plan the cuts, write tables and
dense program, free them, ask the whole model, free it, ask the pieces. The tables are in memory once, and twice only
while Paddle loads them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle.contents import (
    ProbeRequest,
    Probes,
    Signature,
    Variable,
    installed_framework_version,
    parse_part,
    write_part,
)
from cloudedge.bundle.splitting._cut_plan import CutPlan, Feed, Graph, plan_cuts
from cloudedge.bundle.splitting._job import Job
from cloudedge.bundle.splitting._report import SplitReport, SplitTable
from cloudedge.bundle.splitting._sample_requests import Request, make_requests, read_requests
from cloudedge.bundle.splitting._verify import Predictor, ask_whole, compare, last_line, rows_of
from cloudedge.bundle.tables import ROWS_PER_WINDOW, Rows, RowType, table_bytes
from cloudedge.errors import CloudEdgeError, InputError

__all__ = ["run"]

_PROBE_COUNT = 3
_PROBE_ROWS = 4


class _Program(Protocol):
    kind: str
    suffix: str
    graph: Graph

    def table(self, parameter: str) -> NDArray[Any]: ...

    def drop(self, parameters: list[str]) -> None: ...

    def save(self, plan: CutPlan, prefix: Path) -> None: ...


def run(job: Job) -> dict[str, Any]:
    """Split a model into `job.output`; returns the report."""
    output = Path(job.output)
    whole = _link_model_files(job)
    program = _load_program(whole, job)
    graph = program.graph
    plan = plan_cuts(graph, keep=job.keep, names=job.table_names)
    sizes = {site.parameter: (site.rows, site.dim) for site in graph.sites}
    report = SplitReport(
        program=program.kind,
        framework_version=installed_framework_version(),
        tables={table: SplitTable(parameter=p, rows=sizes[p][0], dim=sizes[p][1]) for table, p in plan.tables.items()},
        kept=plan.kept,
        whole_bytes=Path(job.parameters).stat().st_size if job.parameters else 0,
    )
    if job.dry_run:
        return report.model_dump()
    requests = read_requests(Path(job.samples), graph) if job.samples else make_requests(graph, job.seed)
    probes = [_first_rows(request, graph.feeds) for request in requests[:_PROBE_COUNT]]
    requests += probes

    (output / "tables").mkdir()
    files = {table: output / "tables" / f"{table}.safetensors" for table in plan.tables}
    for table, parameter in plan.tables.items():
        _write_table(files[table], program.table(parameter))
    dense = output / "dense" / "model"
    dense.parent.mkdir()
    program.save(plan, dense)
    program.drop(list(plan.tables.values()))
    suffix = program.suffix
    del program

    whole_outputs, expected = ask_whole(whole, suffix, requests, made_up=not job.samples)
    pieces = Predictor(dense, suffix)
    looked_up = rows_of(plan.lookups, files)
    answers = [pieces({**request, **looked_up(request)}) for request in requests]
    difference = compare(answers, expected, whole_outputs, job.tolerance)

    signature = _signature(graph, plan, whole_outputs, pieces, job)
    recorded = Probes(
        requests=tuple(
            ProbeRequest(
                name=f"split-{number}",
                feed={_client_name(v): request[v.name].tolist() for v in signature.feed},
                expect={_client_name(v): array.tolist() for v, array in zip(signature.fetch, answer, strict=True)},
                tolerance=job.tolerance,
            )
            for number, (request, answer) in enumerate(zip(probes, expected[-len(probes) :], strict=True))
        )
    )
    report = report.model_copy(
        update={
            "requests": len(requests),
            "rows": sum(_row_count(request) for request in requests),
            "max_abs_difference": difference,
            "dense_bytes": sum(
                file.stat().st_size for file in dense.parent.glob("*.pdiparams")
            ),  # a program may have none
        }
    )
    (output / "signature.json").write_bytes(write_part(signature))
    (output / "probes.json").write_bytes(write_part(recorded))
    (output / "report.json").write_text(report.model_dump_json(indent=2) + "\n")
    return report.model_dump()


def _link_model_files(job: Job) -> Path:
    """Link program and parameters under the names that Paddle expects; returns their common prefix."""
    prefix = Path(job.output) / ".whole"
    suffix = ".json" if job.program.endswith(".json") else ".pdmodel"
    prefix.with_name(prefix.name + suffix).symlink_to(Path(job.program).absolute())
    if job.parameters:
        prefix.with_name(prefix.name + ".pdiparams").symlink_to(Path(job.parameters).absolute())
    return prefix


def _load_program(prefix: Path, job: Job) -> _Program:
    is_pir = job.program.endswith(".json")
    try:
        if is_pir:
            from cloudedge.bundle.splitting._pir_program import PirProgram  # noqa: PLC0415 - paddle is heavy

            return PirProgram(prefix)
        from cloudedge.bundle.splitting._old_program import OldProgram  # noqa: PLC0415

        return OldProgram(prefix)
    except ImportError as error:
        raise InputError(
            f"splitting {job.program} needs Paddle: {error}", hint="Install it with `pip install 'cloudedge[paddle]'`."
        ) from error
    except CloudEdgeError:
        raise
    except Exception as error:  # Paddle raises whatever its C++ half throws
        if not job.parameters:
            raise InputError(
                f"{job.program} has no parameters beside it (.pdiparams); Paddle cannot load it without them",
                path=job.program,
            ) from error
        raise InputError(f"Paddle cannot load {job.program}: {last_line(error)}", path=job.program) from error


def _write_table(path: Path, values: NDArray[np.float32]) -> None:
    rows, dim = values.shape

    def windows() -> Iterator[Rows]:
        for start in range(0, rows, ROWS_PER_WINDOW):
            some = values[start : start + ROWS_PER_WINDOW]
            yield Rows.of(np.arange(start, start + len(some), dtype=np.uint64), some)

    with path.open("wb") as file:
        for chunk in table_bytes(RowType(values.dtype, dim), rows, windows):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _signature(graph: Graph, plan: CutPlan, whole: list[str], pieces: Predictor, job: Job) -> Signature:
    for given, known in ((job.feed_aliases, [f.name for f in graph.feeds]), (job.fetch_aliases, whole)):
        for name in given:
            if name not in known:
                raise InputError(f"the alias for {name!r} names no variable; the model has {', '.join(known)}")
    # Old programs may name inputs that nothing reads; clients need not feed those.
    read = {*pieces.inputs, *(lookup.feed for lookup in plan.lookups)}
    value = {
        "feed": [
            {
                "name": feed.name,
                "alias": job.feed_aliases.get(feed.name, ""),
                "dtype": feed.dtype,
                "shape": feed.shape[1:],
            }
            for feed in graph.feeds
            if feed.name in read
        ],
        # Saving may rename an output; clients keep the name the whole model had.
        "fetch": [
            {
                "name": name,
                "alias": job.fetch_aliases.get(before, "" if before == name else before),
                "dtype": fetch.dtype,
                "shape": fetch.shape[1:],
            }
            for before, name, fetch in zip(whole, pieces.outputs, graph.fetches, strict=True)
        ],
    }
    signature = parse_part(Signature, value, "the model's signature").model_copy(update={"lookups": plan.lookups})
    for side in (signature.feed, signature.fetch):
        names = [_client_name(variable) for variable in side]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two variables would be called {name!r}", hint="Give them different aliases.")
    return signature


def _client_name(variable: Variable) -> str:
    return variable.alias or variable.name


def _first_rows(request: Request, feeds: tuple[Feed, ...]) -> Request:
    """Cut a request to its first rows, if all its inputs have a batch dimension."""
    if any(not feed.shape or feed.shape[0] >= 0 for feed in feeds):
        return request
    return {name: array[:_PROBE_ROWS] for name, array in request.items()}


def _row_count(request: Request) -> int:
    return max((len(array) for array in request.values() if array.ndim), default=0)


def main() -> None:
    """Run the job that is on standard input."""
    # Paddle prints to standard output; the answer goes to a duplicate of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer: dict[str, Any]
    try:
        answer = {"report": run(Job(**json.load(sys.stdin)))}
    except CloudEdgeError as error:
        facts = json.loads(json.dumps(error.facts, default=str))
        answer = {"error": type(error).__name__, "message": error.message, "hint": error.hint, "facts": facts}
    with answers:
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
