"""What serving promises under load: versions change and nobody notices; three times too much and it still works.

- `changes`: 32 connections that stay open ask at a steady rate while a version is loaded, activated and the one before
  unloaded, 200 times. Every answer is compared with what the version that it names has to answer. Bars: none failed,
  none mixed, memory flat (last third within 5 % of the middle third), p99 meanwhile at most twice p99 before.
- `overload`: what a model that takes milliseconds a row can do at most is measured, then requests come at three times
  that rate for a minute whatever becomes of them, then it is measured again. Bars: at least 90 % of what it can do is
  answered, and right; nothing but refusals otherwise; memory flat (the flood's last sixth within 5 % of its third);
  the second after it all is answered again.

Neighbours on the machine are measured too (`others_share`): above a tenth, counts count and times do not. Bars that
count and are not met make the exit code 1.

    python bench/serving_soak.py [--changes 200] [--rate 400] [--seconds 60] [--json] [--only changes|overload]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import queue
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parent.parent
for place in ("tests/stock", "tests/serving", "bench"):
    sys.path.insert(0, str(ROOT / place))

import stock_lab  # noqa: E402 - found through the lines above
from serving import QUIET, Bar, machine_seconds, print_bar  # noqa: E402
from serving_models import PAIR, _save, pack_marked  # noqa: E402

from cloudedge.bundle import Bundle  # noqa: E402
from cloudedge.hub import LocalHub  # noqa: E402
from cloudedge.serving import AdminClient  # noqa: E402

CONNECTIONS, FLOOD_CONNECTIONS, TIMES = 32, 512, 3
LAYERS, WIDTH = 16, 768
WARM_S, CAPACITY_S, AFTER_S = 5.0, 10.0, 5.0
WATCH_S = 0.5
VERSIONS = 4
X = [[1.0, 2.0]]
BODY = json.dumps({"inputs": {"x": X}}).encode()
REQUEST = b"POST /v1/predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@dataclass
class Seen:
    """What clients got: when, after how many seconds, with which status; and answers that were wrong."""

    answers: list[tuple[float, float, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unsent: int = 0
    """Requests that found no connection free: clients wait for the server, not the other way round."""
    cpu_s: float = 0.0

    def between(self, begin: float, end: float) -> list[tuple[float, float, int]]:
        """Return the answers of a stretch of time."""
        return [each for each in self.answers if begin <= each[0] < end]


async def ask(port: int, seen: Seen, expected: dict[str, list[float]], due: asyncio.Queue[float | None]) -> None:
    """One connection: ask whenever it is due, and compare."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while await due.get() is not None:
        begun = time.monotonic()
        try:
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            seen.lost.append(repr(error))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        finally:
            due.task_done()
        status = int(head.split(b" ", 2)[1])
        seen.answers.append((time.monotonic(), time.monotonic() - begun, status))
        if status == 200:
            found = json.loads(body)
            right = expected.get(found["pin"])
            got = found["outputs"]["y"][0]
            if right is None or found["pin"].encode() not in head or max(map(distance, got, right)) > 1e-3:
                seen.wrong.append(body.decode())
    writer.close()


def distance(one: float, other: float) -> float:
    return abs(one - other)


async def drive(
    port: int, expected: dict[str, list[float]], *, connections: int, rate: float | None, is_over: Callable[[], bool]
) -> Seen:
    """Ask at a rate, whatever becomes of it; without one, every connection asks again as soon as it was answered."""
    seen = Seen()
    due: asyncio.Queue[float | None] = asyncio.Queue()
    clients = [asyncio.create_task(ask(port, seen, expected, due)) for _ in range(connections)]
    began, cpu, sent = time.monotonic(), time.process_time(), 0
    while not is_over():
        now = time.monotonic()
        # Without a rate there are always as many under way as there are connections.
        wanted = int((now - began) * rate) - sent if rate else connections - (sent - len(seen.answers) - len(seen.lost))
        for _ in range(wanted):
            sent += 1
            if rate and due.qsize() >= connections:
                seen.unsent += 1
            else:
                due.put_nowait(now)
        await asyncio.sleep(0.001)
    with suppress(TimeoutError, asyncio.TimeoutError):
        await asyncio.wait_for(due.join(), 30)
    for _ in clients:
        due.put_nowait(None)
    await asyncio.gather(*clients)
    seen.cpu_s = time.process_time() - cpu
    return seen


def clients_of_changes(port: int, expected: dict[str, list[float]], rate: float, over: Any, results: Any) -> None:
    results.put(asyncio.run(drive(port, expected, connections=CONNECTIONS, rate=rate, is_over=over.is_set)))


