"""Routing of requests to versions: the active version, weighted variants, and the shadow. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from cloudedge.errors import InputError, NotFound
from cloudedge.serving.engine import NoneActive

__all__ = ["Routing", "Shadow", "Variant"]


@dataclass(frozen=True)
class Variant:
    """A share of the traffic: for a canary, or one side of an A/B test."""

    pin: str
    weight: float
    tag: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise InputError(f"a weight is a number from 0 up, not {self.weight!r}")


@dataclass(frozen=True)
class Shadow:
    """A version that gets copies of requests; its answers are only compared."""

    pin: str
    share: float = 1.0
    """Share of the requests to copy."""
    tolerance: float = 1e-5
    """Largest absolute difference that counts as equal."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or not self.tolerance >= 0:
            raise InputError("a shadow's share is above 0 and at most 1, its tolerance not below 0")


@dataclass(frozen=True)
class Routing:
    """The versions that requests go to."""

    active: str | None = None
    """The pin of the version that answers everything that no variant takes."""
    variants: tuple[Variant, ...] = ()
    shadow: Shadow | None = None

    def choose(self, draw: float, tag: str | None = None) -> tuple[str, str]:
        """Choose a version; return its pin and the tag of its variant.

        Args:
            draw: A random number between 0 and 1.
            tag: The requested variant, or None.

        Raises:
            NotFound: There is no such variant.
            NoneActive: No version is active.
        """
        if tag is not None:
            for variant in self.variants:
                if variant.tag == tag:
                    return variant.pin, tag
            raise NotFound(f"there is no variant {tag!r}", hint=f"Known are {[v.tag for v in self.variants]}.")
        rest = draw * sum(variant.weight for variant in self.variants)
        for variant in self.variants:
            rest -= variant.weight
            if rest < 0:
                return variant.pin, variant.tag
        if self.active is None:
            raise NoneActive(
                "no version is active", hint="Activate one: `POST /versions/PIN/activate` on the admin port."
            )
        return self.active, ""

    @property
    def shares(self) -> dict[str, float]:
        """The share of requests that each version answers."""
        total = sum(variant.weight for variant in self.variants)
        if total:
            return {variant.pin: variant.weight / total for variant in self.variants}
        return {self.active: 1.0} if self.active else {}

    @property
    def pins(self) -> set[str]:
        """Every version that traffic can reach."""
        named = {variant.pin for variant in self.variants} | {self.shadow.pin if self.shadow else None, self.active}
        return {pin for pin in named if pin is not None}

    def within(self, loaded: Container[str]) -> Routing:
        """Return the part that the loaded versions can serve; the weights only if all of theirs are loaded."""
        return Routing(
            self.active if self.active in loaded else None,
            self.variants if all(variant.pin in loaded for variant in self.variants) else (),
            self.shadow if self.shadow is not None and self.shadow.pin in loaded else None,
        )

    def activated(self, pin: str) -> Routing:
        """Return the routing with another active version; clears the weights, and a shadow that is that version."""
        shadow = self.shadow if self.shadow is not None and self.shadow.pin != pin else None
        return replace(self, active=pin, variants=(), shadow=shadow)

    def weighted(self, variants: Sequence[Variant]) -> Routing:
        """Return the routing with other weights; without variants everything goes to the active version.

        Raises:
            InputError: All weights are 0, or a tag occurs twice.
        """
        tags = [variant.tag for variant in variants if variant.tag]
        if variants and not sum(variant.weight for variant in variants) > 0:
            raise InputError("at least one weight must be above 0")
        if len(tags) != len(set(tags)):
            raise InputError(f"a tag names one variant: {sorted(tags)}")
        return replace(self, variants=tuple(variants))
