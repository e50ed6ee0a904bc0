"""Bars: what a measurement has to reach, and whether it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Bar:
    """One measured value and its limit."""

    name: str
    value: float
    how: Literal["at most", "at least"]
    bar: float
    counts: bool = True
    """Whether it means something: the machine was left alone, and it can be reached there at all."""

    @property
    def is_met(self) -> bool:
        return self.value <= self.bar if self.how == "at most" else self.value >= self.bar


def judge(bars: Iterable[Bar], say: Callable[[str], None]) -> dict[str, Any]:
    """Print every bar's verdict; return them, and the names of those that were missed and count, for --json."""
    bars = list(bars)
    say("")
    for each in bars:
        verdict = "met" if each.is_met else "MISSED" if each.counts else "(void)"
        say(f"{verdict:6} {each.name}: {each.value:.4g}, {each.how} {each.bar:.4g}")
    return {
        "bars": [asdict(each) | {"met": each.is_met} for each in bars],
        "missed": [each.name for each in bars if each.counts and not each.is_met],
    }
