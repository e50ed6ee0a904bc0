"""Releases, measured on real processes under load: what requests notice, what stays in memory, what going back costs.

    python bench/release.py [--json] [--quick] [--releases N] [--rows N]

A local target of two shards x two replicas and two serving replicas; clients compare every answer with the whole
model's. First N releases of N versions (100, 10 with --quick), one row in a hundred changed by each. Then rollbacks of
a table and of one with 100 times the rows, and at both sizes a release of 1 % of the rows against one of all of them.
Memory is each process's resident memory, the supervisor's too, its mean over the last third of the releases against the
middle third.
Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from _bars import Bar, judge  # noqa: E402

from cloudedge.release.local import down, up  # noqa: E402

# The tests' target, so that both mean the same.
from tests.release.local.world import DIM, NAME, Load, World, home, make  # noqa: E402

TIMES = 100
"""Rows of the large table, as a multiple of the small one's."""
ROUNDS = 5
BARS: dict[str, tuple[Literal["at most", "at least"], float]] = {
    "requests_per_release": ("at least", 20),
    "failed": ("at most", 0),
    "mixed": ("at most", 0),
    "memory_growth": ("at most", 1.05),
    "rollback_100x_over_1x": ("at most", 1.5),
    "delta_share_of_full_bytes": ("at most", 0.02),
}


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def p99_ms(answered: list[tuple[float, float, str]]) -> float:
    return float(np.percentile([seconds for _, seconds, _ in answered], 99) * 1e3)


def ask(load: Load, asking: Any, enough: Any, results: Any) -> None:
    """Be the clients, in a process of their own."""
    with load:
        asking.set()
        enough.wait()
    results.put((load.failed, load.mixed, load.answered))


def bench_many(world: World, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    memory: dict[str, list[int]] = {}
    seconds: list[float] = []
    # Each is new to every process: what one leaves behind in memory shows.
    versions = [make(world.home.parent / f"new{n}", 10 + n, parent=world.good[0]) for n in range(count)]
    world.made += versions
    supervisor = int((world.folder / "supervisor.lock").read_text())
    others = {"supervisor": supervisor, "releasing": os.getpid()}
    spawn = multiprocessing.get_context("spawn")
    asking, enough, results = spawn.Event(), spawn.Event(), spawn.Queue()
    clients = spawn.Process(target=ask, args=(world.load(), asking, enough, results), daemon=True)
    clients.start()
    asking.wait(60)
    time.sleep(5)
    begun = time.monotonic()
    for number, version in enumerate(versions, 1):
        seconds.append(world.release(version).seconds)
        for name, pid in {**world.pids(), **others}.items():
            memory.setdefault(name, []).append(resident_kb(pid))
        if number % max(1, count // 10) == 0:
            say(f"  {number} of {count}: {seconds[-1]:.2f} s")
    enough.set()
    failed, mixed, answered = results.get(timeout=60)
    clients.join()
    third = max(1, count // 3)
    growth = {name: mean(each[-third:]) / mean(each[-2 * third : -third]) for name, each in memory.items()}
    return {
        "releases": count,
        "release_seconds": median(seconds),
        "requests": len(answered),
        "requests_per_release": len(answered) / count,
        "failed": len(failed),
        "mixed": len(mixed),
        "p99_ms_before": p99_ms([each for each in answered if each[0] < begun]),
        "p99_ms_during": p99_ms([each for each in answered if each[0] >= begun]),
        "memory_growth": max(growth.values()),
        "memory_growth_by_process": growth,
        "resident_mb": {name: each[-1] / 1e3 for name, each in memory.items()},
    }


def bench_back(world: World, there: Any) -> float:
    """Return the seconds of a rollback, the median of some."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        world.target.rollback()
        found.append(time.perf_counter() - start)
        world.release(there)
    return median(found)


def bench_sizes(world: World, folder: Path, rows: int, say: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": [rows, rows * TIMES]}
    for name, size in (("1x", rows), ("100x", rows * TIMES)):
        # Rows of another kind, live and before: no delta leads from them.
        others = [make(folder / f"{name}-other{n}", n, rows=100, dim=2 * DIM) for n in range(2)]
        first = make(folder / f"{name}-1", 1, rows=size)
        second = make(folder / f"{name}-2", 2, rows=size, parent=first)
        world.made += [*others, first, second]
        for other in others:
            world.release(other, allow_signature_change=True)
        whole = world.release(first, allow_signature_change=True)
        delta = world.release(second)
        found |= {f"full_{name}_seconds": whole.seconds, f"full_{name}_bytes": whole.bytes}
        found |= {f"delta_{name}_seconds": delta.seconds, f"delta_{name}_bytes": delta.bytes}
        found[f"rollback_{name}_seconds"] = back = bench_back(world, second)
        say(f"  {size:,} rows: whole in {whole.seconds:.2f} s, 1 % in {delta.seconds:.2f} s, back in {back:.3f} s")
    return found | {
        "rollback_100x_over_1x": found["rollback_100x_seconds"] / found["rollback_1x_seconds"],
        "delta_share_of_full_bytes": found["delta_100x_bytes"] / found["full_100x_bytes"],
        "full_over_delta_seconds": found["full_100x_seconds"] / found["delta_100x_seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="10 releases, fewer rows")
    parser.add_argument("--releases", type=int)
    parser.add_argument("--rows", type=int, help="of the small table")
    options = parser.parse_args()
    count = options.releases or (10 if options.quick else 100)
    rows = options.rows or (4_000 if options.quick else 10_000)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name, home(Path(name) / "home"):
        folder = Path(name)
        world = World(folder)
        try:
            up(NAME, config=world.config)
            world.release(world.good[0])
            say(f"{count} releases under load")
            found = bench_many(world, count, say)
            say("rollbacks and releases by size")
            found |= bench_sizes(world, folder, rows, say)
        finally:
            world.journal.close()
            down(NAME, config=world.config)
    if not options.json:
        report(found)
    judged = judge(
        (Bar(name, found[name], how, bar) for name, (how, bar) in BARS.items()), say if options.json else print
    )
    if options.json:
        print(json.dumps(found | judged, indent=2))
    sys.exit(bool(judged["missed"]))


def report(found: dict[str, Any]) -> None:
    print(f"{found['releases']} releases, {found['release_seconds']:.2f} s each (median), {found['requests']} requests")
    print(f"  p99 {found['p99_ms_before']:.1f} ms before, {found['p99_ms_during']:.1f} ms during")
    small, large = found["rows"]
    print(f"rollback: {found['rollback_1x_seconds']:.3f} s of {small:,} rows, ", end="")
    print(f"{found['rollback_100x_seconds']:.3f} s of {large:,} rows")
    print(f"{large:,} rows, 1 % of them new: {found['delta_100x_seconds']:.2f} s, {found['delta_100x_bytes']:,} bytes")
    print(f"{large:,} rows, all of them: {found['full_100x_seconds']:.2f} s, {found['full_100x_bytes']:,} bytes")


if __name__ == "__main__":
    main()
