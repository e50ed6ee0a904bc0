"""One loaded version: its program, its rows, its input check, its measured tuning and its probes.

A version knows nothing of other versions. `execute` is the whole way from the arrays of several requests to their
answers; it does everything once for a batch that can be done once.
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
from cloudedge.errors import CloudEdgeError, InputError, IntegrityError, NotFound
from cloudedge.serving.model._batch_safety import batching_obstacle
from cloudedge.serving.model._inputs import Arrays, FeedCheck, ShapeKey, alias
from cloudedge.serving.model._metrics import VersionMetrics
from cloudedge.serving.model._predictor import DenseModel, Predictor
from cloudedge.serving.model._program import DESCRIPTION, read_signature, with_aliases
from cloudedge.serving.model._row_source import BundleRows, RowSource

__all__ = ["ProbeResult", "Tuning", "Version"]

_log = logging.getLogger("cloudedge.serving")

Shares = NDArray[np.float64]
Clock = Callable[[], float]

_SAMPLE_SIDE = 8
"""Length of a varying dimension in the inputs used for measuring."""
_ROUNDS, _MAX_MEASURE_S = 5, 0.02
"""Repetitions of a measurement, and the total time after which it stops. Measuring is most of what a load needs the
interpreter for, and requests need it too."""
_MAX_BATCH_FACTOR = 1.5
"""Longest time of a batch as a multiple of one row's, where one row alone takes most of the budget: rows that cost next
to nothing beside another are worth it, and in a slow moment everything takes longer."""


@dataclass(frozen=True)
class Tuning:
    """The settings to run a version with, measured when it was loaded."""

    threads: int
    """Threads of the math library in each run."""
    max_batch_rows: int
    """Most rows in a run; 1 where a row's answer depends on the rows beside it."""
    is_batched: bool
    """Requests share a run."""
    run_s: float
    """Measured time of one row."""
    batch_s: float
    """Measured time of a full batch."""
    releases_lock: bool
    why_alone: str = ""
    """The reason why every request runs alone; empty if requests share a run."""

    def estimate_s(self, rows: int) -> float:
        """Estimate the time of `rows` rows, in full batches one after the other."""
        full, rest = divmod(rows, self.max_batch_rows)
        if not rest:
            return full * self.batch_s
        share = (rest - 1) / (self.max_batch_rows - 1)
        return full * self.batch_s + self.run_s + share * (self.batch_s - self.run_s)


@dataclass(frozen=True)
class ProbeResult:
    """The result of answering the probes."""

    asked: int
    failures: tuple[str, ...]
    at: float
    """On the monotonic clock."""

    @property
    def passed(self) -> bool:
        """All answers were as expected."""
        return not self.failures


