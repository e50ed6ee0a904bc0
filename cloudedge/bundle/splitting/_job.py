"""What is asked of the process that splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """One model to split; plain data, because it travels as JSON."""

    program: str
    """The program file, ``.json`` or ``.pdmodel``."""
    parameters: str
    """The parameter file; empty: there is none."""
    output: str
    """A folder that is there and empty."""
    samples: str = ""
    """A file of requests; empty: made up from the seed."""
    seed: int = 0
    keep: tuple[str, ...] = ()
    table_names: Mapping[str, str] = field(default_factory=dict)
    feed_aliases: Mapping[str, str] = field(default_factory=dict)
    fetch_aliases: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-5
    dry_run: bool = False
    """Only say what would be cut."""
