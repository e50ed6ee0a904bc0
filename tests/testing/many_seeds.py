"""`make seeds`: simulate very many seeds on all cores, in chunks that are kept: it can be stopped and continued.

A line of JSON for each chunk is appended to a file that is named after the package's source: once the source changes,
counting begins anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cloudedge
from cloudedge.testing import Report, simulate

CHUNK = 10_000


def source_digest(package: Path) -> str:
    """Return a digest of every Python file of the package."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def run(
    seeds: int, state: Path, *, chunk: int = CHUNK, jobs: int | None = None, run_chunk: Callable[..., Report] = simulate
) -> list[int]:
    """Simulate the seeds that are not in the state file yet; return those that broke a promise, of all."""
    lines = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    done = {(line["first_seed"], line["seeds"]): line["failing"] for line in lines}
    state.parent.mkdir(parents=True, exist_ok=True)
    chunks = [(first, min(chunk, seeds - first)) for first in range(0, seeds, chunk)]
    left = [each for each in chunks if each not in done]
    began = time.monotonic()
    for number, (first, count) in enumerate(left, 1):
        report = run_chunk(count, first_seed=first, jobs=jobs)
        done[first, count] = [{"seed": r.seed, "broken": [str(v) for v in r.violations]} for r in report.failing]
        with state.open("a") as file:
            facts = {"first_seed": first, "seeds": count, "failing": done[first, count], "points": report.points}
            file.write(json.dumps(facts | {"seconds": round(report.seconds, 1)}) + "\n")
        spent = time.monotonic() - began
        minutes = spent / number * (len(left) - number) / 60
        sys.stderr.write(
            f"{first + count:,} of {seeds:,} seeds, {count / report.seconds:.0f} a second, {len(done[first, count])} "
            f"broke a promise, about {minutes:.0f} min left\n"
        )
    return [each["seed"] for chunk_of in chunks for each in done[chunk_of]]


def main() -> int:
    """Run and print the seeds that broke a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one per core")
    parser.add_argument("--folder", type=Path, default=Path("out/seeds"))
    asked = parser.parse_args()
    state = asked.folder / f"{source_digest(Path(cloudedge.__file__).parent)}.jsonl"
    failing = run(asked.seeds, state, jobs=asked.jobs or None)
    found = f"these broke a promise: {failing}" if failing else "no promise was broken"
    sys.stdout.write(f"{asked.seeds:,} seeds: {found}\ndetails: {state}\n")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
