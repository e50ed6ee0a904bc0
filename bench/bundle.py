"""Bundles against the plainest peer on the same bytes, in one run.

    python bench/bundle.py [--gib 2] [--json] [--folder DIR]

- pack and verify against ``hashlib`` reading the same files, one after the other;
- peak memory of pack, push and pull, each in a process of its own;
- bytes a second push of an unchanged bundle moves;
- the delta of a table with 1 % of its rows changed: its size against the changed rows and against
  ``zstd --patch-from``, the time to make and to apply it against numpy on the same arrays.

Times are the best of several runs; ratios above 1 mean that cloudedge is faster, or smaller.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from cloudedge import Bundle, LocalHub
from cloudedge.bundle.tables._delta_file import DeltaFile, DeltaWriter
from cloudedge.bundle.tables._rows import Rows, RowType, difference

MIB = 1 << 20
ROWS, DIM = 1_000_000, 16


def best(action: Callable[[], Any], times: int = 9) -> float:
    """Return the fastest of a few runs, in seconds."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        took.append(time.perf_counter() - start)
    return min(took)


def write_model(folder: Path, total: int) -> None:
    """Write one file of half the bytes, and eight that share the rest."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    block = bytearray(rng.bytes(4 * MIB))
    for number, size in enumerate([total // 2, *[total // 16] * 8]):
        with (folder / f"part{number}.pdiparams").open("wb") as file:
            for at in range(0, size, len(block)):
                block[:8] = (number << 40 | at).to_bytes(8, "little")
                file.write(block[: size - at])
            file.flush()
            os.fsync(file.fileno())


def plain_sha256(folder: Path) -> None:
    """Hash every file with the standard library."""
    buffer = bytearray(MIB)
    view = memoryview(buffer)
    for path in sorted(folder.iterdir()):
        sha256 = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                sha256.update(view[:got])


def step(name: str, root: Path) -> None:
    """Do one step in this process, and print its time and the memory it took."""
    near, far, there = (LocalHub(root / hub) for hub in ("near", "far", "there"))
    sent = -1
    start = time.perf_counter()
    if name == "pack":
        Bundle.pack(root / "model", name="m", version=1, hub=near)
    elif name == "verify":
        Bundle.open("m:1", hub=near).verify()
    elif name == "push":
        sent = Bundle.open("m:1", hub=near).push(far).bytes_missing
    elif name == "pull":
        Bundle.pull("m:1", far, hub=there)
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"seconds": took, "peak_mb": round(peak, 1), "sent": sent}))


def run_step(name: str, root: Path) -> dict[str, Any]:
    """Do one step in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--step", name, "--folder", root], stdout=subprocess.PIPE, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def bench_files(root: Path, gib: float) -> dict[str, Any]:
    """Measure pack, verify, push and pull."""
    total = int(gib * 1024) * MIB
    write_model(root / "model", total)
    plain_sha256(root / "model")  # into the page cache, for everybody
    sha256 = best(lambda: plain_sha256(root / "model"), times=3)
    packs = []
    for _ in range(3):
        shutil.rmtree(root / "near", ignore_errors=True)
        packs.append(run_step("pack", root))
    pack = min(packs, key=lambda p: p["seconds"])
    verify = min((run_step("verify", root) for _ in range(3)), key=lambda p: p["seconds"])
    push, again, pull = run_step("push", root), run_step("push", root), run_step("pull", root)
    return {
        "gib": gib,
        "sha256_s": sha256,
        "pack_s": pack["seconds"],
        "pack_ratio": sha256 / pack["seconds"],
        "verify_s": verify["seconds"],
        "verify_ratio": sha256 / verify["seconds"],
        "pack_peak_mb": max(p["peak_mb"] for p in packs),
        "push_peak_mb": push["peak_mb"],
        "pull_peak_mb": pull["peak_mb"],
        "push_bytes": push["sent"],
        "second_push_bytes": again["sent"],
    }


