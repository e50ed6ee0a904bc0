"""Builder and store, measured: build time and memory, load time and memory, a delta's memory, lookup time.

    python bench/cube_build.py [--json] [--quick] [--large] [--disk DIRECTORY]

Builds run in processes of their own, once into memory (/dev/shm) and once onto a disk, where a plain write of the same
bytes, fsync included, is printed beside them: no builder that waits for the device can be faster. Times are the best
of three (of one on the disk), since other work on the machine only ever adds. At the end every bar that was measured at
its own size is said to be met or missed (builds into memory); exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _bars import Bar, judge

from cloudedge import seqfile
from cloudedge.cube import PartStore

ROOT = Path(__file__).resolve().parent.parent
BUILD = """
import json, resource, sys, time
from cloudedge.cube import build
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
start, before = time.perf_counter(), cpu()
report = build([sys.argv[1]], output=sys.argv[2], table="bench", shards=2, version=1, tar=sys.argv[3] == "tar")
took = time.perf_counter() - start
# not ru_maxrss, which a process inherits from the one that started it
peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1e3
print(json.dumps({"seconds": took, "cpu_seconds": cpu() - before, "peak_rss_mb": peak}))
"""
UPSTREAM = {(1_000_000, 36): (0.27, 0.43), (10_000_000, 64): (3.0, 5.0)}  # without, with tar and md5
DELTA = """
import json, sys
import numpy as np
from cloudedge.cube import Store
def resident():
    return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) / 1e3
rows = int(sys.argv[2])
changed = np.arange(0, rows, 100, dtype=np.uint64)
values = np.ones((len(changed), 9), np.float32)
empty = resident()
store = Store.open(sys.argv[1])
base = resident()
delta = store.apply(changed, values, name="delta")
assert delta.get([100]) == [values[0].tobytes()] and store.get([100]) != delta.get([100])
print(json.dumps({"base_mb": base - empty, "second_mb": resident() - base}))
"""
BAR_ROWS = 10_000_000
LOAD_BARS = {"load_seconds": 1.0, "resident_mb": 768.0, "delta_resident_share": 0.05}
"""Of 10 million rows of 36 bytes; the memory is upstream's."""
LARGE_ROWS, LARGE_BAR_MB = 56_000_000, 1000.0
SOURCES = ["files", "cube/layout", "cube/load", "cube/mapped", "cube/overlay", "cube/table"]


