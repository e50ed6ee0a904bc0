"""One loaded version: its program, its rows, what it takes and how it is best run. Knows nothing of other versions.

`execute` is the whole way from the arrays of several requests to their answers; everything that can be done once
for a batch is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle import Bundle, ProbeRequest, Signature, find_program
from cloudedge.bundle.contents import compare_answer
from cloudedge.errors import CloudEdgeError, InputError, NotFound
from cloudedge.serving.model._batch_safety import why_alone
from cloudedge.serving.model._inputs import Arrays, FeedCheck, ShapeKey, alias
from cloudedge.serving.model._metrics import VersionMetrics
from cloudedge.serving.model._predictor import DenseModel, Predictor
from cloudedge.serving.model._program import DESCRIPTION, read_signature, with_aliases
from cloudedge.serving.model._row_source import BundleRows, RowSource

__all__ = ["ProbeResult", "Tuning", "Version"]

_log = logging.getLogger("cloudedge.serving")

Shares = NDArray[np.float64]
Clock = Callable[[], float]

_MADE_UP_SIDE = 8
"""How long a varying dimension is in inputs made up for measuring."""
_ROUNDS, _ENOUGH_S = 5, 0.02
"""How often something is measured, unless it takes so long together. Measuring is most of what a load needs the
interpreter for, and requests need it too."""
_LONGER = 1.5
"""How much longer than one row a batch may take, if one row alone takes most of the time there is: rows that cost next
to nothing beside another are worth it, and in a slow moment everything takes longer."""


@dataclass(frozen=True)
class Tuning:
    """How a version is run, as measured when it was loaded."""

    threads: int
    """Of the math library, in each run."""
    max_batch_rows: int
    """1 where a row's answer depends on the rows it is run with."""
    is_batched: bool
    """Whether requests share a run."""
    run_s: float
    """One row, measured."""
    batch_s: float
    """As many rows as share a run, measured."""
    releases_lock: bool
    why_alone: str = ""
    """Why every request is run by itself, where it is."""

    def takes_s(self, rows: int) -> float:
        """Estimate what so many rows take, in full batches one after the other."""
        full, rest = divmod(rows, self.max_batch_rows)
        if not rest:
            return full * self.batch_s
        share = (rest - 1) / (self.max_batch_rows - 1)
        return full * self.batch_s + self.run_s + share * (self.batch_s - self.run_s)


@dataclass(frozen=True)
class ProbeResult:
    """How the probes went."""

    asked: int
    failures: tuple[str, ...]
    at: float
    """On the monotonic clock."""

    @property
    def passed(self) -> bool:
        """Whether all answers were as expected."""
        return not self.failures