def bench_delta(root: Path) -> dict[str, Any]:
    """Measure the delta between two tables of which 1 % of the rows differ."""
    rng = np.random.default_rng(0)
    keys = np.sort(rng.choice(np.arange(ROWS * 100, dtype=np.uint64), ROWS, replace=False))
    before = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    after = before.copy()
    changed = rng.choice(ROWS, ROWS // 100, replace=False)
    after[changed] = rng.standard_normal((len(changed), DIM)).astype(np.float32)
    old, new = Rows.of(keys, before), Rows.of(keys, after)
    path, kind = root / "delta", RowType(np.dtype(np.float32), DIM)

    def make() -> None:
        with DeltaWriter(root) as writer:
            for window in difference(iter([old]), iter([new])):
                writer.add(window)
            writer.write(path, base="a", result="b", result_rows=ROWS)

    def apply() -> Rows:
        rows = old
        for block in DeltaFile(path, kind).rows():
            rows = rows.with_delta(block, np.empty(0, np.uint64))
        return rows

    def numpy_make() -> Any:
        at = np.flatnonzero((before != after).any(axis=1))
        return keys[at], after[at]

    fresh_keys, fresh = numpy_make()

    def numpy_apply() -> Any:
        out = before.copy()
        out[np.searchsorted(keys, fresh_keys)] = fresh
        return out

    make_s, apply_s = best(make), best(apply)
    assert (apply().columns[0] == new.columns[0]).all()
    assert (numpy_apply() == after).all()
    raw = len(changed) * DIM * 4
    patch, peer = zstd_patch(root, (keys, before), (keys, after))
    return {
        "rows": ROWS,
        "changed": len(changed),
        "raw_bytes": raw,
        "delta_bytes": path.stat().st_size,
        "delta_to_raw": path.stat().st_size / raw,
        "patch_by": peer,
        "patch_bytes": patch,
        "delta_to_patch": path.stat().st_size / patch,
        "make_s": make_s,
        "make_ratio": best(numpy_make) / make_s,
        "apply_s": apply_s,
        "apply_ratio": best(numpy_apply) / apply_s,
    }


def zstd_patch(root: Path, before: Any, after: Any) -> tuple[int, str]:
    """Return the size of zstd's patch between the two tables as files, and what made it."""
    for name, (keys, values) in (("before", before), ("after", after)):
        (root / name).write_bytes(keys.tobytes() + values.tobytes())
    zstd = shutil.which("zstd")
    if zstd:
        command = [
            zstd,
            "-q",
            "-f",
            "--long=27",
            f"--patch-from={root / 'before'}",
            root / "after",
            "-o",
            root / "patch",
        ]
        subprocess.run(command, check=True)
        return (root / "patch").stat().st_size, "zstd --patch-from"
    reference = zstandard.ZstdCompressionDict((root / "before").read_bytes(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    settings = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, enable_ldm=True)
    packer = zstandard.ZstdCompressor(dict_data=reference, compression_params=settings)
    return len(
        packer.compress((root / "after").read_bytes())
    ), "the same by the zstandard package (zstd is not installed)"


def report(files: dict[str, Any], delta: dict[str, Any]) -> None:
    rows = [
        ("pack + hash", f"{files['pack_s']:.2f} s", f"{files['pack_ratio']:.2f} x plain sha256", "at least 0.8"),
        ("verify", f"{files['verify_s']:.2f} s", f"{files['verify_ratio']:.2f} x plain sha256", "at least 0.8"),
        ("peak memory, pack", f"{files['pack_peak_mb']:.0f} MB", "", "under 200"),
        ("peak memory, push", f"{files['push_peak_mb']:.0f} MB", "", "under 200"),
        ("peak memory, pull", f"{files['pull_peak_mb']:.0f} MB", "", "under 200"),
        ("second push", f"{files['second_push_bytes']} bytes", "", "0"),
        ("delta", f"{delta['delta_bytes']:,} bytes", f"{delta['delta_to_raw']:.3f} x changed rows", "at most 1.1"),
        ("", "", f"{delta['delta_to_patch']:.3f} x {delta['patch_by']}", "at most 1"),
        ("delta, make", f"{delta['make_s'] * 1e3:.1f} ms", f"{delta['make_ratio']:.2f} x numpy's speed", ""),
        ("delta, apply", f"{delta['apply_s'] * 1e3:.1f} ms", f"{delta['apply_ratio']:.2f} x numpy's speed", ""),
    ]
    print(f"{files['gib']} GiB of files, plain sha256 {files['sha256_s']:.2f} s; {ROWS:,} x {DIM} float32, 1 % changed")
    for name, value, ratio, bar in rows:
        print(f"  {name:18} {value:>16}   {ratio:34} {bar}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2, help="size of the model")
    parser.add_argument("--json", action="store_true", help="print data for programs")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder if left out")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        step(options.step, options.folder)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        files, delta = bench_files(Path(made), options.gib), bench_delta(Path(made))
    if options.json:
        print(json.dumps({"files": files, "delta": delta}, indent=2))
    else:
        report(files, delta)


if __name__ == "__main__":
    main()
