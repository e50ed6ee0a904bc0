"""Simulation of many seeds on all cores, with a report."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from cloudedge.errors import InputError
from cloudedge.testing._scenario import Result, run_seed
from cloudedge.testing._simulated_world import FAULTS

__all__ = ["Report", "simulate"]

_CHUNK = 50
_SHOWN = 20


@dataclass(frozen=True)
class Report:
    """The results of many seeds."""

    seeds: int
    first_seed: int
    violations: int
    """The number of seeds in which a promise was broken."""
    failing: tuple[Result, ...]
    """The first of them."""
    points: int
    """The moments at which cloudedge might have been killed, over all seeds."""
    answers: int
    faults: Mapping[str, int]
    outcomes: Mapping[str, int]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        failing = [{"seed": r.seed, "broken": [str(v) for v in r.violations]} for r in self.failing]
        return asdict(self) | {"failing": failing, "seconds": round(self.seconds, 3)}


def simulate(
    seeds: int,
    *,
    first_seed: int = 0,
    faults: Collection[str] = FAULTS,
    stock: bool = False,
    jobs: int | None = None,
) -> Report:
    """Run many seeds.

    Args:
        seeds: The number of seeds.
        first_seed: The first one.
        faults: The kinds of faults that may happen.
        stock: Deliver as upstream does instead.
        jobs: Processes; None: one per core.

    Raises:
        InputError: there is no such kind of fault.
    """
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise InputError(f"no such fault: {', '.join(unknown)}", hint=f"Choose from {', '.join(FAULTS)}.")
    began = time.monotonic()
    numbers = range(first_seed, first_seed + seeds)
    run = partial(run_seed, faults=frozenset(faults), stock=stock)
    workers = min(jobs or os.cpu_count() or 1, max(1, seeds // _CHUNK))
    if workers == 1:
        results = [run(seed) for seed in numbers]
    else:
        # Not forked: the caller may have threads.
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            results = list(pool.map(run, numbers, chunksize=_CHUNK))
    broken = [result for result in results if result.violations]
    kinds: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for result in results:
        kinds.update(result.faults)
        outcomes.update(result.outcomes)
    return Report(
        seeds=seeds,
        first_seed=first_seed,
        violations=len(broken),
        failing=tuple(broken[:_SHOWN]),
        points=sum(result.points for result in results),
        answers=sum(result.answers for result in results),
        faults=dict(kinds),
        outcomes=dict(outcomes),
        seconds=time.monotonic() - began,
    )
