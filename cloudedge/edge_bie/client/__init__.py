"""A typed client for BIE's management API that refuses, detects or repairs the API's silent failures."""

from cloudedge.edge_bie.client._app_health import broken, nameless_cause, unready
from cloudedge.edge_bie.client._apps import App, Mount, Port, Service, Volume
from cloudedge.edge_bie.client._audit import Audit, AuditFile, Write, state_folder
from cloudedge.edge_bie.client._bie import Bie, Mountable
from cloudedge.edge_bie.client._configs import Config, File, Item, Registry, Secret, Text
from cloudedge.edge_bie.client._diff import Difference, compare
from cloudedge.edge_bie.client._masking import MASK, is_secret, masked
from cloudedge.edge_bie.client._node_calls import Properties
from cloudedge.edge_bie.client._nodes import AppStats, Container, Instance, Node, Ready, Report
from cloudedge.edge_bie.client._normalise import normal, same
from cloudedge.edge_bie.client._objects import Objects, Stored, StoredObjects, open_objects, put_file
from cloudedge.edge_bie.client._rules import (
    check_app,
    check_config,
    check_labels,
    check_node,
    check_registry,
    check_secret,
    matches,
)

__all__ = [
    "MASK",
    "App",
    "AppStats",
    "Audit",
    "AuditFile",
    "Bie",
    "Config",
    "Container",
    "Difference",
    "File",
    "Instance",
    "Item",
    "Mount",
    "Mountable",
    "Node",
    "Objects",
    "Port",
    "Properties",
    "Ready",
    "Registry",
    "Report",
    "Secret",
    "Service",
    "Stored",
    "StoredObjects",
    "Text",
    "Volume",
    "Write",
    "broken",
    "check_app",
    "check_config",
    "check_labels",
    "check_node",
    "check_registry",
    "check_secret",
    "compare",
    "is_secret",
    "masked",
    "matches",
    "nameless_cause",
    "normal",
    "open_objects",
    "put_file",
    "same",
    "state_folder",
    "unready",
]
