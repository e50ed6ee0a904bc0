"""The PaddleService controller and Knative in one thread, as far as a client sees them, their traps included.

It watches the real API server and writes Knative Services and Revisions there. A changed default without a canary takes
the service down for good, as upstream does: the revision is deleted, and the new template refused under the old name.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from cloudedge.errors import CloudEdgeError
from cloudedge.kube import Cluster, Kind
from cloudedge.serving.knative import Endpoint

REVISION_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "revisions.serving.knative.dev"},
    "spec": {
        "group": "serving.knative.dev",
        "scope": "Namespaced",
        "names": {"plural": "revisions", "singular": "revision", "kind": "Revision", "listKind": "RevisionList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


class Runner(Protocol):
    """Runs revisions as pods; without one they are objects alone."""

    def start(self, revision: str, endpoint: Endpoint) -> None: ...

    def end(self, revision: str) -> None: ...


class KnativeDouble:
    def __init__(self, cluster: Cluster, kind: Kind, runner: Runner | None = None) -> None:
        self._cluster = cluster
        self._kind = kind
        self._runner = runner
        self._stop = threading.Event()
        self._seen: dict[str, dict[str, Any]] = {}
        self._template: dict[str, str] = {}
        self.fails: set[str] = set()
        """Images whose revision never gets ready."""
        self.outages: list[str] = []
        self.history: list[dict[str, int]] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            try:
                there = {each["metadata"]["name"]: each["spec"] for each in self._cluster.list(self._kind)}
                for name, spec in there.items():
                    if self._seen.get(name) != spec:
                        self._reconcile(name, self._seen.get(name), spec)
                        self._seen[name] = spec
                for name in self._seen.keys() - there.keys():
                    self._cluster.delete(Kind.KNATIVE_SERVICE, name)
                    for role in ("default", "canary"):
                        self._end(f"{name}-{role}")
                    del self._seen[name]
            except CloudEdgeError:
                if not self._stop.is_set():
                    raise

    def _reconcile(self, name: str, old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        canary, percent = new.get("canary"), new.get("canaryTrafficPercent", 50)
        if old is not None and old["default"] != new["default"]:
            if self._template[name] != f"{name}-canary":
                self.outages.append(name)
                self._end(f"{name}-default")
                self._tell(name, {}, reason="RevisionMissing", message="changes without a name change")
                return
            # The route still names the canary alone only if it has everything; else a share of requests fails here.
            if percent != 100:
                self.outages.append(name)
            self._end(f"{name}-default")
        is_new = old is None or old["default"] != new["default"]
        if is_new and not self._revision(name, "default", new["default"]):
            return
        if canary and (old is None or (old.get("canary"), old.get("canaryTrafficPercent")) != (canary, percent)):
            self._tell(name, {f"{name}-default": 100})
            self._end(f"{name}-canary")
            if not self._revision(name, "canary", canary):
                return
        if not canary:
            self._tell(name, {f"{name}-default": 100})
            self._end(f"{name}-canary")
        else:
            shares = {f"{name}-default": 100 - percent, f"{name}-canary": percent}
            self._tell(name, shares)

    def _end(self, revision: str) -> None:
        self._cluster.delete(Kind.KNATIVE_REVISION, revision, wait_s=5)
        if self._runner is not None:
            self._runner.end(revision)

    def _revision(self, name: str, role: str, endpoint: dict[str, Any]) -> bool:
        image = f"{endpoint['containerImage']}:{endpoint['tag']}"
        self._template[name] = f"{name}-{role}"
        revision = f"{name}-{role}"
        if self._runner is not None:
            self._runner.start(revision, Endpoint.from_manifest(endpoint))
        self._cluster.apply(
            {
                "apiVersion": "serving.knative.dev/v1",
                "kind": "Revision",
                "metadata": {"name": revision, "namespace": self._cluster.namespace},
                "spec": {
                    "containers": [{"image": image, "command": ["/bin/bash", "-c"], "args": [endpoint.get("arg", "")]}]
                },
            },
            force=True,
        )
        made = self._cluster.get(Kind.KNATIVE_REVISION, revision) or {}
        failed = {"status": "False", "reason": "ExitCode1"} if image in self.fails else {"status": "True"}
        status = {
            "observedGeneration": made["metadata"]["generation"],
            "conditions": [{"type": "Ready"} | failed],
        }
        self._cluster.patch(Kind.KNATIVE_REVISION, revision, {"status": status}, subresource="status")
        if image in self.fails:
            self._tell(name, {f"{name}-default": 100}, reason="RevisionFailed", message=f"{revision} exits with 1")
            return False
        return True

    def _tell(self, name: str, traffic: dict[str, int], *, reason: str = "", message: str = "") -> None:
        self._cluster.apply(
            {
                "apiVersion": "serving.knative.dev/v1",
                "kind": "Service",
                "metadata": {"name": name, "namespace": self._cluster.namespace},
                "spec": {"template": {"metadata": {"name": self._template[name]}}},
            },
            force=True,
        )
        made = self._cluster.get(Kind.KNATIVE_SERVICE, name) or {}
        status = {
            "observedGeneration": made["metadata"]["generation"],
            "url": f"http://{name}.example.com",
            "address": {"url": f"http://{name}.svc.cluster.local"},
            # The condition that matters is not the last one.
            "conditions": [
                {"type": "Ready", "status": "False", "reason": reason, "message": message}
                if reason
                else {"type": "Ready", "status": "True"},
                {"type": "RoutesReady", "status": "True"},
            ],
            "traffic": [
                {"revisionName": revision, "percent": percent, "latestRevision": False}
                for revision, percent in traffic.items()
            ],
        }
        self._cluster.patch(Kind.KNATIVE_SERVICE, name, {"status": status}, subresource="status")
        self.history.append({revision: percent for revision, percent in traffic.items() if percent})
