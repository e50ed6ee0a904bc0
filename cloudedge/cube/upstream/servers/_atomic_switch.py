"""Switch of all replicas of all shards at once, with a measurement of how long versions were mixed.

Upstream's servers understand no pins, so between the first and the last switch a reader sees a mixture; cloudedge's
client notices and waits. Everything that takes time is done before: versions are loaded, connections are open. Then one
thread writes every command, one after the other without waiting for an answer, and seeks on separate connections
observe when each server changed. If one refuses, those that changed are switched back.
"""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.delivery import SwitchReport, table_of
from cloudedge.cube.upstream.servers._upstream_replica import UpstreamReplica
from cloudedge.errors import Conflict, NotFound, Unavailable
from cloudedge.io import parse_length

__all__ = ["AtomicSwitch", "named"]

_CONNECT_S = 5.0
_MAX_ANSWER = 64 * 1024
_POLL_S = 0.002
_OK = 200


class AtomicSwitch:
    """Switches replicas together, of one table or of several.

    >>> AtomicSwitch(replicas).switch("2026-11-16").mixed_at_most_s  # doctest: +SKIP
    0.0004

    Args:
        replicas: All replicas of all shards, each with the version loaded.
        clock: For the measurement and the deadline.
        within_s: The longest time of the whole switch before it is undone.
    """

    def __init__(
        self, replicas: Sequence[UpstreamReplica], *, clock: Clock | None = None, within_s: float = 10
    ) -> None:
        self._replicas = replicas
        self._clock = clock or SystemClock()
        self._within_s = within_s

    def switch(self, version: str | Mapping[str, str]) -> SwitchReport:
        """Activate a version everywhere; it is loaded everywhere.

        Args:
            version: Its name, or one for each table; replicas of tables that are not named stay as they are.

        Raises:
            Unavailable: a replica could not be reached before anything was changed, or did not switch in time; then
                all are back on what they had.
            NotFound: a replica does not have the version in its other slot; all are back on what they had.
            Conflict: one did not switch, and others could not be switched back; `versions` holds each one's version.
        """
        with ExitStack() as stack:
            lines = [
                stack.enter_context(_Replica(replica, name, self._clock))
                for replica in self._replicas
                if (name := version if isinstance(version, str) else version.get(table_of(replica)))
            ]
            if not self._observe(lines, lambda line: line.seen is not None):
                silent = ", ".join(line.replica.name for line in lines if line.seen is None)
                raise Unavailable(
                    f"{silent} did not answer a seek; nothing was switched", hint="Start it, then switch."
                )
            going = [line for line in lines if line.seen != line.wanted]
            if not self._move(going):
                self._go_back(going, named(version))
            report = _report(named(version), lines, going)
        for line in lines:
            line.replica.switched(line.name, line.previous)
        return report

    def _move(self, going: list[_Replica]) -> bool:
        """Send every command, then watch until each took effect; returns whether all did."""
        for line in going:
            line.enable()
        return self._observe(going, lambda line: line.seen == line.wanted)

    def _observe(self, lines: list[_Replica], is_done: Callable[[_Replica], bool], *, is_patient: bool = False) -> bool:
        """Ask every replica for its version, again and again, until all are done, or one cannot be any more."""
        deadline = self._clock.monotonic() + self._within_s
        with selectors.DefaultSelector() as selector:
            for line in lines:
                if not line.is_asking:
                    line.ask()
                selector.register(line.seeks.socket, selectors.EVENT_READ, line.on_seek)
                selector.register(line.commands.socket, selectors.EVENT_READ, line.on_command)
            waiting = list(lines)
            while waiting and self._clock.monotonic() < deadline:
                for key, _ in selector.select(_POLL_S):
                    key.data()
                for line in waiting:
                    if line.is_broken or (line.refused and not is_patient):
                        return False
                    if not line.is_asking and not is_done(line):
                        line.ask()
                waiting = [line for line in waiting if line.is_asking or not is_done(line)]
        return not waiting

    def _go_back(self, going: list[_Replica], name: str) -> None:
        """Switch back the replicas that changed, and raise."""
        # Commands under way end first: a second one would be refused, or overtake it.
        self._observe([line for line in going if not line.is_broken], lambda line: not line.is_told, is_patient=True)
        guilty = [line for line in going if line.refused or line.is_broken]
        guilty = guilty or [line for line in going if line.seen != line.wanted]
        failed = [line.replica.name for line in guilty]
        refused = all(line.refused for line in guilty)
        for line in going:
            if line.refused:
                line.replica.refused()
            line.turn_back()
        reachable = [line for line in going if not line.is_broken]
        if not self._move(reachable) or len(reachable) < len(going):
            raise Conflict(
                f"{', '.join(failed)} did not switch to {name}, and not everything could be switched back",
                hint="Deliver the version that should be live again: every server gets it, whatever it has now.",
                versions={line.replica.name: None if line.is_broken else line.seen for line in going},
            )
        raise (NotFound if refused else Unavailable)(
            f"{', '.join(failed)} did not switch to {name}; all are on what they had",
            hint="Load the version there again, then switch.",
            replicas=failed,
        )


