"""How fast a cube server answers, beside Redis and beside a server that looks nothing up.

One run on one machine: 1 million keys, values of 36 and 64 bytes, requests of 26, 260 and 2600 keys, 1, 8 and 32
connections. All three servers are loaded by the same native generator (that of `cloudedge cube bench --raw`), each as a
process of its own with one thread that answers, so that on two cores the generator has the other one. Redis gets MGET
over 8-byte keys. `echo` returns as many bytes as the cube server without looking at the request: what the event loop
and the kernel cost.

With 8 and 32 connections the generator sleeps until an answer comes. With one it looks for the answer without sleeping:
a generator that sleeps has to be woken by the server for every request, and waking a halted core of a virtual machine
takes up to 20 us of the server's time, which a client on another machine would not cost it. `--poll never` and
`--poll always` show both, for all systems alike.

`server_ns_per_key` is the server's processor time, from /proc/<pid>/stat, per key; looking for requests without
sleeping counts. Neighbours disturb it, since they take cache and memory bandwidth: on a shared machine Redis's was seen
between 1030 and 2180 for one and the same set-up. So the systems are measured in turn, several rounds, each is given
its best round, the spread between its rounds is printed, and what share of the machine neighbours took in that best
round: do not believe a ratio of two rows where either is large.

At the end every bar is said to be met or missed; exit code 1 when one is missed. Nanoseconds of the server do not count
where the echo server, which looks nothing up, is above the bar itself: the machine's network is the limit there.

    python bench/cube.py [--quick] [--json] [--seconds 0.5] [--rounds 3] [--threads 1] [--spin-us 100]
        [--poll single|always|never] [--patience 5]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _bars import Bar, judge

from cloudedge import _core
from cloudedge.cube.client._client import Client, ClientConfig

KEYS = 1_000_000
BATCHES = (26, 260, 2600)
CONNECTIONS = (1, 8, 32)
WIDTHS = (36, 64)
RATE_BARS = {26: (2.0, 500.0), 260: (5.0, 200.0), 2600: (5.0, 200.0)}
"""By batch: how many times Redis's keys/s at least, and how many nanoseconds of the server per key at most."""
P99_BAR = (32, 0.5)
"""With so many connections, what share of Redis's p99 at most."""
CLIENT_BAR = 3.0
"""A seek of 2,600 keys from Python takes at most so many times the native client's time."""
SERVE = "from cloudedge.cli.cube_net import app; app()"
HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent / "native"
ECHO_SOURCES = (
    HERE / "echo_server.cpp",
    *(NATIVE / f"cube/{name}.cpp" for name in ("acceptor", "loop", "socket", "wire")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round, 36-byte values only")
    parser.add_argument("--json", action="store_true", help="print rows for programs")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="in which the systems take turns; the best one counts")
    parser.add_argument("--threads", type=int, default=1, help="of the cube server")
    parser.add_argument("--spin-us", type=int, help="how long the cube server looks for requests before it sleeps")
    parser.add_argument(
        "--poll", choices=("single", "always", "never"), default="single",
        help="when the generator looks for answers without sleeping: with a single connection, always or never",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=float, default=0, help="seconds to wait, at most, for a quiet moment before a round"
    )
    options = parser.parse_args()
    if shutil.which("redis-server") is None:
        sys.exit("redis-server is not installed, and servers are measured beside it: make peers, or apt install it")
    seconds = 0.2 if options.quick else options.seconds
    rounds = 1 if options.quick else options.rounds
    rows = []
    for width in WIDTHS[:1] if options.quick else WIDTHS:
        how = {"seconds": seconds, "poll": options.poll, "patience": options.patience}
        for row, spread in measure(width, rounds, serve_options(options), how):
            rows.append(row)
            if not options.json:
                print_row(row, spread, header=len(rows) == 1)
    say = (lambda _: None) if options.json else print
    client = measure_client(0.2 if options.quick else 1.0)
    say(f"\nclient.seek of 2600 keys: {client['python_us']:.0f} us from Python, {client['native_us']:.0f} us native")
    print_ratios(rows, say)
    verdict = judge([*bars(rows), Bar("client.seek / native", client["ratio"], "at most", CLIENT_BAR)], say)
    if options.json:
        print(json.dumps({"rows": rows, "client": client} | verdict, indent=2))
    sys.exit(1 if verdict["missed"] else 0)


def serve_options(options: argparse.Namespace) -> list[str]:
    spin = [] if options.spin_us is None else ["--spin-us", str(options.spin_us)]
    return ["--threads", str(options.threads), *spin]


def measure(width: int, rounds: int, serve: list[str], how: dict[str, Any]) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield each system's best round and how much slower its worst one was, as a share."""
    keys, values = table(width)
    with cube_server(keys, values, serve) as cube, redis_server(keys, values) as redis:
        for batch in BATCHES:
            with echo_server(answer_bytes(batch, width)) as echo:
                systems = {"cloudedge": cube, "redis": redis, "echo": echo}
                for connections in CONNECTIONS:
                    poll = how["poll"] == "always" or (how["poll"] == "single" and connections == 1)
                    shape = {"batch": batch, "connections": connections, "width": width} | how | {"poll": poll}
                    tries: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
                    for _ in range(rounds):
                        for system, (port, pid) in systems.items():
                            tries[system].append(run(system, port, pid, **shape))
                    for found in tries.values():
                        found.sort(key=lambda row: row["keys_per_s"])
                        yield found[-1], 1 - found[0]["keys_per_s"] / found[-1]["keys_per_s"]


def table(width: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys in no order, so that neighbours in the table are not neighbours in memory."""
    generator = np.random.default_rng(1)
    return generator.permutation(KEYS).astype(np.uint64), generator.integers(0, 256, (KEYS, width), np.uint8)


def answer_bytes(batch: int, width: int) -> int:
    """What a cube server sends for a request all of whose keys are there: 6 bytes around each value, and a head."""
    return 12 + 8 + batch * (6 + width) + 3


def run(
    system: str, port: int, pid: int, *, batch: int, connections: int, width: int, seconds: float,
    poll: bool, patience: float,
) -> dict[str, Any]:  # fmt: skip
    settings = {
        "peer": "cube" if system == "cloudedge" else system,
        "host": "127.0.0.1",
        "port": port,
        "connections": connections,
        "batch": batch,
        "key_space": KEYS,
        "value_bytes": width,
        "warmup_seconds": 0.0,
        "pin": None,
        "poll": poll,
    }
    wait_for_quiet(patience)
    _core.generate_load(**settings, seconds=min(0.2, seconds / 2), seed=1)  # warm connections, caches and branches
    while True:
        before, own, all_before = cpu_seconds(pid), time.process_time(), machine_seconds()
        measured = _core.generate_load(**settings, seconds=seconds, seed=2)
        used = cpu_seconds(pid) - before
        if measured["keys"]:
            break
        seconds *= 2  # not one answer: a slow server on a busy machine
    others = machine_seconds() - all_before - (time.process_time() - own) - used
    if measured["missing_share"]:
        sys.exit(f"{system}: keys are missing; the comparison would not be fair")
    return {
        "system": system,
        "batch": batch,
        "connections": connections,
        "value_bytes": width,
        "keys_per_s": round(measured["keys"] / measured["seconds"]),
        "p50_us": round(measured["p50_us"], 1),
        "p99_us": round(measured["p99_us"], 1),
        "server_ns_per_key": round(used * 1e9 / measured["keys"], 1),
        "others_share": round(max(0.0, others / seconds / (os.cpu_count() or 1)), 2),
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """Return the processor time that everything on this machine has used."""
    user, nice, system, _idle, _iowait, irq, softirq = Path("/proc/stat").read_text().split()[1:8]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(patience: float) -> None:
    """Wait until others leave nine tenths of the machine alone, or until patience ends."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        before = machine_seconds()
        time.sleep(0.2)
        if machine_seconds() - before < 0.02 * (os.cpu_count() or 1):
            return


@contextlib.contextmanager
def process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, text=True, **options) as started:
        try:
            yield started
        finally:
            started.terminate()
            started.wait(15)


@contextlib.contextmanager
def cube_server(keys: np.ndarray, values: np.ndarray, serve: list[str]) -> Iterator[tuple[int, int]]:
    with tempfile.TemporaryDirectory(prefix="cube-bench-") as directory:
        write_part(Path(directory), keys, values)
        options = ["--port", "0", "--admin-port", "0", *serve, "--drain-s", "1", "--json"]
        with process([sys.executable, "-c", SERVE, "serve", directory, *options], stdout=subprocess.PIPE) as server:
            lines = iter(server.stdout.readline, "}\n")
            started = json.loads("".join(lines) + "}")
            yield int(started["address"].rpartition(":")[2]), server.pid


def write_part(directory: Path, keys: np.ndarray, values: np.ndarray) -> None:
    """Write a part's files as cube-builder does."""
    count, width = values.shape
    records = np.empty((count, 4 + width), np.uint8)
    records[:, :4] = np.frombuffer(struct.pack("<I", width + 4), np.uint8)
    records[:, 4:] = values
    records.tofile(directory / "data.0")
    np.stack([keys, np.arange(count, dtype=np.uint64) * np.uint64(4 + width)], 1).tofile(directory / "index.0")
    (directory / "data.n").write_bytes(struct.pack("<II", 1, records.nbytes))
    (directory / "index.n").write_bytes(struct.pack("<IIIQ", 0, count, 1, 16 * count))


@contextlib.contextmanager
def redis_server(keys: np.ndarray, values: np.ndarray) -> Iterator[tuple[int, int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with process(command, stdout=subprocess.DEVNULL) as server:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        _core.fill_redis("127.0.0.1", port, keys, values)
        yield port, server.pid


@functools.cache
def compiled_echo() -> Path:
    """Compile the echo server as the package's native half is compiled; returns the program."""
    program = HERE.parent / "build" / "echo_server"
    program.parent.mkdir(exist_ok=True)
    compiler = os.environ.get("CXX", "c++")
    options = ("-std=c++20", "-O3", "-DNDEBUG", "-pthread", f"-I{NATIVE}")
    subprocess.run([compiler, *options, *map(str, ECHO_SOURCES), "-o", str(program)], check=True)
    return program


@contextlib.contextmanager
def echo_server(response_bytes: int) -> Iterator[tuple[int, int]]:
    with process([str(compiled_echo()), str(response_bytes)], stdout=subprocess.PIPE) as server:
        yield int(server.stdout.readline()), server.pid


def print_row(row: dict[str, Any], spread: float, *, header: bool) -> None:
    if header:
        print(f"{'system':>10} {'value':>6} {'batch':>6} {'conns':>6} {'Mkeys/s':>9} {'p50 us':>10} {'p99 us':>10}"
              f" {'ns/key':>8} {'spread':>7} {'others':>7}")  # fmt: skip
    print(
        f"{row['system']:>10} {row['value_bytes']:>6} {row['batch']:>6} {row['connections']:>6}"
        f" {row['keys_per_s'] / 1e6:>9.2f} {row['p50_us']:>10.1f} {row['p99_us']:>10.1f}"
        f" {row['server_ns_per_key']:>8.1f} {spread:>7.0%} {row['others_share']:>7.0%}",
        flush=True,
    )


def beside(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Yield ours, Redis's and the echo server's row of every shape."""
    found = {(r["system"], r["value_bytes"], r["batch"], r["connections"]): r for r in rows}
    for (system, *shape), ours in found.items():
        if system == "cloudedge":
            yield ours, found[("redis", *shape)], found[("echo", *shape)]


def bars(rows: list[dict[str, Any]]) -> Iterator[Bar]:
    for ours, redis, echo in beside(rows):
        batch, connections = ours["batch"], ours["connections"]
        shape = f"{ours['value_bytes']} B x {batch} keys, {connections} connections"
        times, nanoseconds = RATE_BARS[batch]
        yield Bar(f"{shape}: keys/s / redis", ours["keys_per_s"] / redis["keys_per_s"], "at least", times)
        possible = echo["server_ns_per_key"] <= nanoseconds
        yield Bar(f"{shape}: server ns/key", ours["server_ns_per_key"], "at most", nanoseconds, possible)
        if connections == P99_BAR[0]:
            yield Bar(f"{shape}: p99 / redis", ours["p99_us"] / redis["p99_us"], "at most", P99_BAR[1])


def print_ratios(rows: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    """Say how many times Redis's rate, what share of its p99, and how much of the echo server's cost."""
    say(f"\n{'value':>6} {'batch':>6} {'conns':>6} {'x redis':>8} {'p99/redis':>10} {'ns/key':>8} {'echo ns':>8}")
    for ours, redis, echo in beside(rows):
        width, batch, connections = ours["value_bytes"], ours["batch"], ours["connections"]
        say(
            f"{width:>6} {batch:>6} {connections:>6} {ours['keys_per_s'] / redis['keys_per_s']:>8.1f}"
            f" {ours['p99_us'] / redis['p99_us']:>10.2f} {ours['server_ns_per_key']:>8.1f}"
            f" {echo['server_ns_per_key']:>8.1f}"
        )


def measure_client(seconds: float) -> dict[str, float]:
    """Compare a seek from Python with the same seek without Python."""
    keys, values = table(36)
    wanted = np.random.default_rng(3).integers(0, KEYS, 2600).astype(np.uint64)
    with (
        cube_server(keys, values, ["--threads", "1"]) as (port, _),
        Client(ClientConfig([[f"127.0.0.1:{port}"]], timeout_ms=5000)) as c,
    ):
        core = c._core  # noqa: SLF001 - the core itself is what is compared with
        rounds = max(10, int(seconds / 2 / core.time_seek(wanted, 20)))
        native = core.time_seek(wanted, rounds)
        start = time.perf_counter()
        for _ in range(rounds):
            c.seek(wanted)
        python = (time.perf_counter() - start) / rounds
    return {"python_us": python * 1e6, "native_us": native * 1e6, "ratio": python / native}


if __name__ == "__main__":
    main()