def clients_of_overload(port: int, expected: dict[str, list[float]], seconds: float, results: Any) -> None:
    def phase(connections: int, lasts: float, rate: float | None = None) -> tuple[Seen, float, float]:
        begin = time.monotonic()
        end = begin + lasts
        seen = asyncio.run(
            drive(port, expected, connections=connections, rate=rate, is_over=lambda: time.monotonic() > end)
        )
        return seen, begin, end

    phase(CONNECTIONS, WARM_S)
    before = phase(CONNECTIONS, CAPACITY_S)
    capacity = len(before[0].between(*before[1:])) / CAPACITY_S
    flood = phase(FLOOD_CONNECTIONS, seconds, TIMES * capacity)
    after = phase(CONNECTIONS, AFTER_S)
    results.put((before, flood, after, phase(CONNECTIONS, CAPACITY_S)))


@contextmanager
def serving(folder: Path, hub: LocalHub, ref: str) -> Iterator[tuple[dict[str, Any], stock_lab.Server]]:
    command = [sys.executable, "-m", "cloudedge", "serve", ref, "--hub", hub.root, "--json"]
    with stock_lab.announced([*command, "--port", "0", "--admin-port", "0"], folder) as (told, session):
        yield told, stock_lab.Server(told["port"], 0, (session,))


def p99_ms(answers: list[tuple[float, float, int]]) -> float:
    took = sorted(seconds for _, seconds, _ in answers)
    return took[int(len(took) * 0.99)] * 1e3 if took else 0.0


def statuses(answers: list[tuple[float, float, int]]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(Counter(each[2] for each in answers).items())}


