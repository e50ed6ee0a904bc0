"""The job that the splitting process receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """One model to split; plain data, because it travels as JSON."""

    program: str
    """The path of the program, ``.json`` or ``.pdmodel``."""
    parameters: str
    """The path of the parameters; empty if there are none."""
    output: str
    """The path of an existing, empty folder."""
    samples: str = ""
    """The path of a file of requests; empty to generate requests from the seed."""
    seed: int = 0
    keep: tuple[str, ...] = ()
    table_names: Mapping[str, str] = field(default_factory=dict)
    feed_aliases: Mapping[str, str] = field(default_factory=dict)
    fetch_aliases: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-5
    dry_run: bool = False
    """Report the cuts without making them."""
