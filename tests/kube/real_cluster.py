"""A cluster for tests: the one CLOUDEDGE_TEST_KUBECONFIG names, with upstream's definitions, and a namespace each.

Definitions are shared by everybody who tests at the same time: they are installed and never taken away. Of PaddleJob
there is the later one, which has `sampleSetRef`.
"""

from __future__ import annotations

import os
import secrets
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import yaml

from cloudedge.errors import NotFound
from cloudedge.kube import Cluster, Kind
from tests import ROOT

CRDS = ROOT / "tests" / "data" / "crds"
INSTALLED = (
    "paddlejobs.batch.paddlepaddle.org.paddlecloud-0.4",
    "samplesets.batch.paddlepaddle.org",
    "samplejobs.batch.paddlepaddle.org",
    "paddleservices.elasticserving.paddlepaddle.org.v1-derived",
    "paddleservices.serving.paddlepaddle.org",
    "jobs.batch.volcano.sh.volcano-1.12.0",
    "podgroups.scheduling.volcano.sh.volcano-1.12.0",
    "queues.scheduling.volcano.sh.volcano-1.12.0",
    "services.serving.knative.dev.knative-1.0",
)


def definition(name: str) -> dict:
    return _for_old_servers(yaml.load((CRDS / f"{name}.yaml").read_text(), Loader=yaml.CSafeLoader))


def _for_old_servers(node: Any) -> Any:
    """Leave out what Kubernetes 1.20 refuses or drops: defaults of "", and rules in CEL. No field depends on them."""
    if isinstance(node, list):
        return [_for_old_servers(each) for each in node]
    if not isinstance(node, dict):
        return node
    properties = (node.get("items") or {}).get("properties") or {} if isinstance(node.get("items"), dict) else {}
    keys = node.get("x-kubernetes-list-map-keys") or []
    unkeyed = any((properties.get(key) or {}).get("default") == "" for key in keys)
    left_out = {"x-kubernetes-validations", "selectableFields"}
    left_out |= {"x-kubernetes-list-map-keys", "x-kubernetes-list-type"} if unkeyed else set()
    return {
        key: _for_old_servers(value)
        for key, value in node.items()
        if key not in left_out and not (key == "default" and value == "")
    }


def kubeconfig() -> str:
    found = os.environ.get("CLOUDEDGE_TEST_KUBECONFIG")
    if not found:
        pytest.skip("CLOUDEDGE_TEST_KUBECONFIG names no cluster")
    return found


def install(cluster: Cluster, file: str) -> None:
    """Have a definition of upstream's, and wait until objects of it are taken; one that is there is left alone."""
    found = definition(file)
    if cluster.get(Kind.CRD, found["metadata"]["name"]) is None:
        serve(cluster, found)
    else:
        _wait_served(cluster, found)


def serve(cluster: Cluster, found: dict) -> None:
    """Have a definition as it is given, and wait until objects of it are taken."""
    cluster.apply(found, force=True)
    _wait_served(cluster, found)


def _wait_served(cluster: Cluster, definition: dict) -> None:
    def is_served(found: dict | None) -> bool:
        conditions = ((found or {}).get("status") or {}).get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    name, spec = definition["metadata"]["name"], definition["spec"]
    cluster.wait(Kind.CRD, name, is_served, timeout_s=60, what=f"installing {name}")
    for version in (each["name"] for each in spec["versions"] if each["served"]):
        # A busy server lists a kind only some time after it says that the definition is established.
        eventually(partial(_is_listed, cluster, spec["names"]["kind"], f"{spec['group']}/{version}"))


def _is_listed(cluster: Cluster, kind: str, version: str) -> bool:
    with suppress(NotFound):
        return bool(cluster.served(kind, [version]))
    return False


def eventually(check: Callable[[], bool], within_s: float = 60) -> None:
    """Wait until something is so; a server publishes what it was told when it comes to it."""
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"not so after {within_s:g} s"
        time.sleep(0.05)


@contextmanager
def lab(*definitions: str, with_pods: bool = False) -> Iterator[Cluster]:
    """Lend a cluster with some definitions installed, in a namespace of its own; skip where there is none.

    Args:
        definitions: Beginnings of their files' names, "paddlejobs"; all of them if left out.
        with_pods: Whether pods must run there.
    """
    config = kubeconfig()
    name = f"test-{secrets.token_hex(4)}"
    with Cluster.connect(kubeconfig=config, namespace=name) as cluster:
        if with_pods and not cluster.list(Kind.NODE):
            pytest.skip("the cluster of CLOUDEDGE_TEST_KUBECONFIG has no node: no pod runs there")
        for each in (file for file in INSTALLED if file.startswith(definitions or "")):
            install(cluster, each)
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        try:
            yield cluster
        finally:
            cluster.delete(Kind.NAMESPACE, name)


def documented_role() -> dict:
    """Return the Role that the guide says is all that `up`, releases and `down` need."""
    page = (ROOT / "docs" / "how-to" / "release-kubernetes.md").read_text()
    return yaml.safe_load(
        textwrap.dedent("    apiVersion: rbac" + page.split("    apiVersion: rbac")[1].split("\n\n")[0])
    )


@contextmanager
def account(cluster: Cluster, rules: list[dict]) -> Iterator[Cluster]:
    """Connect as somebody who may do these things in the namespace, and nothing anywhere else."""
    name = f"account-{secrets.token_hex(4)}"
    metadata, group = {"name": name, "namespace": cluster.namespace}, "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}
    cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    cluster.apply({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules})
    role = {"apiGroup": group, "kind": "Role", "name": name}
    binding = {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata}
    cluster.apply(binding | {"roleRef": role, "subjects": [subject]})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = Kind.SERVICE_ACCOUNT.path(cluster.namespace, name, "token")
    token = cluster._session.call("POST", path, what="asking for a token", body=asked)["status"]["token"]
    config = yaml.safe_load(Path(kubeconfig()).read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        with Cluster.connect(kubeconfig=file.name, namespace=cluster.namespace) as limited:
            yield limited


@contextmanager
def collected(cluster: Cluster, *kinds: Kind) -> Iterator[None]:
    """Let what was deleted in the foreground go: where no controller runs, nobody else takes the finalizer away."""
    if cluster.list(Kind.NODE):
        yield
        return
    ended = threading.Event()

    def collect() -> None:
        while not ended.wait(0.1):
            for kind in kinds:
                for each in cluster.list(kind):
                    if each["metadata"].get("deletionTimestamp"):
                        with suppress(NotFound):
                            cluster.patch(kind, each["metadata"]["name"], {"metadata": {"finalizers": None}})

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        yield
    finally:
        ended.set()
        collector.join()
