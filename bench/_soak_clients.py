"""The clients of the soak: they ask when a request is due, compare every answer, and note when all of it happened.

A request is due at its moment whatever became of those before it, and its latency counts from there: a server that
stands still for a second is seen by every request of that second, not by the one that each connection had under way.

The model answers its two numbers plus its version's mark, then the row of its id, in which the mark is too: an answer
of the dense part of one version and the row of another shows.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ROWS, DIM = 1000, 4
STEP = 2.0 * ROWS
"""By which the rows of a version differ from those of the one before: more than the rows among themselves do."""
X = (1.0, 2.0)


def row_of(mark: int, key: int) -> list[float]:
    """Return a row of a version's table."""
    return [mark * STEP + key + at for at in range(DIM)]


def answer_of(mark: int, key: int) -> list[float]:
    """Return what a version has to answer."""
    return [X[0] + mark, X[1] + mark, *row_of(mark, key)]


def request(key: int) -> bytes:
    body = json.dumps({"inputs": {"x": [X], "id": [[key]]}}).encode()
    return b"POST /v1/predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Answered(NamedTuple):
    """One request, on the monotonic clock."""

    due: float
    sent: float
    done: float
    status: int


@dataclass
class Seen:
    """What clients got."""

    begin: float = 0.0
    end: float = 0.0
    """No request was due later; answers still came."""
    answers: list[Answered] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    """Answers that are not wholly those of the version that they name."""
    lost: list[str] = field(default_factory=list)
    unsent: int = 0
    """Requests that were due and found no connection until the end."""
    cpu_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def good(self) -> list[Answered]:
        """The requests answered in time to count."""
        return [each for each in self.answers if each.status == 200 and each.done < self.end]

    @property
    def good_rps(self) -> float:
        return len(self.good) / self.seconds

    @property
    def sent_rps(self) -> float:
        """Requests that did go out to the server."""
        return (sum(each.sent < self.end for each in self.answers) + len(self.lost)) / self.seconds

    @property
    def statuses(self) -> dict[str, int]:
        return {str(status): count for status, count in sorted(Counter(each.status for each in self.answers).items())}


def p99_ms(answers: list[Answered]) -> float:
    took = sorted(each.done - each.due for each in answers)
    return took[int(len(took) * 0.99)] * 1e3 if took else float("inf")


async def drive(
    port: int, marks: dict[str, int], *, connections: int, rate: float | None, is_over: Callable[[], bool]
) -> Seen:
    """Ask at a rate, whatever becomes of it; without one, every connection asks again as soon as it was answered."""
    seen = Seen(begin=time.monotonic())
    cpu = time.process_time()
    due: asyncio.Queue[float | None] = asyncio.Queue()

    async def at_once() -> float | None:
        return None if is_over() else time.monotonic()

    clients = [asyncio.create_task(ask(port, seen, marks, due.get if rate else at_once)) for _ in range(connections)]
    told = 0
    while not is_over():
        # Each is due at its own moment, even where this loop comes late.
        while rate and seen.begin + told / rate <= time.monotonic():
            due.put_nowait(seen.begin + told / rate)
            told += 1
        await asyncio.sleep(0.001)
    seen.end = time.monotonic()
    seen.unsent = due.qsize()
    while not due.empty():
        due.get_nowait()
    for _ in clients:
        due.put_nowait(None)
    await asyncio.gather(*clients)
    seen.cpu_s = time.process_time() - cpu
    return seen


async def ask(port: int, seen: Seen, marks: dict[str, int], next_due: Callable[[], Awaitable[float | None]]) -> None:
    """One connection: ask whenever it is due, and compare."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (due := await next_due()) is not None:
        key = random.randrange(ROWS)
        sent = time.monotonic()
        try:
            writer.write(request(key))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            seen.lost.append(repr(error))
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        status = int(head.split(b" ", 2)[1])
        seen.answers.append(Answered(due, sent, time.monotonic(), status))
        if status == 200 and not is_whole(head, json.loads(body), marks, key):
            seen.mixed.append(body.decode())
    writer.close()


def is_whole(head: bytes, found: dict[str, Any], marks: dict[str, int], key: int) -> bool:
    """Tell whether header, dense part and row are all of the version that the answer names."""
    mark = marks.get(found["pin"])
    return mark is not None and found["pin"].encode() in head and found["outputs"]["y"] == [answer_of(mark, key)]


def clients_of_changes(
    port: int, marks: dict[str, int], *, connections: int, rate: float, over: Any, results: Any
) -> None:
    """Ask at a rate until told; a process of its own."""
    results.put(asyncio.run(drive(port, marks, connections=connections, rate=rate, is_over=over.is_set)))


def clients_of_overload(
    port: int, marks: dict[str, int], *, connections: int, times: float, lasts: dict[str, float], results: Any
) -> None:
    """Measure what the server can do, ask for several times that, measure again; a process of its own."""

    def phase(name: str, open_connections: int, rate: float | None = None) -> Seen:
        end = time.monotonic() + lasts[name]
        return asyncio.run(
            drive(port, marks, connections=open_connections, rate=rate, is_over=lambda: time.monotonic() > end)
        )

    phase("warm", connections)
    found = {"before": phase("before", connections)}
    rate = times * found["before"].good_rps
    # Enough for every request of more than a second to be under way at once.
    found["flood"] = phase("flood", max(connections, min(3000, int(1.5 * rate))), rate)
    found["soon"] = phase("soon", connections)
    found["after"] = phase("after", connections)
    results.put(found)