def bench_changes(folder: Path, changes: int, rate: float) -> dict[str, Any]:
    hub = LocalHub(folder / "hub")
    bundles = [pack_marked(folder / f"v{mark}", hub, float(mark)) for mark in range(VERSIONS)]
    refs = [f"{each.name}@{each.digest}" for each in bundles]
    expected = {each.pin: [X[0][0] + mark, X[0][1] + mark] for mark, each in enumerate(bundles)}
    spawn = multiprocessing.get_context("spawn")
    over, results = spawn.Event(), spawn.Queue()
    with serving(folder / "server", hub, refs[0]) as (told, server), AdminClient(f"http://{told['admin']}") as admin:
        clients = spawn.Process(
            target=clients_of_changes, args=(told["port"], expected, rate, over, results), daemon=True
        )
        clients.start()
        time.sleep(2 * WARM_S)
        machine, begun, cpu = machine_seconds(), time.monotonic(), server.usage()[0]
        memory = []
        for number in range(changes):
            before, after = bundles[number % VERSIONS], (number + 1) % VERSIONS
            admin.load(refs[after])
            admin.wait_loaded(bundles[after].pin)
            admin.activate(bundles[after].pin)
            admin.unload(before.pin)
            memory.append(server.usage()[1])
        ended = time.monotonic()
        used, now = server.usage()[0] - cpu, machine_seconds()
        over.set()
        seen: Seen = results.get(timeout=120)
        clients.join()
    third = max(1, changes // 3)
    during, calm = seen.between(begun, ended), seen.between(begun - WARM_S, begun)
    return {
        "changes": changes,
        "seconds_per_change": round((ended - begun) / changes, 3),
        "requests": len(seen.answers),
        "failed": len(seen.lost) + sum(each[2] != 200 for each in seen.answers),
        "mixed": len(seen.wrong),
        "unsent": seen.unsent,
        "p99_ms_before": round(p99_ms(calm), 2),
        "p99_ms_during": round(p99_ms(during), 2),
        "memory_growth": round(mean(memory[-third:]) / mean(memory[-2 * third : -third]), 4),
        "rss_mb": round(memory[-1]),
        "others_share": others(machine, now, used + seen.cpu_s),
    }


def bench_overload(folder: Path, seconds: float) -> dict[str, Any]:
    hub = LocalHub(folder / "hub")

    def build(p: Any) -> tuple[list[Any], list[Any]]:
        x = p.static.data("x", [-1, 2], "float32")
        hidden = p.matmul(x, p.create_parameter([2, WIDTH], "float32"))
        for _ in range(LAYERS):
            hidden = p.nn.functional.relu(p.matmul(hidden, p.create_parameter([WIDTH, WIDTH], "float32")))
        return [x], [p.matmul(hidden, p.create_parameter([WIDTH, 2], "float32"))]

    _save(folder / "heavy", build, 1)
    bundle = Bundle.pack(folder / "heavy", name="heavy", signature=PAIR, hub=hub)
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    with serving(folder / "server", hub, "heavy:1") as (told, server), AdminClient(f"http://{told['admin']}") as admin:
        right = admin.predict(bundle.pin, {"x": X})["outputs"]["y"][0]
        machine, (cpu, before_mb) = machine_seconds(), server.usage()
        clients = spawn.Process(
            target=clients_of_overload, args=(told["port"], {bundle.pin: right}, seconds, results), daemon=True
        )
        clients.start()
        memory, phases = watched(server, results, seconds + 300)
        (before, *at), (flood, begin, end), (after, then, _), (again, *later) = phases
        clients.join()
        used, after_mb = server.usage()
        now = machine_seconds()
    capacity = mean([len(before.between(*at)), len(again.between(*later))]) / CAPACITY_S
    answered = [each for each in flood.between(begin, end) if each[2] == 200]
    parts = [flood.between(start, start + seconds / 6) for start in (begin + seconds / 6 * n for n in range(6))]
    sixths = [
        mean(mb for when, mb in memory if begin + seconds / 6 * n <= when < begin + seconds / 6 * (n + 1))
        for n in (2, 5)
    ]
    return {
        "capacity_rps": round(capacity, 1),
        "capacity_rps_before_and_after": [
            round(len(s.between(*t)) / CAPACITY_S, 1) for s, t in ((before, at), (again, later))
        ],
        "offered_rps": round((len(flood.between(begin, end)) + flood.unsent) / seconds, 1),
        "goodput_rps": round(len(answered) / seconds, 1),
        "goodput_share": round(len(answered) / seconds / capacity, 3),
        "goodput_rps_by_sixth": [round(sum(each[2] == 200 for each in part) * 6 / seconds, 1) for part in parts],
        "statuses": statuses(flood.answers),
        "lost": len(flood.lost),
        "wrong": len(flood.wrong),
        "p99_ms_answered": round(p99_ms(answered), 1),
        "after_statuses": statuses(after.answers),
        "first_second_after_rps": len(after.between(then, then + 1)),
        "memory_growth": round(sixths[1] / sixths[0], 4),
        "rss_mb_before_and_after": [round(before_mb), round(after_mb)],
        "others_share": others(machine, now, used - cpu + sum(each.cpu_s for each in (before, flood, after, again))),
    }


def watched(server: stock_lab.Server, results: Any, timeout_s: float) -> tuple[list[tuple[float, float]], Any]:
    """Wait for the clients' results and note the server's megabytes meanwhile."""
    memory = list[tuple[float, float]]()
    end = time.monotonic() + timeout_s
    while True:
        memory.append((time.monotonic(), server.usage()[1]))
        with suppress(queue.Empty):
            return memory, results.get(timeout=WATCH_S)
        if time.monotonic() > end:
            sys.exit(f"the clients took longer than {timeout_s:.0f} s")


def others(then: tuple[float, float], now: tuple[float, float], ours: float) -> float:
    busy, total = (b - a for a, b in zip(then, now, strict=True))
    return round(max(0.0, busy - ours) / total, 2)


def bars(found: dict[str, Any]) -> Iterator[Bar]:
    if changes := found.get("changes"):
        quiet = changes["others_share"] <= QUIET
        slower = changes["p99_ms_during"] / changes["p99_ms_before"]
        yield Bar("changes: failed requests", changes["failed"], 0, at_most=True)
        yield Bar("changes: answers of two versions", changes["mixed"], 0, at_most=True)
        yield Bar("changes: memory, last third of middle third", changes["memory_growth"], 1.05, at_most=True)
        yield Bar("changes: p99 during, times p99 before", slower, 2, at_most=True, counts=quiet)
    if flood := found.get("overload"):
        quiet = flood["others_share"] <= QUIET
        other = sum(count for status, count in flood["statuses"].items() if status not in ("200", "429", "503"))
        bad = flood["wrong"] + flood["lost"] + other
        refused = sum(flood["after_statuses"].values()) - flood["after_statuses"]["200"]
        soon = flood["first_second_after_rps"] / flood["capacity_rps"]
        yield Bar("overload: goodput, share of what it can do", flood["goodput_share"], 0.9, counts=quiet)
        yield Bar("overload: wrong answers, lost ones and other statuses", bad, 0, at_most=True)
        yield Bar("overload: memory, last sixth of third sixth", flood["memory_growth"], 1.05, at_most=True)
        yield Bar("overload: refused afterwards", refused, 0, at_most=True)
        yield Bar("overload: first second after, share", soon, 0.9, counts=quiet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--rate", type=float, default=400.0, help="requests a second while versions change")
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    parser.add_argument("--only", choices=("changes", "overload"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="serving-soak-") as made:
        if options.only != "overload":
            found["changes"] = bench_changes(Path(made) / "changes", options.changes, options.rate)
        if options.only != "changes":
            found["overload"] = bench_overload(Path(made) / "overload", options.seconds)
    checked = list(bars(found))
    if options.json:
        print(json.dumps(found | {"bars": [asdict(bar) | {"passed": bar.passed} for bar in checked]}, indent=2))
    else:
        for name, facts in found.items():
            print(name, *(f"{key:>32}  {value}" for key, value in facts.items()), sep="\n")
        for bar in checked:
            print_bar(bar)
    sys.exit(any(bar.counts and not bar.passed for bar in checked))


if __name__ == "__main__":
    main()
