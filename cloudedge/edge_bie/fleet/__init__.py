"""Fleets: which revision of an app runs on which nodes, and how a new one gets there in waves."""

from cloudedge.edge_bie.fleet._errors import RolloutUndone
from cloudedge.edge_bie.fleet._fleet import Fleet
from cloudedge.edge_bie.fleet._fleet_view import Life
from cloudedge.edge_bie.fleet._next_action import Seen, decide
from cloudedge.edge_bie.fleet._node_verdict import Verdict, judge
from cloudedge.edge_bie.fleet._publish import Proposal, Published, Publisher
from cloudedge.edge_bie.fleet._revision import Revision
from cloudedge.edge_bie.fleet._rollout import RolloutPlan, State, Unfit
from cloudedge.edge_bie.fleet._rollout_engine import Cloud, Engine, Outcome
from cloudedge.edge_bie.fleet._status import FleetStatus, NodeStatus
from cloudedge.edge_bie.fleet._waves import Policy, Wave, Window, in_waves

__all__ = [
    "Cloud",
    "Engine",
    "Fleet",
    "FleetStatus",
    "Life",
    "NodeStatus",
    "Outcome",
    "Policy",
    "Proposal",
    "Published",
    "Publisher",
    "Revision",
    "RolloutPlan",
    "RolloutUndone",
    "Seen",
    "State",
    "Unfit",
    "Verdict",
    "Wave",
    "Window",
    "decide",
    "in_waves",
    "judge",
]