class Version:
    """A bundle, loaded.

    Args:
        bundle: What to load.
        rows: Where rows come from, closed with the version; the bundle's own tables if None.
        workers: How many threads will run it.
        max_rows: In one request.
        max_bytes: Of a request's arrays, or of a batch's, the rows of their ids included.
        max_batch_rows: In one run, at most.
        batch_budget_s: How long a run may take; batches stay below what takes longer, and longer than 1.5 times a row.

    Raises:
        InputError: it cannot be served; says why.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        rows: RowSource | None,
        workers: int,
        max_rows: int,
        max_bytes: int,
        max_batch_rows: int,
        batch_budget_s: float,
    ) -> None:
        self.bundle = bundle
        self.pin = bundle.pin
        self.metrics = VersionMetrics()
        self.has_local_rows = rows is None
        self._rows = rows or BundleRows(bundle.sparse)
        with DenseModel(bundle.dense) as model:
            self.signature = _signature(bundle)
            self.feeds = FeedCheck(self.signature, max_rows=max_rows, max_bytes=max_bytes)
            self._wire(model)
            self.feeds.looks_up(self._widths())
            first = model.predictor()
            self.tuning = self._tune(first, workers, max_batch_rows, batch_budget_s)
            if self.tuning.threads == model.threads:
                self._clone(model, workers, first)
        if self.tuning.threads != model.threads:
            with DenseModel(bundle.dense, threads=self.tuning.threads) as wide:
                self._clone(wide, workers, wide.predictor())
        self.memory_bytes = _memory_bytes(bundle, has_local_rows=self.has_local_rows)
        self._probe_lock = threading.Lock()
        self.probed: ProbeResult | None = None

    def _clone(self, model: DenseModel, workers: int, first: Predictor) -> None:
        """Make the clones that answer, and run each once: the first run prepares what later ones use."""
        arrays = self._made_up(1)
        clones = [first, *(model.predictor() for _ in range(workers + 1))]
        for predictor in clones:
            self.execute(arrays, predictor)
        self._probe_predictor, self.inline_predictor, *self.predictors = clones

    def _wire(self, model: DenseModel) -> None:
        """Connect feeds to the program's inputs, and fetches to its outputs."""
        place = {name: i for i, v in enumerate(self.signature.feed) for name in (v.alias or v.name, v.name)}
        looked_up = {place[lookup.feed] for lookup in self.signature.lookups if lookup.feed in place}
        self._lookups: dict[str, list[tuple[int, str, int]]] = {}
        for lookup in self.signature.lookups:
            if lookup.feed not in place or lookup.input not in model.input_names:
                raise InputError(
                    f"{self.bundle!r}: look-up of {lookup.feed!r} into {lookup.input!r} does not fit the program",
                    hint=f"the program takes {model.input_names}",
                )
            self._lookups.setdefault(lookup.table, []).append((place[lookup.feed], lookup.input, lookup.padding_id))
        given = {lookup.input for lookup in self.signature.lookups}
        self._direct = [
            (i, v.name)
            for i, v in enumerate(self.signature.feed)
            if v.name in model.input_names and v.name not in given
        ]
        unfed = set(model.input_names) - given - {name for _, name in self._direct}
        unused = [
            v.name for i, v in enumerate(self.signature.feed) if i not in looked_up | {i for i, _ in self._direct}
        ]
        if unfed or unused:
            raise InputError(
                f"{self.bundle!r}: the program's inputs {sorted(unfed)} are not fed, the feeds {unused} not used",
                hint="its signature does not belong to its program: pack it again",
            )
        named = all(v.name in model.output_names for v in self.signature.fetch)
        if not named and len(self.signature.fetch) != len(model.output_names):
            raise InputError(f"{self.bundle!r}: fetches do not fit the program's outputs {model.output_names}")
        self._outputs = {
            alias(v): model.output_names.index(v.name) if named else i for i, v in enumerate(self.signature.fetch)
        }

    def _widths(self) -> dict[int, int]:
        """Return how many bytes of rows each value of a feed is looked up for, by looking some up."""
        arrays, rows = self._made_up(1), dict[str, NDArray[Any]]()
        self._look_up(arrays, rows)
        widths = dict[int, int]()
        for uses in self._lookups.values():
            for i, name, _ in uses:
                widths[i] = widths.get(i, 0) + rows[name].shape[-1] * rows[name].itemsize
        return widths

    def max_rows_of(self, key: ShapeKey) -> int:
        """Return how many rows of one shape are run together at most."""
        return min(self.tuning.max_batch_rows, self.feeds.rows_in_bounds(key))

    def fetch(self, names: Sequence[str]) -> Sequence[str]:
        """Check the outputs a call wants; all, if it names none.

        Raises:
            InputError: one is unknown.
        """
        for name in names:
            if name not in self._outputs:
                raise InputError(
                    f"fetch {name!r} is unknown", hint=f"this model answers {list(self._outputs)}", variable=name
                )
        return names or list(self._outputs)

    def pick(self, outputs: Sequence[NDArray[Any]], names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Choose outputs by alias."""
        return {name: outputs[self._outputs[name]] for name in names}

    def execute(
        self,
        arrays: Arrays,
        predictor: Predictor,
        deadline: float | None = None,
        *,
        counted: VersionMetrics | None = None,
    ) -> tuple[list[NDArray[Any]], Shares | None]:
        """Run one batch; rows nobody waits for after the deadline are not waited for either.

        Args:
            arrays: In the signature's order.
            predictor: What runs it.
            deadline: On the monotonic clock.
            counted: Where its look-ups are counted; nowhere if nobody asked, as with probes and measuring.

        Returns:
            The program's outputs, and for each row of the batch the share of its ids that got a declared default, if
            any did.

        Raises:
            InputError: the engine refused the arrays.
            ModelFailed: the engine failed.
            Unavailable: rows could not be had.
        """
        feed, shares = self._feed(arrays, deadline, counted)
        return predictor.run(feed), shares

    def _feed(
        self, arrays: Arrays, deadline: float | None = None, counted: VersionMetrics | None = None
    ) -> tuple[dict[str, NDArray[Any]], Shares | None]:
        """Return the program's inputs, rows looked up, and the shares that `execute` does."""
        feed = {name: arrays[i] for i, name in self._direct}
        return feed, self._look_up(arrays, feed, deadline, counted) if self._lookups else None

    def _look_up(
        self,
        arrays: Arrays,
        feed: dict[str, NDArray[Any]],
        deadline: float | None = None,
        counted: VersionMetrics | None = None,
    ) -> Shares | None:
        asked = defaulted = missing = 0
        by_row = np.zeros(len(arrays[0]))
        for table, uses in self._lookups.items():
            ids = np.concatenate([arrays[i].reshape(-1) for i, _, _ in uses]).astype(np.uint64, copy=False)
            found = self._rows.rows(table, ids, self.pin, deadline)
            asked, missing = asked + len(ids), missing + found.missing
            at = 0
            for i, name, padding_id in uses:
                size, shape = arrays[i].size, arrays[i].shape
                rows = found.values[at : at + size]
                if padding_id >= 0:
                    rows = np.where((arrays[i].reshape(-1) == padding_id)[:, None], np.float32(0), rows)
                feed[name] = rows.reshape(*shape, rows.shape[-1])
                if found.defaulted is not None:
                    counts = found.defaulted[at : at + size].reshape(shape[0], -1).sum(axis=1)
                    by_row, defaulted = by_row + counts, defaulted + int(counts.sum())
                at += size
        if counted is not None:
            counted.looked_up(asked, missing, defaulted)
        return by_row * len(by_row) / asked if defaulted else None

    def _made_up(self, rows: int) -> Arrays:
        """Return inputs to measure with: the first probe's, else zeros."""
        return [np.repeat(array[:1], rows, axis=0) for array in self._known()]

    def _known(self) -> Arrays:
        """Return the rows of the first probe, else one of zeros."""
        feed: Mapping[str, Any] = next((p.feed for p in self.bundle.probes.requests), {})
        arrays = []
        for v in self.signature.feed:
            value = feed.get(alias(v), feed.get(v.name))
            if value is None:
                arrays.append(np.zeros([1, *(_MADE_UP_SIDE if side < 0 else side for side in v.shape)], v.dtype))
            else:
                arrays.append(np.asarray(value, v.dtype))
        return arrays

    def _tune(self, predictor: Predictor, workers: int, max_rows: int, budget_s: float) -> Tuning:
        """Find out how to run it: by running it."""

        def measure(predictor: Predictor, rows: int, clock: Clock = time.thread_time) -> float:
            arrays = self._made_up(rows)
            feed, _ = self._feed(arrays)
            predictor.run(feed)
            looked_up_s = _quickest(lambda: self._feed(arrays), clock) if self._lookups else 0.0
            return looked_up_s + _quickest(lambda: predictor.run(feed), clock)

        run_s = measure(predictor, 1)
        feed, _ = self._feed(self._known())
        why = why_alone(predictor.run, feed)
        if why:
            _log.warning("version %s: every request is run by itself: %s", self.pin, why)
        threads = 1
        if run_s > budget_s / 4 and workers > 1:
            with DenseModel(self.bundle.dense, threads=workers) as wide:
                alone = measure(predictor, 1, time.perf_counter)
                threads = workers if measure(wide.predictor(), 1, time.perf_counter) * 1.5 < alone else 1
        rows, batch_s = 1, run_s
        while not why and rows * 2 <= max_rows:
            twice_s = measure(predictor, rows * 2)
            if twice_s > max(budget_s, run_s * _LONGER):
                break
            rows, batch_s = rows * 2, twice_s
        return Tuning(threads, rows, not why, run_s, batch_s, predictor.releases_lock, why)

    def probe(self, clock: Clock = time.monotonic) -> ProbeResult:
        """Answer the bundle's probes and compare."""
        failures = []
        requests = self.bundle.probes.requests
        with self._probe_lock:
            if not self.predictors:
                raise NotFound(f"version {self.pin} was unloaded", pin=self.pin)
            for i, request in enumerate(requests):
                try:
                    self._probe_one(request)
                except CloudEdgeError as error:
                    failures.append(f"probe {request.name or i}: {error.message}")
            self.probed = ProbeResult(len(requests), tuple(failures), clock())
            return self.probed

    def _probe_one(self, request: ProbeRequest) -> None:
        names = {v.name: alias(v) for v in (*self.signature.feed, *self.signature.fetch)}
        types = {alias(v): v.dtype for v in self.signature.feed}
        feed = {names.get(name, name): value for name, value in request.feed.items()}
        arrays, _, _ = self.feeds.check({name: np.asarray(value, types.get(name)) for name, value in feed.items()})
        outputs, defaulted = self.execute(arrays, self._probe_predictor)
        if defaulted is not None:
            raise InputError("rows were declared defaults")
        for name in request.expect:
            (found,) = self.pick(outputs, self.fetch([names.get(name, name)])).values()
            compare_answer(request, name, found)

    def close(self) -> None:
        """Give everything back, once; no batch may run any more."""
        with self._probe_lock:
            if not self.predictors:
                return
            last = self._probe_predictor
            self.predictors = []
            del self.inline_predictor, self._probe_predictor
            last.close_family()
            self._rows.close()


def _quickest(run: Callable[[], object], clock: Clock) -> float:
    """Measure what something takes when nothing else is in its way.

    With one thread that is its processor time, which a busy machine does not change.
    """
    best, spent, rounds = float("inf"), 0.0, 0
    while rounds < _ROUNDS and (spent < _ENOUGH_S or not rounds):
        begin = clock()
        run()
        took = clock() - begin
        best, spent, rounds = min(best, took), spent + took, rounds + 1
    return best


def _memory_bytes(bundle: Bundle, *, has_local_rows: bool) -> int:
    """Estimate the memory a version takes: its program and parameters, which clones share, and merged tables.

    A table that is one file is mapped: its pages are the machine's to take back, and are not counted.
    """
    dense = sum(path.stat().st_size for path in bundle.dense.values())
    tables = bundle.sparse.values() if has_local_rows else ()  # elsewhere they need not even be in the hub
    return dense + sum(len(table) * (8 + table.kind.row_bytes) for table in tables if len(table.files) > 1)


def _signature(bundle: Bundle) -> Signature:
    """Take the bundle's signature, or what is said beside the program and in it where the bundle has none."""
    if bundle.signature.feed and bundle.signature.fetch:
        return bundle.signature
    files = bundle.dense
    program, _ = find_program(files)
    signature = read_signature(files[program], program)
    return with_aliases(signature, files[DESCRIPTION]) if DESCRIPTION in files else signature
