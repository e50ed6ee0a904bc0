"""The request queue of a version, its batches, and the worker threads that run them.

A request that finds an idle worker runs at once; requests that arrive while all workers are busy share the next batch.
So batching adds no wait of its own, and the batch size follows the load. A batch holds requests of one version and one
shape, in the order of arrival. The queue is bounded: a request that could not begin in time is refused on arrival.

Fast programs run on the thread that reads requests (`VersionQueue.put` with that thread's loop): handing the work to
another thread and back would cost more than the run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np

from cloudedge.errors import CloudEdgeError, DeadlineExceeded, InputError, NotFound, Overloaded, Unavailable
from cloudedge.serving.engine import Answer, ModelFailed
from cloudedge.serving.model._inputs import Arrays, ShapeKey
from cloudedge.serving.model._predictor import Predictor
from cloudedge.serving.model._version import Version

__all__ = ["QueuedRequest", "VersionQueue", "VersionUnloaded", "WorkerPool", "next_batch"]

_SMOOTHING = 0.1
"""Weight of the newest run in the moving average of actual to measured run time."""


class VersionUnloaded(Exception):
    """The version was unloaded after it was chosen; choose again."""


class QueuedRequest:
    """One request in the queue of a version."""

    __slots__ = ("arrays", "arrived", "bytes", "deadline", "future", "key", "loop", "names", "outcome", "rows", "tag")

    def __init__(
        self,
        arrays: Arrays,
        rows: int,
        key: ShapeKey,
        names: Sequence[str],
        *,
        tag: str = "",
        deadline: float | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.arrays = arrays
        self.rows = rows
        self.bytes = 0
        """Memory of its arrays and of the rows looked up for it; set by the queue."""
        self.key = key
        self.names = names
        self.tag = tag
        self.deadline = deadline
        self.loop = loop
        """The loop that receives the outcome; None: a thread that waits for the future."""
        self.future: asyncio.Future[Answer] | Future[Answer] = Future() if loop is None else loop.create_future()
        self.outcome: Answer | Exception | None = None
        self.arrived = time.monotonic()


def next_batch(
    queue: deque[QueuedRequest], max_rows_of: Callable[[ShapeKey], int], now: float
) -> tuple[list[QueuedRequest], list[QueuedRequest]]:
    """Take the next batch from the front of a queue, and the requests whose deadline has passed."""
    batch: list[QueuedRequest] = []
    expired: list[QueuedRequest] = []
    rows = max_rows = 0
    while queue:
        item = queue[0]
        if item.deadline is not None and item.deadline <= now:
            expired.append(queue.popleft())
            continue
        if batch and (item.key != batch[0].key or rows + item.rows > max_rows):
            break
        if not batch:
            max_rows = max_rows_of(item.key)
        batch.append(queue.popleft())
        rows += item.rows
    return batch, expired


class WorkerPool:
    """The threads that run the batches of all versions."""

    def __init__(self, workers: int) -> None:
        self.ready: SimpleQueue[VersionQueue | None] = SimpleQueue()
        """Queues with a batch to run; None stops one worker."""
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"serving-worker-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._threads)

    def _work(self, number: int) -> None:
        while (queue := self.ready.get()) is not None:
            queue.work(number)
            del queue  # an idle worker keeps no version in memory

    def close(self) -> None:
        """Finish everything that is queued, then stop."""
        for _ in self._threads:
            self.ready.put(None)
        for thread in self._threads:
            thread.join()


class VersionQueue:
    """The bounded queue of one version, and its batches.

    Args:
        version: Runs the batches.
        pool: The threads to run them on.
        max_queue_rows: Rows that may wait; beyond it requests are refused.
        max_queue_bytes: Bytes that may wait, of arrays and the rows to look up for them.
        max_wait_s: Longest wait, estimated from the run time of batches; beyond it requests are refused.
        width: Batches that run at once, each of them perhaps on several cores.
        inline: Run on the thread that reads requests, where `put` gets its loop.
    """

    def __init__(
        self, version: Version, pool: WorkerPool, *, max_queue_rows: int, max_queue_bytes: int, max_wait_s: float,
        width: int, inline: bool = False,
    ) -> None:  # fmt: skip
        self.version = version
        self._pool = pool
        self._max_queue_rows = max_queue_rows
        self._max_queue_bytes = max_queue_bytes
        self._max_wait_s = max_wait_s
        self._width = width
        self.is_inline = inline
        self._lock = threading.Lock()
        self._queue: deque[QueuedRequest] = deque()
        self._running = 0
        """Batches on the pool's threads."""
        self._scheduled = False
        """A worker is asked to take the next batch."""
        self._flush_scheduled = False
        self.queued_rows = self.queued_bytes = 0
        self.pending = 0
        """Requests accepted and not yet answered."""
        self._holders = 0
        self._closed = False
        self._empty = threading.Event()
        self._slowness = 1.0
        """Recent run time as a multiple of the measured run time."""

    def hold(self) -> None:
        """Keep the version loaded until `release`.

        Raises:
            VersionUnloaded: The version was unloaded.
        """
        with self._lock:
            if self._closed:
                raise VersionUnloaded
            self._holders += 1

    def release(self) -> None:
        """End one `hold`."""
        with self._lock:
            self._holders -= 1
            self._signal_if_empty()

    def put(self, item: QueuedRequest, reader_loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Queue a request; `reader_loop` is the loop of the calling thread if that thread may run batches itself.

        Raises:
            Overloaded: The queue is full, or its work would take too long.
            VersionUnloaded: The version was unloaded; never while a caller holds it.
        """
        item.bytes = self.version.feeds.bytes_of(item.rows, item.key)
        with self._lock:
            if self._closed and not self._holders:
                raise VersionUnloaded
            if self.queued_rows:
                self._require_room(item)
            self._queue.append(item)
            self.queued_rows += item.rows
            self.queued_bytes += item.bytes
            self.pending += 1
            if not self.is_inline or reader_loop is None:
                self._schedule()
            elif not self._flush_scheduled:
                # Run after everything that is readable now has been read: those requests share the batch.
                self._flush_scheduled = True
                reader_loop.call_soon(self._flush)

    def _schedule(self) -> None:
        """Ask a worker to take the next batch, if there is one and fewer than `width` run."""
        if self._queue and not self._scheduled and self._running < self._width:
            self._scheduled = True
            self._pool.ready.put(self)

    def _require_room(self, item: QueuedRequest) -> None:
        # Estimated by runs, not by rows. Where rows cost little together, an estimate by rows would make a short queue
        # look long: it would stay short and never form the batches that prove otherwise.
        parallel = 1 if self.is_inline else self._width
        wait_s = self.version.tuning.estimate_s(self.queued_rows) * self._slowness / parallel
        if (
            self.queued_rows + item.rows > self._max_queue_rows
            or self.queued_bytes + item.bytes > self._max_queue_bytes
            or wait_s > self._max_wait_s
        ):
            self.version.metrics.count_failed()
            raise Overloaded(
                f"{self.queued_rows} rows of {self.queued_bytes} bytes wait for version {self.version.pin}, "
                f"about {wait_s:.2f} s of work",
                hint="Try again later, or add replicas.",
                pin=self.version.pin,
            )

    def _take(self) -> tuple[list[QueuedRequest], list[QueuedRequest]]:
        batch, expired = next_batch(self._queue, self.version.max_rows_of, time.monotonic())
        for item in (*batch, *expired):
            self.queued_rows -= item.rows
            self.queued_bytes -= item.bytes
        return batch, expired

    def work(self, number: int) -> None:
        """Run one batch on a worker's thread; a free worker takes the next."""
        with self._lock:
            batch, expired = self._take()
            self._running += 1
            self._scheduled = False
            self._schedule()
        self._expire(expired)
        if batch:
            self._run(batch, self.version.predictors[number])
        with self._lock:
            self._running -= 1
            self._schedule()
        _deliver(expired + batch)
        self._finish(len(expired) + len(batch))

    def _flush(self) -> None:
        """Run one batch on this thread; its other readable requests and answers come before the next batch."""
        with self._lock:
            batch, expired = self._take()
            more = self._flush_scheduled = bool(self._queue)
        self._expire(expired)
        if batch:
            self._run(batch, self.version.inline_predictor)
        for item in expired + batch:
            _resolve(item)
        self._finish(len(expired) + len(batch))
        if more:
            asyncio.get_running_loop().call_soon(self._flush)

    def _expire(self, items: list[QueuedRequest]) -> None:
        for item in items:
            item.outcome = DeadlineExceeded(f"the deadline passed before version {self.version.pin} could begin")
        if items:
            self.version.metrics.count_failed(len(items))

    def _finish(self, count: int) -> None:
        with self._lock:
            self.pending -= count
            self._signal_if_empty()

    def _signal_if_empty(self) -> None:
        if self._closed and not self.pending and not self._holders:
            self._empty.set()

    def _run(self, batch: list[QueuedRequest], predictor: Predictor) -> None:
        """Give every request its outcome; one that cannot be answered does not fail the others."""
        begin = time.monotonic()
        version = self.version
        try:
            if len(batch) == 1:
                arrays = batch[0].arrays
            else:
                arrays = [np.concatenate(parts) for parts in zip(*(item.arrays for item in batch), strict=True)]
            if version.feeds.find_non_finite(arrays) is not None:
                self._run_finite(batch, predictor)
                return
            outputs, shares = version.execute(arrays, predictor, _last_deadline(batch), metrics=version.metrics)
        except Exception as error:  # noqa: BLE001 - every waiting caller gets the error
            if not isinstance(error, CloudEdgeError):
                error = ModelFailed(f"version {version.pin} failed: {type(error).__name__}: {error}")
            elif isinstance(error, NotFound):  # a shard lost the version: the call itself is right
                error = Unavailable(error.message)
            if len(batch) > 1 and isinstance(error, InputError | ModelFailed):
                for item in batch:
                    self._run([item], predictor)
                return
            now = time.monotonic()
            for item in batch:
                is_late = item.deadline is not None and item.deadline <= now and error.retry_helps
                item.outcome = DeadlineExceeded(f"the deadline passed: {error.message}") if is_late else error
            version.metrics.count_failed(len(batch))
            return
        end = time.monotonic()
        at = 0
        for item in batch:
            mine = outputs if len(batch) == 1 else [output[at : at + item.rows] for output in outputs]
            defaulted = 0.0 if shares is None else float(shares[at : at + item.rows].mean())
            at += item.rows
            item.outcome = Answer(version.pick(mine, item.names), version.pin, item.tag, defaulted)
        self._slowness += _SMOOTHING * ((end - begin) / version.tuning.estimate_s(at) - self._slowness)
        version.metrics.count_batch([end - item.arrived for item in batch], at, end - begin)
        version.metrics.count_scores(outputs[0])

    def _run_finite(self, batch: list[QueuedRequest], predictor: Predictor) -> None:
        good = []
        for item in batch:
            item.outcome = self.version.feeds.find_non_finite(item.arrays)
            if item.outcome is None:
                good.append(item)
        self.version.metrics.count_failed(len(batch) - len(good))
        if good:
            self._run(good, predictor)

    def close(self, timeout_s: float, *, abandoned: bool = False) -> bool:
        """Refuse new requests and wait for those under way; return True if all of them ended.

        Args:
            timeout_s: Longest wait.
            abandoned: Ignore the holders: the servers have stopped, and no holder will release.
        """
        with self._lock:
            self._closed = True
            self._holders = 0 if abandoned else self._holders
            self._signal_if_empty()
        return self._empty.wait(timeout_s)


def _last_deadline(batch: list[QueuedRequest]) -> float | None:
    """Return the latest deadline in a batch; None if one request has none."""
    last = 0.0
    for item in batch:
        if item.deadline is None:
            return None
        last = max(last, item.deadline)
    return last


def _resolve(item: QueuedRequest) -> None:
    if item.future.done():  # the caller went away
        return
    if isinstance(item.outcome, Answer):
        item.future.set_result(item.outcome)
    else:
        item.future.set_exception(item.outcome or Unavailable("the request was dropped"))


def _resolve_all(items: list[QueuedRequest]) -> None:
    for item in items:
        _resolve(item)


def _deliver(items: list[QueuedRequest]) -> None:
    """Hand the outcomes to the waiting callers, each on its own thread, with one call per loop."""
    by_loop: dict[Any, list[QueuedRequest]] = {}
    for item in items:
        by_loop.setdefault(item.loop, []).append(item)
    for loop, mine in by_loop.items():
        if loop is None:
            _resolve_all(mine)
            continue
        try:
            loop.call_soon_threadsafe(_resolve_all, mine)
        except RuntimeError:  # the loop has ended, and its callers with it
            continue
