"""Releases: one bundle live on one target, everywhere or nowhere. Plan, apply, resume, roll back, watch."""

from cloudedge.release._places import Estimate, Health, Leg, Loaded, Observed, Place, Shares, Shipped, Traffic
from cloudedge.release._version import TableFacts, Version

__all__ = [
    "Estimate",
    "Health",
    "Leg",
    "Loaded",
    "Observed",
    "Place",
    "Shares",
    "Shipped",
    "TableFacts",
    "Traffic",
    "Version",
]