class _Replica:
    """One replica during a switch: a connection for commands, one for seeks, and the times of the changes seen."""

    def __init__(self, replica: UpstreamReplica, name: str, clock: Clock) -> None:
        self.replica = replica
        self.name = name
        self.wanted = replica.number(name)
        self.seen: str | None = None
        self.previous: str | None = None
        self.is_asking = self.is_told = False
        self.refused = False
        self.last_before = self.first_after = 0.0
        self._clock = clock
        self._asked_at = 0.0
        self._first: str | None = None

    def __enter__(self) -> _Replica:  # noqa: PYI034 - typing.Self is not in 3.10
        with ExitStack() as stack:
            self.commands = stack.enter_context(_Line(self.replica))
            self.seeks = stack.enter_context(_Line(self.replica))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def is_broken(self) -> bool:
        return self.commands.is_broken or self.seeks.is_broken

    def enable(self) -> None:
        self.is_told = True
        self.commands.send("/ControlService/cmd", {"cmd": "enable", "version": self.wanted})

    def turn_back(self) -> None:
        """Make the first version the wanted one again."""
        self.refused = False
        self.wanted = self._first or ""

    def ask(self) -> None:
        self._asked_at = self._clock.monotonic()
        self.is_asking = True
        self.seeks.send("/DictService/seek", {"version_required": True})

    def on_seek(self) -> None:
        answer = self.seeks.receive()
        if answer is None:
            return
        now, self.is_asking = self._clock.monotonic(), False
        self.seen = _version(answer[1])
        if self._first is None:
            self._first, self.previous = self.seen, self.replica.version_name(self.seen)
        if self.seen == self.wanted:
            self.first_after = self.first_after or now
        else:
            self.last_before, self.first_after = self._asked_at, 0.0

    def on_command(self) -> None:
        answer = self.commands.receive()
        if answer is not None:
            self.is_told = False
            self.refused = answer[0] != _OK


class _Line:
    """A connection with a minimal HTTP client that never waits to read."""

    def __init__(self, replica: UpstreamReplica) -> None:
        self._host = replica.cube.host
        try:
            self.socket = socket.create_connection((replica.cube.host, replica.cube.port), _CONNECT_S)
        except OSError as error:
            raise Unavailable(
                f"{replica.name} cannot be reached: {error}; nothing was switched",
                hint="Check that the server runs, then switch.",
                replica=replica.name,
            ) from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.is_broken = False

    def __enter__(self) -> _Line:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, path: str, body: dict[str, Any]) -> None:
        content = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        try:
            self.socket.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        except OSError:
            self.is_broken = True

    def receive(self) -> tuple[int, bytes] | None:
        """Return an answer's status and body once it is complete."""
        try:
            chunk = self.socket.recv(_MAX_ANSWER)
        except OSError:
            chunk = b""
        self._received += chunk
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not chunk or len(self._received) > _MAX_ANSWER:
            self.is_broken = True
        if not found:
            return None
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(":", 1) for line in lines[1:] if ":" in line)
        length, status = parse_length(headers.get("content-length", "")), parse_length(f"{lines[0]}  ".split(" ")[1])
        if length is None or status is None:
            self.is_broken = True
            return None
        if len(rest) < length:
            return None
        self._received = rest[length:]
        return status, rest[:length]


def _version(body: bytes) -> str:
    try:
        return str(json.loads(body).get("version", ""))
    except (ValueError, AttributeError):
        return ""


def named(version: str | Mapping[str, str]) -> str:
    """Return the name of a version, or one text with those of several tables."""
    if isinstance(version, str):
        return version
    names = set(version.values())
    return names.pop() if len(names) == 1 else ", ".join(f"{table} {name}" for table, name in sorted(version.items()))


def _report(name: str, lines: list[_Replica], going: list[_Replica]) -> SwitchReport:
    """Bound the time from the first change to the last: each lies between two seeks."""
    if not going:
        return SwitchReport(name, len(lines), 0, 0.0, 0.0)
    before, after = [line.last_before for line in going], [line.first_after for line in going]
    return SwitchReport(name, len(lines), len(going), max(0.0, max(before) - min(after)), max(after) - min(before))
