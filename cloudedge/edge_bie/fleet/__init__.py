"""Fleets: publishing revisions of an app, rolling them out to nodes in waves, and their status."""

from cloudedge._lazy import renamed_names
from cloudedge.edge_bie.fleet._errors import RolloutUndone
from cloudedge.edge_bie.fleet._fleet import Fleet
from cloudedge.edge_bie.fleet._fleet_view import Life
from cloudedge.edge_bie.fleet._next_action import Seen, decide
from cloudedge.edge_bie.fleet._node_verdict import Verdict, judge
from cloudedge.edge_bie.fleet._publish import Proposal, Published, Publisher
from cloudedge.edge_bie.fleet._revision import Revision
from cloudedge.edge_bie.fleet._rollout import RolloutPlan, RolloutState, Unfit
from cloudedge.edge_bie.fleet._rollout_engine import Cloud, Engine, Outcome
from cloudedge.edge_bie.fleet._status import FleetStatus, NodeStatus
from cloudedge.edge_bie.fleet._waves import RolloutPolicy, Wave, Window, in_waves

__all__ = [
    "Cloud",
    "Engine",
    "Fleet",
    "FleetStatus",
    "Life",
    "NodeStatus",
    "Outcome",
    "Proposal",
    "Published",
    "Publisher",
    "Revision",
    "RolloutPlan",
    "RolloutPolicy",
    "RolloutState",
    "RolloutUndone",
    "Seen",
    "Unfit",
    "Verdict",
    "Wave",
    "Window",
    "decide",
    "in_waves",
    "judge",
]

__getattr__ = renamed_names(
    __name__, {"Policy": "cloudedge.edge_bie.fleet.RolloutPolicy", "State": "cloudedge.edge_bie.fleet.RolloutState"}
)
