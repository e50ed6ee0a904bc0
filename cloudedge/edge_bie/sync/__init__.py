"""BIE's configuration as code: a folder of documents is the desired state, and this makes an account be that."""

from cloudedge.edge_bie.sync._deployed import Arrival, Verdict, judge, wait_deployed
from cloudedge.edge_bie.sync._desired import Desired, desired_state
from cloudedge.edge_bie.sync._export import export_documents, write_documents
from cloudedge.edge_bie.sync._history import AppliedState, History
from cloudedge.edge_bie.sync._sync import Applied, Sync
from cloudedge.edge_bie.sync._sync_documents import dump_documents, load_documents
from cloudedge.edge_bie.sync._sync_plan import Observed, Plan, Step, plan
from cloudedge.edge_bie.sync._verify import Check, verify

__all__ = [
    "Applied",
    "AppliedState",
    "Arrival",
    "Check",
    "Desired",
    "History",
    "Observed",
    "Plan",
    "Step",
    "Sync",
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
