"""The cube client of a simulated serving replica: the real client's decisions, on answers of simulated shards.

Only the compiled core, which asks the servers, is replaced; the code that decides what counts as an answer is that of
production. The client asks one shard at a time, so that anything may happen between two of them.
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
    """The state that all readers of a simulated world share.

    A row carries the origin of its bytes as a number of one byte. The client's decision follows from the answers alone,
    so it is made once for each combination of answers.
    """

    def __init__(self) -> None:
        self.config = ClientConfig([["127.0.0.1:1"]])
        """The client settings of serving replicas: the defaults."""
        self.clock = ManualClock()
        self.judged: dict[object, list[str] | CloudEdgeError] = {}
        self._names = [ZEROS]

    def mark(self, content: str) -> int:
        """Return the number that rows with some bytes carry."""
        if content not in self._names:
            self._names.append(content)
        return self._names.index(content)

    def name(self, mark: int) -> str:
        """Return the origin of the bytes with a number."""
        return self._names[mark]


class SimCube(Client):
    """Reads a row from every shard of a table, for one request at one serving replica.

    Args:
        readers: The state that it shares with other readers.
        groups: The shards, each with its replicas.
        reader: The serving replica, which may be cut off from some shards; None: a program that asks the shards itself.
        may_stray: Whether a shard may answer with another version than the pinned one.
    """

    def __init__(
        self, readers: Readers, groups: list[list[SimPlace]], reader: SimPlace | None, *, may_stray: bool = False
    ) -> None:
        self.config = readers.config
        self._clock = readers.clock
        self._readers, self._groups, self._reader = readers, groups, reader
        self._may_stray = may_stray
        self._answers: list[tuple[ShardAnswer, int]] = []
        self.is_excused = False
        """True if the serving replica could not reach a server, or a server did not understand its pin."""

    @property
    def left(self) -> int:
        """The number of shards that were not asked yet."""
        return len(self._groups) - len(self._answers)

    def ask_next(self, pin: str, first: int) -> None:
        """Ask the next shard: its replicas in turn, until one has the version."""
        number = len(self._answers)
        group = self._groups[number]
        attempts: list[tuple[str, str, int]] = []
        for place in group[first:] + group[:first]:
            if self._reader is not None and not self._reader.sees(place):
                self.is_excused = True
            elif place.is_up:
                found = place.seek(pin if not self._strays(place) else "")
                if found is not None:
                    version, content = found
                    self._answers.append((ShardAnswer(number, 1, True, version, attempts), self._readers.mark(content)))
                    return
                attempts.append((place.name, "unknown version", UNKNOWN_VERSION_CODE))
                continue
            attempts.append((place.name, "no answer", _AWAY))
        self._answers.append((ShardAnswer(number, 1, False, "", attempts), 0))

    def _strays(self, place: SimPlace) -> bool:
        """Tell whether a shard answers with what is active there, whatever the pin is."""
        if not self._may_stray or not place.strays():
            return False
        self._may_stray, self.is_excused = False, True
        return True

    def rows(self, pin: str) -> list[str]:
        """Return the origins of the rows that the client accepted.

        Raises:
            CloudEdgeError: the client refused the answers.
        """
        kind = (
            pin,
            *((s.answered, s.version, mark, *(code for _, _, code in s.attempts)) for s, mark in self._answers),
        )
        if len({shard.version for shard, _ in self._answers if shard.answered}) > 1:
            return self._accepted(pin)[1]  # the client asks again, and may get other answers
        judged = self._readers.judged
        if kind not in judged:
            try:
                judged[kind] = self._accepted(pin)[1]
            except CloudEdgeError as error:
                judged[kind] = error
        found = judged[kind]
        if isinstance(found, CloudEdgeError):
            raise found
        return found

    def rows_of_any(self) -> tuple[str, list[str]]:
        """Return the version that answered a read without a pin, and the origins of its rows.

        Raises:
            CloudEdgeError: the client refused the answers.
        """
        return self._accepted("")

    def _accepted(self, pin: str) -> tuple[str, list[str]]:
        found = self.seek(np.arange(len(self._groups), dtype=np.uint64), pin=pin or None, dtype=np.uint8)
        return found.version or "", [self._readers.name(mark) for mark in found.values[:, 0].tolist()]

    def rows_unpinned(self, first: int) -> list[str]:
        """Return the origins of rows as upstream's client reads them: of the active version, or zeros."""
        chosen = [group[first % len(group)] for group in self._groups]
        loaded = [place.copies.get(next(iter(place.active), "")) if place.is_up else None for place in chosen]
        return [copy.bytes if copy is not None else ZEROS for copy in loaded]

    def _ask(self, keys: NDArray[np.uint64], pin: str | None, timeout_s: float | None = None) -> ShardAnswers:  # noqa: ARG002
        while self.left:
            self.ask_next(pin or "", 0)
        shards = [shard for shard, _ in self._answers]
        rows = np.array([[mark] for _, mark in self._answers], np.uint8)
        states = np.array([_FOUND if shard.answered else _FAILED for shard in shards], np.uint8)
        self._answers = []  # a second try asks the servers again
        return ShardAnswers(rows, states, shards)
