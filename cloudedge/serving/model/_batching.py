"""Requests of one version, collected while workers are busy and run together.

A request that finds a worker idle is run at once; what arrives while all are busy shares the next batch. So a batch
adds no waiting of its own, and its size follows the load. A batch holds requests of one version and one shape, in the
order they came. The queue is bounded: what could not be begun in time is refused when it arrives.

Programs quick enough are run on the thread that reads requests (`Lane.put` with that thread's loop): passing work to
another thread and back costs more than running them.
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

__all__ = ["Item", "Lane", "LaneClosed", "Pool", "next_batch"]

_SMOOTHING = 0.1
"""How much the newest run counts in the estimate of how much longer runs take than they were measured to."""


class LaneClosed(Exception):
    """The version was unloaded between being chosen and being used; choose again."""


class Item:
    """One request on its way through a lane."""

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
        """What it takes, with what is looked up for it; known to the lane."""
        self.key = key
        self.names = names
        self.tag = tag
        self.deadline = deadline
        self.loop = loop
        """Whose thread learns the outcome; None: whoever waits for the future."""
        self.future: asyncio.Future[Answer] | Future[Answer] = Future() if loop is None else loop.create_future()
        self.outcome: Answer | Exception | None = None
        self.arrived = time.monotonic()


def next_batch(queue: deque[Item], max_rows_of: Callable[[ShapeKey], int], now: float) -> tuple[list[Item], list[Item]]:
    """Take from the front of a queue what is run together, and what is too late to be run at all."""
    batch: list[Item] = []
    expired: list[Item] = []
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


class Pool:
    """Threads that run batches, for all versions together: one for each core."""

    def __init__(self, workers: int) -> None:
        self.ready: SimpleQueue[Lane | None] = SimpleQueue()
        """Lanes with something to do; None: time to stop."""
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"serving-worker-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._threads)

    def _work(self, number: int) -> None:
        while (lane := self.ready.get()) is not None:
            lane.work(number)
            del lane  # an idle worker holds no version

    def close(self) -> None:
        """Stop once everything queued before is done."""
        for _ in self._threads:
            self.ready.put(None)
        for thread in self._threads:
            thread.join()


class Lane:
    """The queue of one version.

    Args:
        version: What runs the batches.
        pool: Whose threads do it.
        max_queue_rows: What may wait; beyond it requests are refused.
        max_queue_bytes: As above, of arrays and the rows that will be looked up for them.
        max_wait_s: As estimated from what batches take; beyond it requests are refused.
        width: How many batches run at once, each of them perhaps on several cores.
        inline: Run on the thread that reads requests, where `put` is told how.
    """

    def __init__(
        self, version: Version, pool: Pool, *, max_queue_rows: int, max_queue_bytes: int, max_wait_s: float,
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
        self._queue: deque[Item] = deque()
        self._running = 0
        """Batches on the pool's threads."""
        self._scheduled = False
        """Whether a worker was asked to take the next batch."""
        self._flush_scheduled = False
        self.queued_rows = self.queued_bytes = 0
        self.pending = 0
        """Requests taken and not yet answered."""
        self._held = 0
        self._closed = False
        self._empty = threading.Event()
        self._slowness = 1.0
        """Times what runs were measured to take, lately."""

    def hold(self) -> None:
        """Keep the version until `release`, whatever is unloaded meanwhile.

        Raises:
            LaneClosed: the version is gone.
        """
        with self._lock:
            if self._closed:
                raise LaneClosed
            self._held += 1

    def release(self) -> None:
        """Let go of it."""
        with self._lock:
            self._held -= 1
            self._tell_if_empty()

    def put(self, item: Item, home: asyncio.AbstractEventLoop | None = None) -> None:
        """Queue a request; `home` is the loop whose thread may run batches itself, if this is its thread.

        Raises:
            Overloaded: the queue is full, or what is in it takes too long.
            LaneClosed: the version is gone; not while somebody holds it.
        """
        item.bytes = self.version.feeds.bytes_of(item.rows, item.key)
        with self._lock:
            if self._closed and not self._held:
                raise LaneClosed
            if self.queued_rows:
                self._require_room(item)
            self._queue.append(item)
            self.queued_rows += item.rows
            self.queued_bytes += item.bytes
            self.pending += 1
            if not self.is_inline or home is None:
                self._schedule()
            elif not self._flush_scheduled:
                # Run once everything that can be read now has been read: that is what shares the batch.
                self._flush_scheduled = True
                home.call_soon(self._flush)

    def _schedule(self) -> None:
        """Have a worker take the next batch, if there is one to take and as many run as may."""
        if self._queue and not self._scheduled and self._running < self._width:
            self._scheduled = True
            self._pool.ready.put(self)

    def _require_room(self, item: Item) -> None:
        # By runs and not by rows: of a model whose rows cost little together, a short queue would look long, stay
        # short, and never make the batches that show it.
        wait_s = self.version.tuning.takes_s(self.queued_rows) * self._slowness / (1 if self.is_inline else self._width)
        if (
            self.queued_rows + item.rows > self._max_queue_rows
            or self.queued_bytes + item.bytes > self._max_queue_bytes
            or wait_s > self._max_wait_s
        ):
            self.version.metrics.refused()
            raise Overloaded(
                f"{self.queued_rows} rows of {self.queued_bytes} bytes wait for version {self.version.pin}, "
                f"about {wait_s:.2f} s of work",
                hint="try again later, or add replicas",
                pin=self.version.pin,
            )

    def _take(self) -> tuple[list[Item], list[Item]]:
        batch, expired = next_batch(self._queue, self.version.max_rows_of, time.monotonic())
        for item in (*batch, *expired):
            self.queued_rows -= item.rows
            self.queued_bytes -= item.bytes
        return batch, expired

    def work(self, number: int) -> None:
        """Run one batch on a worker's thread; what is left goes to whichever worker is free."""
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
        self._done(len(expired) + len(batch))

    def _flush(self) -> None:
        """Run one batch here and now; what else can be read or answered on this thread comes before the next."""
        with self._lock:
            batch, expired = self._take()
            more = self._flush_scheduled = bool(self._queue)
        self._expire(expired)
        if batch:
            self._run(batch, self.version.inline_predictor)
        for item in expired + batch:
            _settle(item)
        self._done(len(expired) + len(batch))
        if more:
            asyncio.get_running_loop().call_soon(self._flush)

    def _expire(self, items: list[Item]) -> None:
        for item in items:
            item.outcome = DeadlineExceeded(f"the deadline passed before version {self.version.pin} could begin")
        if items:
            self.version.metrics.refused(len(items))

    def _done(self, count: int) -> None:
        with self._lock:
            self.pending -= count
            self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if self._closed and not self.pending and not self._held:
            self._empty.set()

    def _run(self, batch: list[Item], predictor: Predictor) -> None:
        """Give every item its outcome; one that cannot be answered does not spoil the others."""
        begin = time.monotonic()
        version = self.version
        try:
            if len(batch) == 1:
                arrays = batch[0].arrays
            else:
                arrays = [np.concatenate(parts) for parts in zip(*(item.arrays for item in batch), strict=True)]
            if version.feeds.not_finite(arrays) is not None:
                self._run_finite(batch, predictor)
                return
            outputs, shares = version.execute(arrays, predictor, _last_deadline(batch), counted=version.metrics)
        except Exception as error:  # noqa: BLE001 - whatever it was, everybody who waits has to learn it
            if not isinstance(error, CloudEdgeError):
                error = ModelFailed(f"version {version.pin} failed: {type(error).__name__}: {error}")
            elif isinstance(error, NotFound):  # a shard that lost the version: nothing is wrong with the call
                error = Unavailable(error.message)
            if len(batch) > 1 and isinstance(error, InputError | ModelFailed):
                for item in batch:
                    self._run([item], predictor)
                return
            now = time.monotonic()
            for item in batch:
                is_late = item.deadline is not None and item.deadline <= now and error.retry_helps
                item.outcome = DeadlineExceeded(f"the deadline passed: {error.message}") if is_late else error
            version.metrics.refused(len(batch))
            return
        end = time.monotonic()
        at = 0
        for item in batch:
            mine = outputs if len(batch) == 1 else [output[at : at + item.rows] for output in outputs]
            defaulted = 0.0 if shares is None else float(shares[at : at + item.rows].mean())
            at += item.rows
            item.outcome = Answer(version.pick(mine, item.names), version.pin, item.tag, defaulted)
        self._slowness += _SMOOTHING * ((end - begin) / version.tuning.takes_s(at) - self._slowness)
        version.metrics.ran([end - item.arrived for item in batch], at, end - begin)
        version.metrics.scored(outputs[0])

    def _run_finite(self, batch: list[Item], predictor: Predictor) -> None:
        good = []
        for item in batch:
            item.outcome = self.version.feeds.not_finite(item.arrays)
            if item.outcome is None:
                good.append(item)
        self.version.metrics.refused(len(batch) - len(good))
        if good:
            self._run(good, predictor)

    def close(self, timeout_s: float, *, abandoned: bool = False) -> bool:
        """Take nothing more and wait for what is under way; tell whether it all ended.

        Args:
            timeout_s: How long to wait.
            abandoned: Nobody who holds the version will come back for it: the servers are gone.
        """
        with self._lock:
            self._closed = True
            self._held = 0 if abandoned else self._held
            self._tell_if_empty()
        return self._empty.wait(timeout_s)


def _last_deadline(batch: list[Item]) -> float | None:
    """Return when nobody waits for a batch any more, if that ever comes."""
    last = 0.0
    for item in batch:
        if item.deadline is None:
            return None
        last = max(last, item.deadline)
    return last


def _settle(item: Item) -> None:
    if item.future.done():  # the caller went away
        return
    if isinstance(item.outcome, Answer):
        item.future.set_result(item.outcome)
    else:
        item.future.set_exception(item.outcome or Unavailable("the request was dropped"))


def _settle_all(items: list[Item]) -> None:
    for item in items:
        _settle(item)


def _deliver(items: list[Item]) -> None:
    """Tell whoever waits, each on its own thread, with one call per loop."""
    by_loop: dict[Any, list[Item]] = {}
    for item in items:
        by_loop.setdefault(item.loop, []).append(item)
    for loop, mine in by_loop.items():
        if loop is None:
            _settle_all(mine)
            continue
        try:
            loop.call_soon_threadsafe(_settle_all, mine)
        except RuntimeError:  # that loop has ended, and with it whoever waited
            continue
