"""The mapping between version names and upstream's version numbers, one to one and permanent.

Upstream's programs keep versions in an int32 and make them from the unix time. A name that looks like such a time
stands for itself; every other one gets a number of its own, recorded before it is used. All have ten digits because
upstream's agent deletes by prefix of an old version's name, and a version 1000 would go together with version 100.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Protocol

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import InputError, NotFound
from cloudedge.journal import Journal, Writer

__all__ = ["Memory", "VersionIds", "journal_memory"]

_SMALLEST, _LARGEST = 10**9, 2**31 - 1
_TIME = re.compile(r"[12][0-9]{9}")


class Memory(Protocol):
    """Facts kept from one run to the next; the journal's."""

    def recall(self, key: str) -> Any:
        """Return the value of a fact, or None."""

    def remember(self, key: str, value: Any) -> None:
        """Keep a fact; it is on disk when this returns."""


class _JournalMemory:
    def __init__(self, journal: Journal, remember: Callable[[str, Any], None] | None) -> None:
        self._journal = journal
        self._remember = remember

    def recall(self, key: str) -> Any:
        return self._journal.recall(key)

    def remember(self, key: str, value: Any) -> None:
        if self._remember is None:
            raise NotFound(f"{key} is not known yet, and this only reads", key=key)
        self._remember(key, value)


def journal_memory(journal: Journal, writer: Writer | None) -> Memory:
    """Use a journal as a memory; without a writer it can only be read."""
    return _JournalMemory(journal, None if writer is None else writer.remember)


class VersionIds:
    """The numbers of one table's versions.

    Args:
        table: The table.
        memory: The memory of the numbers.
        clock: For the unix time that becomes a new number, if it is not taken.
    """

    def __init__(self, table: str, memory: Memory, *, clock: Clock | None = None) -> None:
        self.table = table
        self.memory = memory
        self._lock = threading.Lock()
        self._clock = clock or SystemClock()
        self._key = f"cube/{table}/numbers"

    def number(self, name: str) -> int:
        """Return a name's number, giving out a new one if it has none.

        Raises:
            InputError: there are no numbers left.
        """
        with self._lock:
            known = self._known()
            if name not in known:
                known[name] = self._next(name, known)
                self.memory.remember(self._key, known)
            return known[name]

    def name(self, number: str) -> str | None:
        """Return the name of a version number that a server reports; None for an empty version string."""
        names = {str(value): name for name, value in self._known().items()}
        return names.get(number, number) or None

    def _next(self, name: str, known: dict[str, int]) -> int:
        used = set(known.values())
        if _TIME.fullmatch(name) and int(name) <= _LARGEST and int(name) not in used:
            return int(name)
        number = max(_SMALLEST, int(self._clock.now().timestamp()))
        while number in used:
            number += 1
        if number > _LARGEST:
            raise InputError(
                f"version {name!r} of {self.table} would get the number {number}; upstream's end at {_LARGEST}",
                hint="Set this machine's clock, or move to servers that take names.",
            )
        return number

    def _known(self) -> dict[str, int]:
        return dict(self.memory.recall(self._key) or {})
