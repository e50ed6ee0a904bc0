"""Releases: one bundle live on one target, everywhere or nowhere. Plan, apply, resume, roll back, watch."""

from cloudedge.release._apply import Outcome
from cloudedge.release._errors import Refused, ReleaseUndone, Unfinished
from cloudedge.release._ground import Ground, Runner, Shelf, in_threads
from cloudedge.release._kinds import register_kind
from cloudedge.release._layouts import FixedLayout, Layouts
from cloudedge.release._places import (
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
from cloudedge.release._plan import World, plan
from cloudedge.release._release import Release
from cloudedge.release._rows import CubeRows
from cloudedge.release._shelf import HubShelf
from cloudedge.release._status import PlaceStatus, Record, Status
from cloudedge.release._steps import Life, Limits, Options, Plan, Refusal, Step
from cloudedge.release._target import Target
from cloudedge.release._version import TableFacts, Version

__all__ = [
    "CubeRows",
    "Estimate",
    "FixedLayout",
    "Ground",
    "Group",
    "Health",
    "HubShelf",
    "Layouts",
    "Leg",
    "Life",
    "Limits",
    "Loaded",
    "Member",
    "Observed",
    "Options",
    "Outcome",
    "Part",
    "Place",
    "PlaceStatus",
    "Plan",
    "Record",
    "Refusal",
    "Refused",
    "Release",
    "ReleaseUndone",
    "Runner",
    "Shares",
    "Shelf",
    "Shipped",
    "Status",
    "Step",
    "TableFacts",
    "Target",
    "Traffic",
    "Unfinished",
    "Version",
    "World",
    "in_threads",
    "plan",
    "register_kind",
]
