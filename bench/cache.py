"""Reading a data set of small files: cold from a slow object store, warm through our cache, and from the local disk.

    python bench/cache.py [--json] [--quick] [--files N] [--rate MB_PER_S] [--latency-ms MS]

One run: N files (20,000; 2,000 with --quick) of 16 KiB lie in an S3 server that is reached through a relay with a
limited rate and some latency. They are read through a mount with empty caches, then warmed up and read again, and read
from a plain folder of the same disk. The page cache is emptied before every round, so that a disk is read and not
memory; warm and local rounds take turns, each is given its best. Four threads read whole files in a random order. Exit
code 1 when warm is below 0.9 of local. Needs root (for the overlay and the page cache), FUSE, juicefs and rclone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cloudedge.cache.local import LocalDatasets

SIZE = 16 * 1024
THREADS = 4
ROUNDS = 3
BAR = 0.9
KEYS = ("access", "secret-for-a-benchmark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="2,000 files")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=40.0, help="of the object store, in MB/s")
    parser.add_argument("--latency-ms", type=float, default=5.0, help="of the object store, per piece of data")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("this needs root: only root lays files over a volume and empties the page cache")
    count = 2_000 if options.quick else options.files
    with tempfile.TemporaryDirectory(prefix="cloudedge-bench-") as name:
        found = measure(Path(name), count, options.rate * 1e6, options.latency_ms / 1000)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for what in ("cold", "warm", "local"):
            print(f"{what:>6}: {found[what]:10.0f} files/s {found[what] * SIZE / 1e6:8.1f} MB/s")
        print(f"warm is {found['warm_over_cold']:.1f} times cold and {found['warm_over_local']:.2f} of the local disk")
    sys.exit(found["warm_over_local"] < BAR)


def measure(folder: Path, count: int, rate: float, latency_s: float) -> dict[str, float]:
    plain = folder / "plain"
    names = make_files(plain, count)
    with s3_server(folder) as port, relay(port) as (limits, slow):
        datasets = LocalDatasets(folder / "sets")
        dataset = datasets.create(
            "bench", source=str(plain), storage="minio", bucket=f"http://127.0.0.1:{slow}/bucket", keys=KEYS
        )
        try:
            dataset.sync(threads=20)
            dataset.unmount()
            limits.update(rate=rate, latency_s=latency_s)
            cold = read(dataset.mount(), names)
            dataset.warmup(threads=50)
            rounds = [(read(dataset.mount(), names), read(plain, names)) for _ in range(ROUNDS)]
        finally:
            dataset.unmount()
    warm, local = (max(each) for each in zip(*rounds, strict=True))
    ratios = {"warm_over_cold": warm / cold, "warm_over_local": warm / local}
    return {"files": count, "cold": cold, "warm": warm, "local": local} | ratios


def make_files(folder: Path, count: int) -> list[str]:
    rng = random.Random(1)
    names = [f"part-{number % 100:02}/{number:06}" for number in range(count)]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(SIZE))
    rng.shuffle(names)
    return names


def read(root: Path, names: list[str]) -> float:
    """Return files per second, with an empty page cache."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")

    def one(name: str) -> int:
        with (root / name).open("rb", buffering=0) as file:
            return len(file.read())

    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        total = sum(pool.map(one, names, chunksize=100))
    took = time.perf_counter() - began
    if total != len(names) * SIZE:
        sys.exit(f"{root}: {total} bytes instead of {len(names) * SIZE}")
    return len(names) / took


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    program = Path(sys.executable).parent / "rclone"
    data = folder / "objects"
    (data / "bucket").mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(program if program.exists() else shutil.which("rclone")), "serve", "s3", "--config", os.devnull]
    command += ["--addr", f"127.0.0.1:{port}", "--auth-key", ",".join(KEYS), str(data)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield port
        finally:
            server.terminate()


@contextmanager
def relay(target: int) -> Iterator[tuple[dict[str, float], int]]:
    """Pass connections on, limited in rate and delayed, as told by the dictionary that is yielded."""
    limits: dict[str, float] = {"rate": 0.0, "latency_s": 0.0}
    free_at = 0.0

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, down: bool) -> None:
        nonlocal free_at
        try:
            while data := await reader.read(65536):
                if down and limits["rate"]:
                    free_at = max(free_at, time.monotonic()) + len(data) / limits["rate"]
                    await asyncio.sleep(free_at - time.monotonic() + limits["latency_s"])
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, back, down=False), pump(there, writer, down=True))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield limits, server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


if __name__ == "__main__":
    main()
