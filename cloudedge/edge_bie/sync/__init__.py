"""BIE configuration as code: makes an account match a folder of documents, the desired state."""

from cloudedge._lazy import renamed_names
from cloudedge.edge_bie.sync._deployed import Arrival, Verdict, judge, wait_deployed
from cloudedge.edge_bie.sync._desired import DesiredAccount, desired_state
from cloudedge.edge_bie.sync._export import export_documents, write_documents
from cloudedge.edge_bie.sync._history import AppliedState, History
from cloudedge.edge_bie.sync._sync import Applied, Sync
from cloudedge.edge_bie.sync._sync_documents import dump_documents, load_documents
from cloudedge.edge_bie.sync._sync_plan import ObservedAccount, SyncPlan, SyncStep, plan
from cloudedge.edge_bie.sync._verify import Check, verify

__all__ = [
    "Applied",
    "AppliedState",
    "Arrival",
    "Check",
    "DesiredAccount",
    "History",
    "ObservedAccount",
    "Sync",
    "SyncPlan",
    "SyncStep",
    "Verdict",
    "desired_state",
    "dump_documents",
    "export_documents",
    "judge",
    "load_documents",
    "plan",
    "verify",
    "wait_deployed",
    "write_documents",
]

__getattr__ = renamed_names(
    __name__,
    {
        "Desired": "cloudedge.edge_bie.sync.DesiredAccount",
        "Observed": "cloudedge.edge_bie.sync.ObservedAccount",
        "Plan": "cloudedge.edge_bie.sync.SyncPlan",
        "Step": "cloudedge.edge_bie.sync.SyncStep",
    },
)
