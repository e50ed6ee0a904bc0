"""The cube client of a simulated serving replica: the real one's judgement, on answers of simulated shards.

Only what the compiled core does is replaced, asking the servers; what counts as an answer is decided by the code that
decides it in production. A shard is asked at a time, so that anything may happen between two of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cloudedge.clock import ManualClock
from cloudedge.cube import Client, ClientConfig
from cloudedge.cube.client import UNKNOWN_VERSION_CODE, ShardAnswer, ShardAnswers
from cloudedge.errors import CloudEdgeError
from cloudedge.testing._copies import ZEROS

if TYPE_CHECKING:
    from cloudedge.testing._simulated_places import SimPlace

__all__ = ["Readers", "SimCube"]

_AWAY = 0
_FOUND, _FAILED = 1, 2


class Readers:
    """What all readers of a simulated world have in common.

    Rows carry whose they are as a number of one byte. What the client makes of answers follows from them alone, so it
    is asked once for each kind of answers there is.
    """

    def __init__(self) -> None:
        self.config = ClientConfig([["127.0.0.1:1"]])
        """How serving replicas read: as they do unless somebody says otherwise."""
        self.clock = ManualClock()
        self.judged: dict[object, list[str] | CloudEdgeError] = {}
        self._names = [ZEROS]

    def mark(self, content: str) -> int:
        """Return the number that rows of some bytes carry."""
        if content not in self._names:
            self._names.append(content)
        return self._names.index(content)

    def name(self, mark: int) -> str:
        """Say whose bytes carry a number."""
        return self._names[mark]


class SimCube(Client):
    """Reads a row from every shard of a table, for one request at one serving replica.

    Args:
        readers: What it has in common with others.
        groups: The shards, each with its replicas.
        reader: The serving replica, which may be cut off from some.
    """

    def __init__(self, readers: Readers, groups: list[list[SimPlace]], reader: SimPlace) -> None:
        self.config = readers.config
        self._clock = readers.clock
        self._readers, self._groups, self._reader = readers, groups, reader
        self._answers: list[tuple[ShardAnswer, int]] = []
        self.is_cut_off = False
        """A shard was asked for that its replica could not reach."""

    @property
    def left(self) -> int:
        """How many shards are still to be asked."""
        return len(self._groups) - len(self._answers)

    def ask_next(self, pin: str, first: int) -> None:
        """Ask one shard more, its replicas in turn, until one has the version."""
        number = len(self._answers)
        group = self._groups[number]
        attempts: list[tuple[str, str, int]] = []
        for place in group[first:] + group[:first]:
            if not self._reader.sees(place):
                self.is_cut_off = True
            elif place.is_up:
                found = place.seek(pin)
                if found is not None:
                    version, content = found
                    self._answers.append((ShardAnswer(number, 1, True, version, attempts), self._readers.mark(content)))
                    return
                attempts.append((place.name, "unknown version", UNKNOWN_VERSION_CODE))
                continue
            attempts.append((place.name, "no answer", _AWAY))
        self._answers.append((ShardAnswer(number, 1, False, "", attempts), 0))

    def rows(self, pin: str) -> list[str]:
        """Return whose rows the shards answered with, as far as the client takes them.

        Raises:
            CloudEdgeError: it does not.
        """
        kind = (
            pin,
            *((s.answered, s.version, mark, *(code for _, _, code in s.attempts)) for s, mark in self._answers),
        )
        judged = self._readers.judged
        if kind not in judged:
            keys = np.arange(len(self._groups), dtype=np.uint64)
            try:
                marks = self.seek(keys, pin=pin, dtype=np.uint8).values[:, 0].tolist()
                judged[kind] = [self._readers.name(mark) for mark in marks]
            except CloudEdgeError as error:
                judged[kind] = error
        found = judged[kind]
        if isinstance(found, CloudEdgeError):
            raise found
        return found

    def rows_unpinned(self, first: int) -> list[str]:
        """Return whose rows there are as upstream's client reads them: what is active, and zeros of who is away."""
        chosen = [group[first % len(group)] for group in self._groups]
        loaded = [place.copies.get(next(iter(place.active), "")) if place.is_up else None for place in chosen]
        return [copy.bytes if copy is not None else ZEROS for copy in loaded]

    def _ask(self, keys: NDArray[np.uint64], pin: str | None, timeout_s: float | None = None) -> ShardAnswers:  # noqa: ARG002
        while self.left:
            self.ask_next(pin or "", 0)
        shards = [shard for shard, _ in self._answers]
        rows = np.array([[mark] for _, mark in self._answers], np.uint8)
        states = np.array([_FOUND if shard.answered else _FAILED for shard in shards], np.uint8)
        self._answers = []  # who asks again asks the servers again
        return ShardAnswers(rows, states, shards)
