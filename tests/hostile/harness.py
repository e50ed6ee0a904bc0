"""The harness of the attack suite: a server as a child process under a memory limit, a neighbour, and an attack.

To attack another server, write a `Target` for it (its command, its ports and the neighbour's request) and add its
attacks to the table of `attacks.py`.

The neighbour is a well-behaved client of the same server. It measures its own latencies before the attack and during
it. `assault` then checks what must hold: the process lives, its memory grew by at most `MAX_GROWTH`, every request of
the neighbour succeeded, and the neighbour's p99 stayed near its normal value.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

MAX_GROWTH = 64 << 20
ROOM = 4 << 30
"""Address space beyond the server's own at rest, most of it for the stacks of threads, which take little memory: an
attack that takes it ends the server, and not this machine."""
CALM_S = 0.4
"""Time over which the neighbour measures its normal latencies, and for which it goes on after an attack."""
PAUSE_S = 0.005
PATIENCE_S = 60.0
SLOWER, SLACK_S = 5, 0.25
"""The neighbour's p99 is at most `SLOWER` times its normal value, and `SLACK_S` for a busy machine."""


@dataclass(frozen=True)
class Attack:
    """Bytes for one port of a server.

    `send` gets the port and attacks it until it has sent everything or was turned away; it returns what it was
    answered. `in_answer` is part of every answer, or empty where the connection may just end.
    """

    name: str
    port: str
    send: Callable[[int], bytes]
    in_answer: bytes = b""
    connections: int = 1
    """Attackers at once."""


def raw(pieces: Callable[[], Iterable[bytes]], *, answer_s: float = 20.0) -> Callable[[int], bytes]:
    """Return an attack that sends pieces over one connection, reads the answer, and stops when it is turned away."""

    def send(port: int) -> bytes:
        received = b""
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            try:
                for piece in pieces():
                    connection.sendall(piece)
                    if select.select([connection], [], [], 0)[0]:  # turned away, or answered
                        break
                connection.settimeout(answer_s)
                while len(received) < 1 << 20 and (got := connection.recv(65536)):
                    received += got
                    if _is_whole(received):
                        break
            except (ConnectionError, TimeoutError):
                pass
            connection.settimeout(1)
            with suppress(OSError):
                received += connection.recv(65536)
        return received

    return send


def _is_whole(received: bytes) -> bool:
    head, found, body = received.partition(b"\r\n\r\n")
    if received.startswith(b"PRPC"):
        return len(received) >= 12 + int.from_bytes(received[4:8], "big")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(found and lengths) and len(body) >= int(lengths[0].partition(b":")[2])


def dribble(opening: bytes, piece: bytes, *, seconds: float, every_s: float = 0.5) -> Callable[[int], bytes]:
    """Return an attack that sends a piece now and then, and connects again when it is turned away."""

    def send(port: int) -> bytes:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
                connection.sendall(opening)
                while time.monotonic() < end:
                    time.sleep(every_s)
                    connection.sendall(piece)
        return b""

    return send


class Client(Protocol):
    """A well-behaved client with a connection of its own."""

    def ask(self) -> None:
        """Ask once; fail unless the answer is right."""

    def close(self) -> None:
        """Close the connection."""


@dataclass
class Target:
    """A server under attack, as a child process."""

    command: Sequence[str]
    client: Callable[[dict[str, int]], Client]
    """Makes the neighbour's client from the ports."""
    ports_of: Callable[[dict[str, object]], dict[str, int]]
    """Reads the ports from the JSON object that the command prints once it listens."""
    environment: dict[str, str] = field(default_factory=dict)
    program: Sequence[str] = ("-m", "cloudedge")
    """Python's arguments before the command."""
    ports: dict[str, int] = field(init=False)
    process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Target:  # noqa: PYI034 - typing.Self is not in 3.10
        self.process = subprocess.Popen(
            [sys.executable, *self.program, *self.command], stdout=subprocess.PIPE, text=True,
            env=os.environ | self.environment,
        )  # fmt: skip
        text = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            text += line
            if line == "}\n":
                break
        assert text, "the server ended at its start"
        self.ports = self.ports_of(json.loads(text))
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def limit(self) -> None:
        """Bound the address space by what it has now and `ROOM`."""
        most = self.status("VmSize") + ROOM
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

    def begin(self) -> int:
        """Forget the highest memory so far; return the memory in use."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.status("VmRSS")

    def status(self, name: str) -> int:
        """Return one line of /proc/PID/status, in bytes; 0 once the process has ended."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        return 0


class Neighbour:
    """Asks again and again on its own connection, in its own thread, from `__enter__` to `__exit__`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.taken_s: list[float] = []
        self.failures: list[BaseException] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            begun = time.perf_counter()
            try:
                self._client.ask()
            except Exception as error:  # noqa: BLE001 - each is reported
                self.failures.append(error)
                if len(self.failures) > 10:
                    return
            self.taken_s.append(time.perf_counter() - begun)

    @property
    def p99_s(self) -> float:
        return sorted(self.taken_s)[min(len(self.taken_s) - 1, len(self.taken_s) * 99 // 100)]

    def __enter__(self) -> Neighbour:  # noqa: PYI034 - typing.Self is not in 3.10
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        self._client.close()


@dataclass(frozen=True)
class Outcome:
    """The measurements of one attack."""

    name: str
    growth: int
    normal_s: float
    p99_s: float
    answers: list[bytes]
    failures: list[BaseException]
    attack_s: float
    code: int | None

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.growth >> 20} MiB more, neighbour's p99 {self.p99_s * 1000:.1f} ms (normal "
            f"{self.normal_s * 1000:.1f} ms), {len(self.failures)} failures, {self.attack_s:.1f} s, exit {self.code}"
        )


def measure(target: Target, attack: Attack) -> Outcome:
    """Attack once, beside a neighbour."""
    answers: list[bytes] = []

    def run() -> None:
        try:
            answers.append(attack.send(target.ports[attack.port]))
        except OSError as error:
            answers.append(repr(error).encode())

    with Neighbour(target.client(target.ports)) as calm:
        time.sleep(CALM_S)
    assert not calm.failures, calm.failures[:1]
    target.limit()
    before = target.begin()
    attackers = [threading.Thread(target=run, daemon=True) for _ in range(attack.connections)]
    begun = time.monotonic()
    with Neighbour(target.client(target.ports)) as neighbour:
        for each in attackers:
            each.start()
        for each in attackers:
            each.join(PATIENCE_S)
        taken_s = time.monotonic() - begun
        time.sleep(CALM_S)
    code = target.process.poll()
    growth = 0 if code is not None else target.status("VmHWM") - before
    return Outcome(attack.name, growth, calm.p99_s, neighbour.p99_s, answers, neighbour.failures, taken_s, code)


def assault(target: Target, attack: Attack) -> Outcome:
    """Attack once, beside a neighbour, and check what must hold."""
    found = measure(target, attack)
    sys.stdout.write(f"{found}\n")  # pytest shows it for a test that fails
    assert found.code is None, f"the server died: {found}"
    assert not found.failures, f"{found}: {found.failures[0]!r}"
    assert found.growth <= MAX_GROWTH, str(found)
    assert found.p99_s <= SLOWER * found.normal_s + SLACK_S, str(found)
    assert len(found.answers) == attack.connections, f"an attacker still waits for its answer: {found}"
    for answer in found.answers:
        assert attack.in_answer in answer, f"{found}: {answer[:500]!r}"
    return found
