"""Health checks of supervised processes: probes over HTTP, and the rule by which a process counts as hung.

A probe is one GET on a connection of its own that never blocks the supervisor. The rule is careful, because its
consequence is a kill:

- A process that has not answered since it started is starting, however long that takes.
- A process is hung after `HUNG_S` without an answer during which it used no processor time: it is stopped, or waits for
  itself. One that does compute may hold its interpreter while it loads a large model, and gets `BUSY_S`.
- At least three probes in a row have to fail, so that a supervisor that was itself stopped kills nothing.
- A process under a debugger is left alone.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["BUSY_S", "HUNG_S", "HealthCheck", "HealthRecord", "cpu_seconds"]

HUNG_S = 15.0
BUSY_S = 300.0
EVERY_S = 1.0
TIMEOUT_S = 3.0
LEAST_PROBES = 3
IDLE_SHARE = 0.01
"""A process that uses less than this share of one core does nothing."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class HealthRecord:
    """The answers of one process to probes; decides whether it is hung. Pure."""

    answered_at: float | None = None
    cpu_s: float = 0.0
    """The processor time that it had used by then."""
    unanswered: int = 0

    def answered(self, now: float, cpu_s: float) -> None:
        """Record an answer."""
        self.answered_at, self.cpu_s, self.unanswered = now, cpu_s, 0

    def silent_s(self, now: float) -> float:
        """Return the time since the last answer; 0 before the first one."""
        return 0.0 if self.answered_at is None else now - self.answered_at

    def is_hung(self, now: float, cpu_s: float) -> bool:
        """Decide, given the processor time that it has used by now."""
        silent_s = self.silent_s(now)
        if self.unanswered < LEAST_PROBES or silent_s < HUNG_S:
            return False
        return silent_s >= BUSY_S or cpu_s - self.cpu_s < IDLE_SHARE * silent_s


class HealthCheck:
    """Probes one process, again and again, on the supervisor's selector.

    Args:
        url: Answered by the process while it is well; ``http://host:port/path``.
        selector: Learns the connection of a probe; this object is its data.
        read_cpu: Returns the processor time that the process has used.
    """

    def __init__(self, url: str, selector: selectors.BaseSelector, read_cpu: Callable[[], float]) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
        self._selector = selector
        self._read_cpu = read_cpu
        self._connection: socket.socket | None = None
        self._ends_at = 0.0
        self._due = 0.0
        self.record = HealthRecord()

    def due_in(self, now: float) -> float:
        """Return the time until `step` has something to do."""
        return max(0.0, (self._due if self._connection is None else self._ends_at) - now)

    def step(self, now: float) -> bool:
        """Begin or end a probe if that is due; returns whether the process is hung."""
        if self._connection is not None and now >= self._ends_at:
            self._end(now, answered=False)
        if self._connection is None and now >= self._due:
            self._begin(now)
        return self.record.is_hung(now, self._read_cpu()) if self.record.unanswered >= LEAST_PROBES else False

    def on_event(self, now: float) -> None:
        """Send the request, or read the answer."""
        connection = self._connection
        if connection is None:
            return
        try:
            if self._selector.get_key(connection).events == selectors.EVENT_WRITE:
                connection.send(self._request)
                self._selector.modify(connection, selectors.EVENT_READ, self)
            else:
                self._end(now, answered=connection.recv(64).startswith(b"HTTP/1."))
        except BlockingIOError:
            return
        except OSError:
            self._end(now, answered=False)

    def close(self) -> None:
        """Give up the probe under way."""
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.close()
            self._connection = None

    def _begin(self, now: float) -> None:
        self._ends_at = now + TIMEOUT_S
        self._connection = socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET)
        self._connection.setblocking(False)
        self._selector.register(self._connection, selectors.EVENT_WRITE, self)
        try:
            self._connection.connect_ex(self._address)
        except OSError:
            self._end(now, answered=False)

    def _end(self, now: float, *, answered: bool) -> None:
        self.close()
        self._due = now + EVERY_S
        if answered:
            self.record.answered(now, self._read_cpu())
        else:
            self.record.unanswered += 1


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used; infinite for one under a debugger, or that has ended."""
    try:
        if b"TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_bytes():
            return float("inf")
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / _TICKS
