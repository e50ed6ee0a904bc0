"""Documents and observed states to plan with."""

from __future__ import annotations

import shutil
from pathlib import Path

from cloudedge.edge_bie.client import Registry
from cloudedge.edge_bie.sync import DesiredAccount, ObservedAccount, desired_state
from cloudedge.edge_bie.sync._sync_documents import read_documents
from tests import ROOT

EXAMPLE = ROOT / "examples/bie_sync"


def example(folder: Path, model: bytes = b"a model") -> Path:
    """Copy the example, with a model."""
    shutil.copytree(EXAMPLE, folder)
    (folder / "model.zip").write_bytes(model)
    return folder


def desired(*values, named="ours") -> DesiredAccount:
    documents = read_documents([{"kind": "set", "name": named}, *values])
    return desired_state([(document, Path()) for document in documents])


def there(state: DesiredAccount, **changes) -> ObservedAccount:
    """Return what a control plane has once a state was applied."""
    registries = {n: Registry(n, r.address, r.username, description=r.description) for n, r in state.registries.items()}
    observed = {
        "configs": dict(state.configs),
        "secrets": dict(state.secrets),
        "registries": registries,
        "apps": dict(state.apps),
        "labels": {n: {k: v for k, v in ls.items() if v is not None} for n, ls in state.labels.items()},
        "passwords": {n: True for n, r in state.registries.items() if r.password},
    }
    return ObservedAccount(**{**observed, **changes})


def config(name="greeting", text="hello", **other):
    return {"kind": "config", "name": name, "texts": {"a": text}, **other}


def app(name="serving", mounts="greeting", **other):
    return {
        "kind": "app",
        "name": name,
        "services": [{"name": "main", "image": "i", "volumeMounts": [{"name": "vol", "mountPath": "/v"}]}],
        "volumes": [{"name": "vol", "config": mounts}],
        **other,
    }
