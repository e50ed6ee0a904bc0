"""Splitting: turn a trained model into a dense program, sparse tables, a signature and probes."""

from cloudedge.bundle.splitting._report import SplitReport, SplitTable
from cloudedge.bundle.splitting._split import SplitModel, plan_split, split

__all__ = ["SplitModel", "SplitReport", "SplitTable", "plan_split", "split"]
