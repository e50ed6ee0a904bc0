"""Repeatable faults from a seed: delays, errors, broken connections, truncated downloads, lost and doubled writes.

Each kind happens to a share of the requests. The same seed and the same requests in the same order give the same
faults.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, fields
from typing import Any

from cloudedge.errors import InputError

__all__ = ["Chance", "Faults"]


@dataclass(frozen=True)
class Faults:
    """The kinds of faults and their shares. Immutable; validated when created."""

    seed: int = 1
    delay: float = 0.1
    """Share of requests that take up to `longest_delay_s` longer."""
    longest_delay_s: float = 0.2
    error: float = 0.03
    """Share answered with status 500 and not done."""
    drop: float = 0.03
    """Share whose connection breaks before anything is done."""
    lost_answer: float = 0.02
    """Share that is done, but whose connection breaks before the answer."""
    cut: float = 0.2
    """Share of downloads that break off at a random byte."""
    lost_write: float = 0.02
    """Share of writes that are answered as done but are not."""
    duplicate: float = 0.02
    """Share of writes that are done twice, as behind a proxy that retries."""
    lost_desire: float = 0.0
    """Share of changes of a node whose labels are stored but whose apps stay unchanged: so BIE loses against another
    writer. Writing the node again repairs it."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name not in {"seed", "longest_delay_s"} and not 0 <= value <= 1:
                raise InputError(f"{name} is a share from 0 to 1, not {value!r}")
        if not 0 <= self.longest_delay_s <= 60:  # noqa: PLR2004 - a minute
            raise InputError(f"longest_delay_s is 0 to 60, not {self.longest_delay_s!r}")

    @classmethod
    def from_json(cls, value: Any) -> Faults:
        """Parse the requested faults; by default none happen.

        Raises:
            InputError: the value is invalid.
        """
        known = {f.name for f in fields(cls)}
        if not isinstance(value, dict) or not value.keys() <= known:
            raise InputError(f"faults are an object of {', '.join(sorted(known))}")
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in value.values()):
            raise InputError("faults are numbers")
        nothing = {f.name: 0 for f in fields(cls)} | {"seed": 1, "longest_delay_s": 0.2}
        return cls(**{**nothing, **value})


class Chance:
    """Decides which request suffers which fault, and counts them."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.counts: dict[str, int] = {}
        self._random = random.Random(faults.seed)  # noqa: S311 - repeatable on purpose

    def happens(self, kind: str) -> bool:
        """Draw for one request."""
        share: float = getattr(self.faults, kind)
        if share <= 0 or self._random.random() >= share:
            return False
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return True

    def delay_s(self) -> float:
        """Return the delay of a delayed request."""
        return self._random.random() * self.faults.longest_delay_s

    def cut_at(self, length: int) -> int:
        """Return the number of bytes of a download that still arrive."""
        return self._random.randrange(max(1, length))
