"""Kubernetes label selectors: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`, joined by commas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Requirement", "matches", "parse"]

_NAME = r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*[A-Za-z0-9]|[A-Za-z0-9])"
_KEY = rf"(?:{_NAME}/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_FORMS = (
    (re.compile(rf"({_KEY})\s*(?:==|=)\s*({_VALUE})"), "in"),
    (re.compile(rf"({_KEY})\s*!=\s*({_VALUE})"), "notin"),
    (re.compile(rf"({_KEY})\s+in\s*\(([^()]*)\)"), "in"),
    (re.compile(rf"({_KEY})\s+notin\s*\(([^()]*)\)"), "notin"),
    (re.compile(rf"({_KEY})"), "exists"),
    (re.compile(rf"!\s*({_KEY})"), "absent"),
)
_SPLIT = re.compile(r",(?![^()]*\))")


@dataclass(frozen=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if labels satisfy it."""
        found = labels.get(self.key)
        if self.operator == "in":
            return found is not None and found in self.values
        if self.operator == "notin":
            return found is None or found not in self.values
        return (found is not None) is (self.operator == "exists")


@lru_cache(maxsize=1 << 15)
def parse(selector: str) -> tuple[Requirement, ...] | None:
    """Return a selector's conditions, all of which must hold; None if it is invalid."""
    if not selector.strip():
        return ()
    found = []
    for part in _SPLIT.split(selector):
        for pattern, operator in _FORMS:
            if match := pattern.fullmatch(part.strip()):
                values = frozenset(v.strip() for v in match[2].split(",")) if match.re.groups > 1 else frozenset()
                found.append(Requirement(match[1], operator, values))
                break
        else:
            return None
    return tuple(found)


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Return True if labels match; an invalid selector matches nothing."""
    requirements = parse(selector)
    return requirements is not None and all(requirement.matches(labels) for requirement in requirements)
