"""A target on a real cluster: pods of real images, versions of a small model, and load on the Service."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cloudedge.config import load as load_config
from cloudedge.errors import CloudEdgeError
from cloudedge.hub import open_hub
from cloudedge.kube import Cluster, Kind
from cloudedge.release import Target
from cloudedge.release.kubernetes._names import SERVING_PORT, labels, named, selector
from tests.images import built_images
from tests.kube.real_cluster import documented_role
from tests.release.local.world import Load, Made, make, wait

NAME = "ads"


def sh(*command, **options) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def images() -> dict[str, str]:
    """Return the images: those that CLOUDEDGE_TEST_IMAGES names as CUBE,SERVING, else built from this checkout."""
    named_ones = os.environ.get("CLOUDEDGE_TEST_IMAGES", "")
    if named_ones:
        return dict(zip(("cube", "serving"), named_ones.split(","), strict=True))
    if not os.environ.get("CLOUDEDGE_TEST_DOCKER"):
        pytest.skip("neither CLOUDEDGE_TEST_IMAGES nor CLOUDEDGE_TEST_DOCKER is set: there is nothing to run as pods")
    return {"cube": built_images.built("cube"), "serving": built_images.built("serving")}


def gateway() -> str:
    """Return the address of this machine that pods reach, where they run on its own Docker engine."""
    if shutil.which("docker") is None:
        pytest.skip("there is no docker here: pods could not reach a hub of ours")
    found = json.loads(sh("docker", "network", "inspect", "bridge"))
    return found[0]["IPAM"]["Config"][0].get("Gateway") or "172.17.0.1"


def humble(cluster: Cluster, config: str, folder: Path) -> str:
    """Return a kubeconfig of somebody who may do what the guide says is needed, and nothing else."""
    role = documented_role()
    role["metadata"]["namespace"] = cluster.namespace
    who = {"name": "releaser", "namespace": cluster.namespace}
    group = "rbac.authorization.k8s.io"
    for each in (
        role,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": who},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": who,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": role["metadata"]["name"]},
            "subjects": [{"kind": "ServiceAccount", **who}],
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/service-account-token",
            "metadata": who | {"annotations": {"kubernetes.io/service-account.name": "releaser"}},
        },
    ):
        cluster.apply(each)

    def token() -> str:
        return base64.b64decode((cluster.get(Kind.SECRET, "releaser").get("data") or {}).get("token", "")).decode()

    wait(token, "a token")
    found = yaml.safe_load(Path(config).read_text())
    for user in found["users"]:
        user["user"] = {"token": token()}
    (folder / "kubeconfig").write_text(yaml.safe_dump(found))
    return str(folder / "kubeconfig")


class KubeWorld:
    """A target whose pods run, and versions to release there."""

    def __init__(self, folder: Path, cluster: Cluster, kubeconfig: str, hub: str, found: dict[str, str]) -> None:
        self.cluster = cluster
        self.folder = folder
        self.config_file = folder / "cloudedge.yaml"
        self._section = {
            "kind": "kubernetes",
            "kubeconfig": kubeconfig,
            "namespace": cluster.namespace,
            "hub": "registry",
            "sparse": {"tables": ["embedding"], "shards": 2, "replicas": 2},
            "dense": {"replicas": 2, "service": "pair"},
            "pods": {
                "pull_policy": "Never",
                "cube": {"image": found["cube"]},
                "serving": {"image": found["serving"], "hub": {"url": hub, "insecure": True}},
            },
        }
        self.target: Target | None = None
        self._hub = {"url": hub, "insecure": True}
        self.write()
        first = make(folder / "v1", 1)
        self.good = [first, *(make(folder / f"v{n}", n, parent=first) for n in range(2, 6))]
        self.spoiled = make(folder / "spoiled", 6, parent=first, wrong_probes=True)
        self.drifting = make(folder / "drifting", 7, shift=100.0, parent=first)
        self.made = [*self.good, self.spoiled, self.drifting]
        remote = open_hub(self.config.hubs["registry"])
        for made in self.made:
            made.bundle.push(remote)

    def write(self, access: str = "auto", **sparse) -> None:
        """Write cloudedge.yaml, with another way to the pods or another layout than before."""
        pods = self._section["pods"] | {"access": access}
        section = self._section | {"sparse": self._section["sparse"] | sparse, "pods": pods}
        self.config_file.write_text(yaml.safe_dump({"hubs": {"registry": self._hub}, "targets": {NAME: section}}))
        self.config = load_config(self.config_file)

    def open(self) -> None:
        self.close()
        self.target = Target.load(NAME, config=self.config)

    def close(self) -> None:
        if self.target is not None:
            self.target._context.journal.close()

    @property
    def url(self) -> str:
        """Where the Service answers: this machine is a node."""
        found = self.cluster.get(Kind.SERVICE, named("serving", NAME))
        return f"http://{found['spec']['clusterIP']}:{SERVING_PORT}"

    def load(self, **more) -> Load:
        return Load([self.url], {each.pin: each.answers for each in self.made}, **more)

    def release(self, made: Made, **choices):
        return self.target.apply(self.target.plan(made.bundle, **choices)).wait(300)

    def command(self, *words: str) -> subprocess.Popen:
        """Start cloudedge as a process of its own."""
        mine = {"CLOUDEDGE_HOME": str(self.folder / "home"), "CLOUDEDGE_CONFIG": str(self.config_file)}
        return subprocess.Popen(
            [sys.executable, "-m", "cloudedge", *words],
            env={**os.environ, **mine},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def begun(self, stage: str):
        """Return something that tells whether a step of a stage was intended since now."""
        journal = self.target._context.journal

        def last() -> int:
            steps = [f"{stage}:{place}" for place in self.target._context.places]
            entry = journal.newest(steps, "intent")
            return entry.id if entry else 0

        before = last()
        return lambda: last() > before

    def pods(self, component: str) -> list[dict]:
        found = self.cluster.list(Kind.POD, selector=selector(labels(component, NAME)))
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def ready(self, component: str) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self.pods(component)
            if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())
        ]

    def wait_ready(self, component: str, count: int, within_s: float = 180) -> None:
        wait(lambda: len(self.ready(component)) == count, f"{count} pods of {component} to be ready", within_s)

    def heal(self) -> None:
        """Bring the target back to where a release can begin."""

        def is_whole() -> bool:
            try:
                self.target.resume()
            except CloudEdgeError:
                return False
            return self.target.status().is_whole

        wait(is_whole, "the target to be whole", 180)
