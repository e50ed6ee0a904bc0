"""The report of a split, kept beside its result."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from cloudedge.bundle.contents import Part

__all__ = ["SplitReport", "SplitTable"]


class SplitTable(Part):
    """A parameter that became a table."""

    parameter: str
    rows: int
    dim: int


class SplitReport(Part):
    """The cut and kept tables, and the largest difference between the pieces' answers and the whole model's."""

    program: str = Field(description="pir (.json) or old (.pdmodel)")
    framework_version: str
    tables: Mapping[str, SplitTable]
    kept: Mapping[str, str] = Field({}, description="by parameter left in the dense program: why")
    requests: int = Field(0, description="how many requests both answered")
    rows: int = Field(0, description="how many rows those had in all")
    max_abs_difference: float = 0.0
    whole_bytes: int = Field(0, description="the parameters of the whole model")
    dense_bytes: int = Field(0, description="the parameters of the dense program")
