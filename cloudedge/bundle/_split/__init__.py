"""Splitting: a trained model becomes a dense program, sparse tables, a signature and probes."""

from cloudedge.bundle._split._report import SplitReport, SplitTable
from cloudedge.bundle._split._split import SplitModel, plan_split, split

__all__ = ["SplitModel", "SplitReport", "SplitTable", "plan_split", "split"]
