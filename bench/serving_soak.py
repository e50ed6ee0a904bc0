"""What serving promises under load: versions change and nobody notices; three times too much and it still works.

- `changes`: 32 connections that stay open ask at a steady rate while a version is loaded, activated and the one before
  unloaded, 200 times, one every second: back to back (`--pace 0`) there would be more of them the quicker each is.
  Rows come from a cube server that holds all versions and whose own pointer moves each time too, so that only reading
  by version gives the right ones. Every answer is compared: version named, dense part and row.
  Bars: none failed, none mixed, every request sent, memory flat (last third within 5 % of the middle third), p99
  meanwhile at most twice p99 before. p99 of only those requests that were due between a load and its unload is printed
  too; they share two cores with the loading, with whoever orders it and with the clients.
- `overload`: what a model that takes milliseconds a row can do at most is measured, then requests come at three times
  that rate for a minute whatever becomes of them, then it is measured again. Bars: they did reach the server at that
  rate; at least 90 % of what it can do is answered, and right; nothing but refusals otherwise; memory flat (the flood's
  last sixth within 5 % of its third); what was under way ends within two seconds, and the second after it as many are
  answered as before, none refused.

Latency counts from the moment a request is due. Neighbours on the machine are measured too (`others_share`): above a
tenth, counts count and times do not. Bars that count and are not met make the exit code 1.

    python bench/serving_soak.py [--quick] [--json] [--only changes|overload] [--changes N] [--pace S] [--rate N]
        [--seconds N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT)]

from _bars import Bar, judge  # noqa: E402
from _soak_clients import (  # noqa: E402
    DIM,
    ROWS,
    Seen,
    X,
    answer_of,
    clients_of_changes,
    clients_of_overload,
    p99_ms,
    row_of,
)
from serving import QUIET, machine_seconds  # noqa: E402

from cloudedge import seqfile  # noqa: E402
from cloudedge.bundle import Bundle, Lookup, Probes, Signature, Variable  # noqa: E402
from cloudedge.cube import Server, ServerConfig, build  # noqa: E402
from cloudedge.hub import LocalHub  # noqa: E402
from cloudedge.serving import AdminClient  # noqa: E402
from tests.serving.models import _save  # noqa: E402
from tests.serving.stock import servers as stock_lab  # noqa: E402

CONNECTIONS, TIMES = 32, 3
LAYERS, WIDTH = 576, 1024
"""Of the slow model: enough that asking, on the same two cores, takes a small share of what answering takes."""
WATCH_S = 0.5
VERSIONS = 4
TABLE = "t"
KEYS = np.arange(ROWS, dtype=np.uint64)
SIGNATURE = Signature(
    feed=(Variable(name="x", shape=(2,)), Variable(name="id", dtype="int64", shape=(1,))),
    fetch=(Variable(name="fetch_name_0", alias="y", shape=(2 + DIM,)),),
    lookups=(Lookup(feed="id", input="rows", table=TABLE),),
)


def values_of(mark: int) -> Any:
    return np.array([row_of(mark, key) for key in range(ROWS)], np.float32)


def pack(folder: Path, hub: LocalHub, mark: int, layers: int = 0) -> Bundle:
    """Pack the version of a mark; `layers` that add nothing take their time all the same."""

    def made(p: Any) -> tuple[list[Any], list[Any]]:
        def parameter(*shape: int, value: float | None = None) -> Any:
            start = None if value is None else p.nn.initializer.Constant(value)
            return p.create_parameter([*shape], "float32", default_initializer=start)

        x, rows = p.static.data("x", [-1, 2], "float32"), p.static.data("rows", [-1, 1, DIM], "float32")
        dense = x + parameter(2, value=float(mark))
        if layers:
            hidden = p.matmul(x, parameter(2, WIDTH))
            again = parameter(WIDTH, WIDTH)
            for _ in range(layers):
                hidden = p.nn.functional.relu(p.matmul(hidden, again))
            dense = dense + p.matmul(hidden, parameter(WIDTH, 2, value=0.0))
        return [x, rows], [p.concat([dense, p.reshape(rows, [-1, DIM])], 1)]

    _save(folder, made, 1)
    probes = {"requests": [{"feed": {"x": [X], "id": [[7]]}, "expect": {"y": [answer_of(mark, 7)]}}]}
    return Bundle.pack(
        folder, name="soak", signature=SIGNATURE, probes=Probes.model_validate(probes),
        sparse={TABLE: {"keys": KEYS, "values": values_of(mark)}}, hub=hub,
    )  # fmt: skip


@contextmanager
def cube(folder: Path, bundles: list[Bundle]) -> Iterator[tuple[Server, Path]]:
    """Serve the rows of all versions; yield the server and the file that says where it is."""
    with Server(ServerConfig(port=0, threads=1, data_dir=folder)) as server:
        for mark, bundle in enumerate(bundles):
            number = 1000 + mark
            with seqfile.Writer(folder / f"{mark}.seq") as out:
                out.append_rows(KEYS, values_of(mark))
            build([folder / f"{mark}.seq"], output=folder, table=TABLE, shards=1, version=number)
            server.load(folder / f"{number}_{number}" / f"{TABLE}_part0", bundle.pin, activate=not mark)
        conf = {"dict_name": TABLE, "shard": 1, "dup": 1, "timeout": 5000, "retry": 1, "backup_request": 0}
        conf |= {"type": "ipport", "nodes": [{"ip": "127.0.0.1", "port": server.port}]}
        (folder / "cube.conf").write_text(json.dumps([conf]))
        yield server, folder / "cube.conf"


@contextmanager
def serving(folder: Path, hub: LocalHub, ref: str, *more: Any) -> Iterator[tuple[dict[str, Any], stock_lab.Server]]:
    command = [sys.executable, "-m", "cloudedge", "serve", ref, "--hub", hub.root, "--json", *more]
    with stock_lab.announced([*command, "--port", "0", "--admin-port", "0"], folder) as (told, session):
        yield told, stock_lab.Server(told["port"], 0, (session,))


def bench_changes(folder: Path, changes: int, pace_s: float, rate: float, calm_s: float) -> dict[str, Any]:
    hub = LocalHub(folder / "hub")
    bundles = [pack(folder / f"v{mark}", hub, mark) for mark in range(VERSIONS)]
    refs = [f"{each.name}@{each.digest}" for each in bundles]
    spawn = multiprocessing.get_context("spawn")
    over, results = spawn.Event(), spawn.Queue()
    with ExitStack() as stack:
        rows, conf = stack.enter_context(cube(folder, bundles))
        told, server = stack.enter_context(serving(folder / "server", hub, refs[0], "--cube", conf))
        admin = stack.enter_context(AdminClient(f"http://{told['admin']}"))
        marks = {each.pin: mark for mark, each in enumerate(bundles)}
        how = {"connections": CONNECTIONS, "rate": rate, "over": over, "results": results}
        clients = spawn.Process(target=clients_of_changes, args=(told["port"], marks), kwargs=how, daemon=True)
        clients.start()
        time.sleep(1.5 * calm_s)  # the first third warms up
        machine, begun, cpu = machine_seconds(), time.monotonic(), used_s(server)
        memory, spans = [], list[tuple[float, float]]()
        for number in range(changes):
            time.sleep(max(0.0, begun + number * pace_s - time.monotonic()))
            loads = time.monotonic()
            before, after = bundles[number % VERSIONS], (number + 1) % VERSIONS
            admin.load(refs[after])
            admin.wait_loaded(bundles[after].pin)
            rows.activate(bundles[after].pin)
            admin.activate(bundles[after].pin)
            admin.unload(before.pin)
            spans.append((loads, time.monotonic()))
            memory.append(resident_mb(server))
        ended = time.monotonic()
        used, now = used_s(server) - cpu, machine_seconds()
        over.set()
        seen: Seen = results.get(timeout=120)
        clients.join()
    third = max(1, changes // 3)
    during = [each for each in seen.answers if begun <= each.due < ended]
    calm = [each for each in seen.answers if begun - calm_s <= each.due < begun]
    starts = [start for start, _ in spans]
    beside = [each for each in during if each.due < spans[bisect_right(starts, each.due) - 1][1]]
    return {
        "changes": changes,
        "seconds_per_change": round(mean(end - start for start, end in spans), 3),
        "requests": len(seen.answers),
        "failed": len(seen.lost) + sum(each.status != 200 for each in seen.answers),
        "mixed": len(seen.mixed),
        "sent_share": round(seen.sent_rps / rate, 4),
        "p99_ms_before": round(p99_ms(calm), 2),
        "p99_ms_during": round(p99_ms(during), 2),
        "p99_ms_from_load_to_unload": round(p99_ms(beside), 2),
        "memory_growth": round(mean(memory[-third:]) / mean(memory[-2 * third : -third]), 4),
        "rss_mb": round(memory[-1]),
        # The clients' time is known for their whole life only.
        "others_share": others(machine, now, used + seen.cpu_s * (ended - begun) / seen.seconds),
    }


def bench_overload(folder: Path, seconds: float, capacity_s: float) -> dict[str, Any]:
    hub = LocalHub(folder / "hub")
    bundle = pack(folder / "heavy", hub, 1, LAYERS)
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    lasts = {"warm": capacity_s / 2, "before": capacity_s, "flood": seconds, "soon": 5.0, "after": capacity_s}
    with serving(folder / "server", hub, f"{bundle.name}@{bundle.digest}") as (told, server):
        machine, cpu, before_mb = machine_seconds(), used_s(server), resident_mb(server)
        how = {"connections": CONNECTIONS, "times": TIMES, "lasts": lasts, "results": results}
        clients = spawn.Process(
            target=clients_of_overload, args=(told["port"], {bundle.pin: 1}), kwargs=how, daemon=True
        )
        clients.start()
        memory, seen = watched(server, results, sum(lasts.values()) + 240)
        clients.join()
        used, after_mb, now = used_s(server), resident_mb(server), machine_seconds()
    before, flood, soon, after = (seen[name] for name in ("before", "flood", "soon", "after"))
    sixth = flood.seconds / 6
    sixths = [(flood.begin + sixth * n, flood.begin + sixth * (n + 1)) for n in range(6)]
    thirds, last = (mean(mb for when, mb in memory if sixths[n][0] <= when < sixths[n][1]) for n in (2, 5))
    capacity = max(before.good_rps, after.good_rps)
    return {
        "capacity_rps_before_and_after": [round(before.good_rps, 1), round(after.good_rps, 1)],
        "sent_rps": round(flood.sent_rps, 1),
        "sent_times_capacity": round(flood.sent_rps / before.good_rps, 3),
        "goodput_rps": round(flood.good_rps, 1),
        "goodput_share": round(flood.good_rps / capacity, 3),
        "goodput_rps_by_sixth": [
            round(sum(begin <= each.done < end for each in flood.good) / sixth, 1) for begin, end in sixths
        ],
        "statuses": flood.statuses,
        "unsent": flood.unsent,
        "lost": sum(len(each.lost) for each in seen.values()),
        "mixed": sum(len(each.mixed) for each in seen.values()),
        "p99_ms_answered": round(p99_ms(flood.good), 1),
        "ended_after_s": round(soon.begin - flood.end, 2),
        "statuses_after": soon.statuses,
        "first_second_after_rps": first_second(soon),
        # Beside the first seconds of phases that follow no flood: in each, the first run has to end first.
        "first_second_after_share": round(first_second(soon) / max(first_second(before), first_second(after)), 3),
        "memory_growth": round(last / thirds, 4),
        "rss_mb_before_and_after": [round(before_mb), round(after_mb)],
        "others_share": others(machine, now, used - cpu + sum(each.cpu_s for each in seen.values())),
    }


def first_second(phase: Any) -> int:
    return sum(each.done < phase.begin + 1 for each in phase.good)


def watched(server: stock_lab.Server, results: Any, timeout_s: float) -> tuple[list[tuple[float, float]], Any]:
    """Wait for the clients' results and note the server's megabytes meanwhile."""
    memory = list[tuple[float, float]]()
    end = time.monotonic() + timeout_s
    while True:
        memory.append((time.monotonic(), resident_mb(server)))
        with suppress(queue.Empty):
            return memory, results.get(timeout=WATCH_S)
        if time.monotonic() > end:
            sys.exit(f"the clients took longer than {timeout_s:.0f} s")


def resident_mb(server: stock_lab.Server) -> float:
    """Return what the server's one process has in memory.

    Its own count: having the kernel go through all its pages, as dividing shared ones takes, stops it for milliseconds.
    """
    (process,) = server.sessions
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def used_s(server: stock_lab.Server) -> float:
    """Return the processor seconds of the server and of this process, in which the cube server is."""
    return server.usage()[0] + time.process_time()


def others(then: tuple[float, ...], now: tuple[float, ...], ours: float) -> float:
    busy, _, total = (b - a for a, b in zip(then, now, strict=True))
    return round(max(0.0, busy - ours) / total, 2)


def bars(found: dict[str, Any]) -> Iterator[Bar]:
    if changes := found.get("changes"):
        quiet = changes["others_share"] <= QUIET
        slower = changes["p99_ms_during"] / changes["p99_ms_before"]
        yield Bar("changes: failed requests", changes["failed"], "at most", 0)
        yield Bar("changes: answers of two versions", changes["mixed"], "at most", 0)
        yield Bar(
            "changes: share of the requests that were sent in time", changes["sent_share"], "at least", 0.99, quiet
        )
        yield Bar("changes: memory, last third of middle third", changes["memory_growth"], "at most", 1.05)
        yield Bar("changes: p99 during, times p99 before", slower, "at most", 2, quiet)
    if flood := found.get("overload"):
        quiet = flood["others_share"] <= QUIET
        other = sum(count for status, count in flood["statuses"].items() if status not in ("200", "429", "503"))
        refused = sum(flood["statuses_after"].values()) - flood["statuses_after"].get("200", 0)
        yield Bar("overload: sent, times capacity", flood["sent_times_capacity"], "at least", 0.97 * TIMES, quiet)
        yield Bar("overload: goodput, share of capacity", flood["goodput_share"], "at least", 0.9, quiet)
        yield Bar("overload: answers of two versions", flood["mixed"], "at most", 0)
        yield Bar("overload: lost, or neither answered nor refused", flood["lost"] + other, "at most", 0)
        yield Bar("overload: memory, last sixth of third sixth", flood["memory_growth"], "at most", 1.05)
        yield Bar("overload: seconds until the last was answered", flood["ended_after_s"], "at most", 2, quiet)
        yield Bar("overload: refused afterwards", refused, "at most", 0)
        soon = flood["first_second_after_share"]
        yield Bar("overload: first second after, share of others", soon, "at least", 0.9, quiet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 changes, 10 s of overload")
    parser.add_argument("--changes", type=int)
    parser.add_argument("--pace", type=float, default=1.0, help="seconds from one change to the next, at least")
    parser.add_argument("--rate", type=float, default=400.0, help="requests a second while versions change")
    parser.add_argument("--seconds", type=float, help="of overload")
    parser.add_argument("--only", choices=("changes", "overload"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    changes = options.changes or (20 if options.quick else 200)
    seconds = options.seconds or (10.0 if options.quick else 60.0)
    calm_s = 5.0 if options.quick else 20.0
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="serving-soak-") as made:
        if options.only != "overload":
            found["changes"] = bench_changes(Path(made) / "changes", changes, options.pace, options.rate, calm_s)
        if options.only != "changes":
            found["overload"] = bench_overload(Path(made) / "overload", seconds, calm_s)
    if not options.json:
        for name, facts in found.items():
            print(name, *(f"{key:>32}  {value}" for key, value in facts.items()), sep="\n")
    verdict = judge(bars(found), print if not options.json else lambda _: None)
    if options.json:
        print(json.dumps(found | verdict, indent=2))
    sys.exit(bool(verdict["missed"]))


if __name__ == "__main__":
    main()
