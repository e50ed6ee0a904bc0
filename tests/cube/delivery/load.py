"""Readers that check every row of every answer against the version it claims to come from."""

from __future__ import annotations

import threading

import numpy as np

from cloudedge.errors import CloudEdgeError
from tests.cube.delivery.fleet import Fleet


class Readers:
    """Threads that read with and without a pin until the block ends; the block fails if one of them saw anything."""

    def __init__(self, fleet: Fleet, threads: int = 2) -> None:
        self._fleet = fleet
        self._rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.live = ""
        self.problems: list[str] = []
        self.reads = 0
        self.seen: set[str] = set()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(threads)]

    def knows(self, version: str, rows: dict[int, np.ndarray]) -> None:
        keys = np.array(sorted(rows), np.uint64)
        self._rows[version] = keys, np.stack([rows[int(key)] for key in keys])

    def __enter__(self) -> Readers:  # noqa: PYI034 - typing.Self is not in 3.10
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        with self._fleet.client() as client:
            while not self._stop.is_set():
                pin = self.live if rng.random() < 0.7 else None
                if not self.live:
                    self._stop.wait(0.01)
                    continue
                keys, _ = self._rows[self.live]
                some = rng.choice(keys, 64)
                try:
                    answer = client.seek(some, pin=pin)
                except CloudEdgeError as error:
                    self.problems.append(f"pin {pin}: {type(error).__name__} {error}")
                    continue
                self.reads += 1
                self.seen.add(str(answer.version))
                if pin is not None and answer.version != pin:
                    self.problems.append(f"pin {pin} answered from {answer.version}")
                self._check(some, answer)
                self._stop.wait(0.005)

    def _check(self, some: np.ndarray, answer: object) -> None:
        keys, values = self._rows[answer.version]
        at = np.searchsorted(keys, some)
        at[at == len(keys)] = 0
        there = keys[at] == some
        right = np.array_equal(answer.found, there) and np.array_equal(answer.values[there], values[at[there]])
        if not right:
            self.problems.append(f"an answer from {answer.version} holds rows that are not its own")
