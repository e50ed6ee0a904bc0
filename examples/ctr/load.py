"""Load: clients that never stop asking, and that check every answer against the whole model.

Each client asks for the same few impressions over and over. What the whole network answers to them is known for every
version, so an answer tells by its numbers alone which version's dense net and which version's rows it was made of: an
answer that fits the version it claims to come from is right, any other one is *mixed*.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from clicks import Clicks
from numpy.typing import NDArray

from cloudedge.errors import CloudEdgeError
from cloudedge.serving import Client

TOLERANCE = 1e-5
_BUCKET_S = 0.25
_BUCKETS = 200


@dataclass(frozen=True)
class Answered:
    """One request that got an answer, or did not."""

    at: float
    """Seconds on the load's clock, when it was answered."""
    seconds: float
    pin: str
    """Empty if it failed."""
    is_mixed: bool
    why: str = ""


class Load:
    """Clients in threads, until stopped.

    Args:
        client: Makes a client; each thread has its own.
        impressions: What is asked for, a row per request.
        clients: How many ask at the same time.
    """

    def __init__(self, client: Callable[[], Client], impressions: Clicks, *, clients: int = 4) -> None:
        self._client = client
        self._impressions = impressions
        self._expected: dict[str, NDArray[np.float32]] = {}
        self._answered: list[list[Answered]] = [[] for _ in range(clients)]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(clients)]
        self._began = time.monotonic()

    def expect(self, pin: str, scores: NDArray[np.float32]) -> None:
        """Say what the version called `pin` has to answer."""
        self._expected[pin] = scores

    def start(self) -> Load:
        """Begin asking; the clock runs from the moment this was made."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Stop asking."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def now(self) -> float:
        """Return the seconds since this was made."""
        return time.monotonic() - self._began

    @property
    def answered(self) -> list[Answered]:
        """Everything so far, in the order of the answers."""
        return sorted((one for part in self._answered for one in part[:]), key=lambda one: one.at)

    def _ask(self, number: int) -> None:
        rng = np.random.default_rng(number)
        with self._client() as client:
            while not self._stop.is_set():
                row = int(rng.integers(len(self._impressions)))
                self._answered[number].append(self._ask_once(client, row))

    def _ask_once(self, client: Client, row: int) -> Answered:
        one = self._impressions[slice(row, row + 1)]
        begun = time.monotonic()
        try:
            answer = client.predict({"dense": one.dense, "ids": one.ids})
            took = time.monotonic() - begun
            (score,) = next(iter(answer.outputs.values())).reshape(-1)
            right = self._expected[answer.pin][row]
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody did not get an answer
            why = str(error) if isinstance(error, CloudEdgeError) else f"{type(error).__name__}: {error}"
            return Answered(self.now(), time.monotonic() - begun, "", is_mixed=False, why=why)
        return Answered(self.now(), took, answer.pin, is_mixed=not abs(score - right) <= TOLERANCE)


def p99_ms(answered: Sequence[Answered], start: float, end: float) -> float | None:
    """Return the 99th percentile of what was answered between two moments."""
    times = [one.seconds for one in answered if start <= one.at < end and one.pin]
    return float(np.percentile(times, 99) * 1000) if times else None


def timeline(answered: Sequence[Answered]) -> list[Mapping[str, Any]]:
    """Sum up what was answered, a quarter of a second at a time, or what gives some two hundred points."""
    width = max(_BUCKET_S, answered[-1].at / _BUCKETS if answered else 0.0)
    buckets: dict[int, list[Answered]] = {}
    for one in answered:
        buckets.setdefault(int(one.at / width), []).append(one)
    found: list[Mapping[str, Any]] = []
    for number in range(max(buckets, default=-1) + 1):
        bucket = [one for one in buckets.get(number, []) if one.pin]
        times = np.array([one.seconds for one in bucket]) * 1000
        pins = {one.pin for one in bucket}
        found.append(
            {
                "t": round(number * width, 3),
                "qps": {pin: sum(one.pin == pin for one in bucket) / width for pin in sorted(pins)},
                "p50_ms": float(np.percentile(times, 50)) if bucket else None,
                "p99_ms": float(np.percentile(times, 99)) if bucket else None,
            }
        )
    return found
