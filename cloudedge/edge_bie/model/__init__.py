"""The edge's shared types: names, apps, mounts, signed statements and probes, for nodes and fleets."""

from __future__ import annotations

from cloudedge.edge_bie.model._app_digest import content_of, texts_digest
from cloudedge.edge_bie.model._apps import AppRef, DesiredApp, DesiredService, DesiredVolume, slot_of
from cloudedge.edge_bie.model._mounts import MountedConfig, Object, filled_in
from cloudedge.edge_bie.model._names import (
    APP_LABEL,
    OWNER_LABEL,
    PROBE,
    REVISION_LABEL,
    VERIFY,
    app_name,
    blob_config,
    check_key,
    check_name,
    node_label,
    script_config,
    statement_config,
)
from cloudedge.edge_bie.model._probe_client import ask_ready, ask_recorded
from cloudedge.edge_bie.model._statement import SIGNATURE_KEY, STATEMENT_KEY, Blob, Statement

__all__ = [
    "APP_LABEL",
    "OWNER_LABEL",
    "PROBE",
    "REVISION_LABEL",
    "SIGNATURE_KEY",
    "STATEMENT_KEY",
    "VERIFY",
    "AppRef",
    "Blob",
    "DesiredApp",
    "DesiredService",
    "DesiredVolume",
    "MountedConfig",
    "Object",
    "Statement",
    "app_name",
    "ask_ready",
    "ask_recorded",
    "blob_config",
    "check_key",
    "check_name",
    "content_of",
    "filled_in",
    "node_label",
    "script_config",
    "slot_of",
    "statement_config",
    "texts_digest",
]