class Version:
    """A bundle, loaded.

    Args:
        bundle: The bundle to load.
        rows: The source of rows, closed with the version; the bundle's own tables if None.
        workers: Number of threads that will run it.
        max_rows: Most rows in one request.
        max_bytes: Most bytes of a request's arrays, or of a batch's, the rows of their ids included.
        max_batch_rows: Most rows in one run.
        batch_budget_s: Longest time of a run. A batch may exceed it only up to 1.5 times the time of one row.

    Raises:
        InputError: The bundle cannot be served; gives the reason.
        IntegrityError: A file of the bundle is not what its digest says.
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
        # Hashed at every load, also after a restart: answers carry the pin, and the bytes have to be those of the pin.
        dense = bundle.verify_dense()
        self._tables = bundle.verify_tables() if rows is None else None
        self._rows = rows or BundleRows(bundle.sparse)
        with DenseModel(bundle.dense) as model:
            self.signature = _signature(bundle)
            self.feeds = FeedCheck(self.signature, max_rows=max_rows, max_bytes=max_bytes)
            self._connect(model)
            self.feeds.set_row_bytes(self._row_bytes_by_feed())
            first = model.predictor()
            self.tuning = self._tune(first, workers, max_batch_rows, batch_budget_s)
            if self.tuning.threads == model.threads:
                self._clone(model, workers, first)
        if self.tuning.threads != model.threads:
            with DenseModel(bundle.dense, threads=self.tuning.threads) as wide:
                self._clone(wide, workers, wide.predictor())
        dense.require_unchanged()
        if self._tables is not None:
            self._tables.require_unchanged()
        self.memory_bytes = _memory_bytes(bundle, has_local_rows=self.has_local_rows)
        self._probe_lock = threading.Lock()
        self.probed: ProbeResult | None = None

    def _clone(self, model: DenseModel, workers: int, first: Predictor) -> None:
        """Make the clones that answer, and run each once: the first run prepares buffers for later ones."""
        arrays = self._sample_inputs(1)
        clones = [first, *(model.predictor() for _ in range(workers + 1))]
        for predictor in clones:
            self.execute(arrays, predictor)
        self._probe_predictor, self.inline_predictor, *self.predictors = clones

    def _connect(self, model: DenseModel) -> None:
        """Connect feeds to the program's inputs, and fetches to its outputs."""
        place = {name: i for i, v in enumerate(self.signature.feed) for name in (v.alias or v.name, v.name)}
        looked_up = {place[lookup.feed] for lookup in self.signature.lookups if lookup.feed in place}
        self._lookups: dict[str, list[tuple[int, str, int]]] = {}
        for lookup in self.signature.lookups:
            if lookup.feed not in place or lookup.input not in model.input_names:
                raise InputError(
                    f"{self.bundle!r}: look-up of {lookup.feed!r} into {lookup.input!r} does not fit the program",
                    hint=f"The program takes {model.input_names}.",
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
                hint="The signature belongs to another program: pack the bundle again.",
            )
        named = all(v.name in model.output_names for v in self.signature.fetch)
        if not named and len(self.signature.fetch) != len(model.output_names):
            raise InputError(f"{self.bundle!r}: fetches do not fit the program's outputs {model.output_names}")
        self._outputs = {
            alias(v): model.output_names.index(v.name) if named else i for i, v in enumerate(self.signature.fetch)
        }

    def _row_bytes_by_feed(self) -> dict[int, int]:
        """Look up sample rows and return the bytes of rows for each value of a feed, by the feed's position."""
        arrays, rows = self._sample_inputs(1), dict[str, NDArray[Any]]()
        self._look_up(arrays, rows)
        widths = dict[int, int]()
        for uses in self._lookups.values():
            for i, name, _ in uses:
                widths[i] = widths.get(i, 0) + rows[name].shape[-1] * rows[name].itemsize
        return widths

    def max_rows_of(self, key: ShapeKey) -> int:
        """Return the most rows of one shape in a run."""
        return min(self.tuning.max_batch_rows, self.feeds.rows_in_bounds(key))

    def fetch(self, names: Sequence[str]) -> Sequence[str]:
        """Check the outputs that a call requests; return all if it names none.

        Raises:
            InputError: An output is unknown.
        """
        for name in names:
            if name not in self._outputs:
                raise InputError(
                    f"fetch {name!r} is unknown", hint=f"This model answers {list(self._outputs)}.", variable=name
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
        metrics: VersionMetrics | None = None,
    ) -> tuple[list[NDArray[Any]], Shares | None]:
        """Run one batch; it does not wait for rows beyond the deadline.

        Args:
            arrays: The inputs, in the signature's order.
            predictor: The clone to run.
            deadline: On the monotonic clock.
            metrics: Counts the look-ups; None for probes and measurements, which are no requests.

        Returns:
            The program's outputs, and for each row of the batch the share of its ids that got a declared default, if
            any did.

        Raises:
            InputError: The engine refused the arrays.
            ModelFailed: The engine failed.
            Unavailable: The rows were not available.
        """
        feed, shares = self._feed(arrays, deadline, metrics)
        return predictor.run(feed), shares

    def _feed(
        self, arrays: Arrays, deadline: float | None = None, metrics: VersionMetrics | None = None
    ) -> tuple[dict[str, NDArray[Any]], Shares | None]:
        """Return the program's inputs with rows looked up, and the shares that `execute` returns."""
        feed = {name: arrays[i] for i, name in self._direct}
        return feed, self._look_up(arrays, feed, deadline, metrics) if self._lookups else None

    def _look_up(
        self,
        arrays: Arrays,
        feed: dict[str, NDArray[Any]],
        deadline: float | None = None,
        metrics: VersionMetrics | None = None,
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
        if metrics is not None:
            metrics.count_lookups(asked, missing, defaulted)
        return by_row * len(by_row) / asked if defaulted else None

    def _sample_inputs(self, rows: int) -> Arrays:
        """Return inputs to measure with: the first row of the first probe, or zeros."""
        return [np.repeat(array[:1], rows, axis=0) for array in self._probe_inputs()]

    def _probe_inputs(self) -> Arrays:
        """Return the rows of the first probe, or one row of zeros."""
        feed: Mapping[str, Any] = next((p.feed for p in self.bundle.probes.requests), {})
        arrays = []
        for v in self.signature.feed:
            value = feed.get(alias(v), feed.get(v.name))
            if value is None:
                arrays.append(np.zeros([1, *(_SAMPLE_SIDE if side < 0 else side for side in v.shape)], v.dtype))
            else:
                arrays.append(np.asarray(value, v.dtype))
        return arrays

    def _tune(self, predictor: Predictor, workers: int, max_rows: int, budget_s: float) -> Tuning:
        """Measure the best settings to run the program with."""

        def measure(predictor: Predictor, rows: int, clock: Clock = time.thread_time) -> float:
            arrays = self._sample_inputs(rows)
            feed, _ = self._feed(arrays)
            predictor.run(feed)
            looked_up_s = _shortest_time(lambda: self._feed(arrays), clock) if self._lookups else 0.0
            return looked_up_s + _shortest_time(lambda: predictor.run(feed), clock)

        run_s = measure(predictor, 1)
        feed, _ = self._feed(self._probe_inputs())
        why = batching_obstacle(predictor.run, feed)
        if why:
            _log.warning("version %s: every request runs alone: %s", self.pin, why)
        threads = 1
        if run_s > budget_s / 4 and workers > 1:
            with DenseModel(self.bundle.dense, threads=workers) as wide:
                alone = measure(predictor, 1, time.perf_counter)
                threads = workers if measure(wide.predictor(), 1, time.perf_counter) * 1.5 < alone else 1
        rows, batch_s = 1, run_s
        while not why and rows * 2 <= max_rows:
            twice_s = measure(predictor, rows * 2)
            if twice_s > max(budget_s, run_s * _MAX_BATCH_FACTOR):
                break
            rows, batch_s = rows * 2, twice_s
        return Tuning(threads, rows, not why, run_s, batch_s, predictor.releases_lock, why)

    def probe(self, clock: Clock = time.monotonic) -> ProbeResult:
        """Answer the bundle's probes and compare the answers with the expected ones."""
        failures = []
        requests = self.bundle.probes.requests
        with self._probe_lock:
            if not self.predictors:
                raise NotFound(f"version {self.pin} was unloaded", pin=self.pin)
            try:
                if self._tables is not None:  # they are mapped: a write to the file changes the rows
                    self._tables.require_unchanged()
            except IntegrityError as error:
                failures.append(error.message)
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
        """Free everything, once; no batch may run any more."""
        with self._probe_lock:
            if not self.predictors:
                return
            last = self._probe_predictor
            self.predictors = []
            del self.inline_predictor, self._probe_predictor
            last.close_family()
            self._rows.close()


def _shortest_time(run: Callable[[], object], clock: Clock) -> float:
    """Measure the shortest time of several runs.

    With one thread the clock is processor time, which a busy machine does not change.
    """
    best, spent, rounds = float("inf"), 0.0, 0
    while rounds < _ROUNDS and (spent < _MAX_MEASURE_S or not rounds):
        begin = clock()
        run()
        took = clock() - begin
        best, spent, rounds = min(best, took), spent + took, rounds + 1
    return best


def _memory_bytes(bundle: Bundle, *, has_local_rows: bool) -> int:
    """Estimate the memory a version takes: its program and parameters, which clones share, and merged tables.

    A table of one file is mapped: the system can reclaim its pages, so they do not count.
    """
    dense = sum(path.stat().st_size for path in bundle.dense.values())
    tables = bundle.sparse.values() if has_local_rows else ()  # remote tables need not even be in the hub
    return dense + sum(len(table) * (8 + table.kind.row_bytes) for table in tables if len(table.files) > 1)


def _signature(bundle: Bundle) -> Signature:
    """Return the bundle's signature, or the program's own with the names of the file beside it."""
    if bundle.signature.feed and bundle.signature.fetch:
        return bundle.signature
    files = bundle.dense
    program, _ = find_program(files)
    signature = read_signature(files[program], program)
    return with_aliases(signature, files[DESCRIPTION]) if DESCRIPTION in files else signature