def write_inputs(directory: Path, rows: int, width: int) -> dict[str, Path]:
    """Write the same rows as a SequenceFile (keys shuffled) and as a safetensors table (keys sorted)."""
    draw = np.random.default_rng(1)
    keys = draw.permutation(rows).astype(np.uint64)
    table, sequence = directory / f"{rows}x{width}.safetensors", directory / f"{rows}x{width}.seq"
    header = json.dumps(
        {
            "keys": {"dtype": "U64", "shape": [rows], "data_offsets": [0, 8 * rows]},
            "values": {"dtype": "F32", "shape": [rows, width // 4], "data_offsets": [8 * rows, (8 + width) * rows]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    with seqfile.Writer(sequence) as out, table.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        np.arange(rows, dtype=np.uint64).tofile(file)
        for start in range(0, rows, 1 << 18):
            values = draw.random((min(1 << 18, rows - start), width // 4), np.float32)
            values.tofile(file)
            out.append_rows(keys[start : start + len(values)], values)
    return {"SequenceFile": sequence, "safetensors": table}


def run_build(source: Path, output: Path, tar: bool, times: int) -> dict[str, Any]:  # noqa: FBT001
    best: dict[str, Any] = {}
    for _ in range(times):
        command = [sys.executable, "-c", BUILD, source, output, "tar" if tar else "plain"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        best = found if not best or found["seconds"] < best["seconds"] else best
        best["output_mb"] = sum(p.stat().st_size for p in output.rglob("*") if p.is_file()) / 1e6
        shutil.rmtree(output)
    return best


def plain_write(directory: Path, megabytes: float) -> float:
    """Write so many bytes and wait for the device: the floor for any build on this disk."""
    chunk = os.urandom(1 << 20)
    start = time.perf_counter()
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for _ in range(int(megabytes * 1e6 / len(chunk))):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def bench_builds(memory: Path, disk: Path, rows: int, width: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    results = []
    inputs = write_inputs(memory, rows, width)
    for kind, source in inputs.items():
        for tar in (False, True):
            for place, times in ((memory, 3), (disk, 1)):
                found = run_build(source, place / "out", tar, times)
                row = {"rows": rows, "value_bytes": width, "input": kind, "tar": tar} | found
                row["place"] = "memory" if place is memory else "disk"
                row["upstream_seconds"] = UPSTREAM.get((rows, width), (None, None))[tar]
                if place is disk:
                    row["plain_write_seconds"] = plain_write(disk, found["output_mb"])
                results.append(row)
                floor = f", plain write {row['plain_write_seconds']:.2f} s" if place is disk else ""
                say(
                    f"build {rows:>10,} x {width} B from {kind:12} {'tar+md5' if tar else 'plain  '} {row['place']:6}"
                    f" {row['seconds']:6.2f} s (cpu {row['cpu_seconds']:.2f} s), peak {row['peak_rss_mb']:.0f} MB"
                    f", upstream {row['upstream_seconds']} s{floor}"
                )
    for path in inputs.values():
        path.unlink()
    return results


def resident_mb() -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1e3


def bench_store(memory: Path, rows: int, say: Callable[[str], None]) -> dict[str, Any]:
    inputs = write_inputs(memory, rows, 36)
    subprocess.run([sys.executable, "-c", BUILD.replace("shards=2", "shards=1"), inputs["safetensors"],
                    memory / "out", "plain"], check=True, capture_output=True)  # fmt: skip
    part = memory / "out" / "1_1" / "bench_part0"
    best: dict[str, Any] = {}
    for _ in range(4):
        before, start, used = resident_mb(), time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        store = PartStore.open(part)
        took, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        found = {"rows": rows, "load_seconds": took, "load_cpu_seconds": cpu, "resident_mb": resident_mb() - before}
        best = found if not best or took < best["load_seconds"] else best
        del store  # one at a time
    store = PartStore.open(part)
    start = time.perf_counter()
    changed = np.arange(0, rows, 100, dtype=np.uint64)
    delta = store.apply(changed, np.zeros((len(changed), 9), np.float32), name="delta")
    best["delta_seconds"] = time.perf_counter() - start
    best["delta_share"] = delta.memory_bytes / store.memory_bytes
    del store, delta
    done = subprocess.run([sys.executable, "-c", DELTA, part, str(rows)], check=True, capture_output=True, text=True)
    best["delta_resident"] = json.loads(done.stdout)
    best["delta_resident_share"] = best["delta_resident"]["second_mb"] / best["delta_resident"]["base_mb"]
    say(
        f"load  {rows:>10,} x 36 B: {best['load_seconds']:.2f} s (cpu {best['load_cpu_seconds']:.2f} s), resident"
        f" {best['resident_mb']:.0f} MB (upstream 768 MB); 1 % delta in {best['delta_seconds']:.2f} s:"
        f" {best['delta_share']:.1%} more by its own count, {best['delta_resident_share']:.1%} more resident"
    )
    best["lookup_ns_per_key"] = lookup_times(part, rows)
    say(f"lookup ns/key at {rows:,} rows, one thread: {best['lookup_ns_per_key']}")
    for path in inputs.values():
        path.unlink()
    shutil.rmtree(memory / "out")
    return best


def lookup_times(part: Path, rows: int) -> dict[str, float]:
    program = part.parent / "cube_lookup"
    sources = [ROOT / "native" / f"{name}.cpp" for name in SOURCES]
    command = ["g++", "-std=c++20", "-O3", "-pthread", "-o", program, ROOT / "bench" / "cube_lookup.cpp", *sources]
    subprocess.run(command, check=True)
    done = subprocess.run([program, part, str(rows)], check=True, capture_output=True, text=True)
    return {name: value for name, value in json.loads(done.stdout).items() if name != "keys"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="one million rows only")
    parser.add_argument("--large", action="store_true", help="also build a table of 4 GB (takes 9 GB of /dev/shm)")
    parser.add_argument("--disk", default=str(ROOT / "build"), help="a directory on a disk")
    options = parser.parse_args()

    def say(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    results: dict[str, Any] = {"builds": []}
    Path(options.disk).mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="cube-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="cube-bench-", dir=options.disk) as disk,
    ):
        for rows, width in [(1_000_000, 36)] if options.quick else [(1_000_000, 36), (10_000_000, 64)]:
            results["builds"] += bench_builds(Path(memory), Path(disk), rows, width, say)
        if options.large:
            source = write_inputs(Path(memory), LARGE_ROWS, 64)
            source["SequenceFile"].unlink()
            found = run_build(source["safetensors"], Path(memory) / "out", tar=False, times=1)
            shape = {"rows": LARGE_ROWS, "value_bytes": 64, "input": "safetensors", "tar": False, "place": "memory"}
            results["builds"].append(shape | found)
            say(f"build 4 GB table: {found['seconds']:.1f} s, peak {found['peak_rss_mb']:.0f} MB")
            source["safetensors"].unlink()
        results["store"] = bench_store(Path(memory), 1_000_000 if options.quick else 10_000_000, say)
    results |= judge(bars(results), say)
    if options.json:
        print(json.dumps(results, indent=2))
    sys.exit(1 if results["missed"] else 0)


def bars(results: dict[str, Any]) -> Iterator[Bar]:
    for row in results["builds"]:
        shape = f"build {row['rows']:,} x {row['value_bytes']} B from {row['input']}{', tar+md5' if row['tar'] else ''}"
        if row["rows"] == LARGE_ROWS:
            yield Bar(f"{shape}: peak MB", row["peak_rss_mb"], "at most", LARGE_BAR_MB)
        elif row["place"] == "memory" and row["upstream_seconds"] is not None:
            yield Bar(f"{shape}: seconds (upstream's)", row["seconds"], "at most", row["upstream_seconds"])
    if results["store"]["rows"] == BAR_ROWS:
        for name, bar in LOAD_BARS.items():
            yield Bar(f"load {BAR_ROWS:,} x 36 B: {name}", results["store"][name], "at most", bar)


if __name__ == "__main__":
    main()
