"""The release transaction: versions, places, rules, plans, their execution, canaries, and the way back."""

from __future__ import annotations

from cloudedge.release.core._adopt import Adoption, BundleFinder, adopt
from cloudedge.release.core._apply import Outcome, is_past_return
from cloudedge.release.core._canary import add_up
from cloudedge.release.core._context import BundleSource, ReleaseContext, Runner
from cloudedge.release.core._errors import Refused, ReleaseUndone, Unfinished
from cloudedge.release.core._operations import ALLOWED, Operations, describe, require_feasible, without
from cloudedge.release.core._places import (
    Estimate,
    Group,
    Health,
    Leg,
    Loaded,
    Member,
    Observed,
    Part,
    Place,
    Shares,
    Shipped,
    Traffic,
)
from cloudedge.release.core._plan import ReleaseWorld, plan
from cloudedge.release.core._status import PlaceStatus, Record, Status, history, status
from cloudedge.release.core._steps import STAGES, Kind, Life, Limits, Options, Plan, Refusal, Step
from cloudedge.release.core._table_layouts import FixedLayout, Layouts, Shards
from cloudedge.release.core._version import TableFacts, Version

__all__ = [
    "ALLOWED",
    "STAGES",
    "Adoption",
    "BundleFinder",
    "BundleSource",
    "Estimate",
    "FixedLayout",
    "Group",
    "Health",
    "Kind",
    "Layouts",
    "Leg",
    "Life",
    "Limits",
    "Loaded",
    "Member",
    "Observed",
    "Operations",
    "Options",
    "Outcome",
    "Part",
    "Place",
    "PlaceStatus",
    "Plan",
    "Record",
    "Refusal",
    "Refused",
    "ReleaseContext",
    "ReleaseUndone",
    "ReleaseWorld",
    "Runner",
    "Shards",
    "Shares",
    "Shipped",
    "Status",
    "Step",
    "TableFacts",
    "Traffic",
    "Unfinished",
    "Version",
    "add_up",
    "adopt",
    "describe",
    "history",
    "is_past_return",
    "plan",
    "require_feasible",
    "status",
    "without",
]
