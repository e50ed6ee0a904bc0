"""Run simulated seeds until one breaks a promise, and print which: the simulator's half of `make mutants`.

Runs inside the changed copy of the package, so it prints where it found `cloudedge` as well.
"""

from __future__ import annotations

import argparse
import json
import sys

import cloudedge
from cloudedge.testing import run_seed


def first_broken(seeds: int) -> tuple[int, str] | None:
    """Return the first seed that breaks a promise, or crashes, and what it broke."""
    for seed in range(seeds):
        try:
            result = run_seed(seed)
        except Exception as error:  # noqa: BLE001 - a crash of the simulator is noticed as well
            return seed, f"crash: {type(error).__name__}: {error}"
        if result.violations:
            return seed, str(result.violations[0])
    return None


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    broken = first_broken(parser.parse_args().seeds)
    seed, what = broken or (None, "")
    sys.stdout.write(json.dumps({"package": cloudedge.__file__, "seed": seed, "what": what}) + "\n")


if __name__ == "__main__":
    main()
