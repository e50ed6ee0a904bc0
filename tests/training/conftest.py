"""A real cluster for training jobs, in namespaces of one's own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from cloudedge.errors import CloudEdgeError
from cloudedge.kube import Cluster, Kind
from tests.kube.real_cluster import install
from tests.training.samples import OPERATOR, VOLCANO

IMAGE = "cloudedge-test/training:1"
QUEUE = "queues.scheduling.volcano.sh.volcano-1.12.0.yaml"


@pytest.fixture(scope="session")
def kubeconfig():
    found = os.environ.get("CLOUDEDGE_TEST_KUBECONFIG")
    if not found:
        pytest.skip("needs a Kubernetes API server: CLOUDEDGE_TEST_KUBECONFIG")
    return found


@pytest.fixture(scope="session")
def definitions(kubeconfig):
    """Upstream's definitions on the cluster; one that is there already is left alone."""
    with Cluster.connect(kubeconfig=kubeconfig) as cluster:
        for file in (OPERATOR, VOLCANO["Job", "1.12.0"], VOLCANO["PodGroup", "1.12.0"], QUEUE):
            install(cluster, file.removesuffix(".yaml"))


@pytest.fixture(scope="module")
def cluster(kubeconfig, definitions):
    """A namespace of its own on the cluster."""
    name = f"training-{secrets.token_hex(4)}"
    with Cluster.connect(kubeconfig=kubeconfig, namespace=name) as found:
        found.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield found
        for kind in (Kind.PADDLE_JOB, Kind.VOLCANO_JOB):
            for job in found.list(kind):
                # Without a controller nobody else removes what holds it.
                with suppress(CloudEdgeError):
                    found.patch(kind, job["metadata"]["name"], {"metadata": {"finalizers": None}})
        found.delete(Kind.NAMESPACE, name)


@pytest.fixture(scope="module")
def image(cluster):
    """A small image on the cluster's one node, which has to be this machine."""
    if not any(_is_ready(node) for node in cluster.list(Kind.NODE)):
        pytest.skip("needs a cluster with a node: this API server has none")
    busybox = shutil.which("busybox")
    if busybox is None or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("needs Docker and busybox on this machine, to make an image")
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False).returncode:
        with (
            subprocess.Popen(["docker", "import", "-", IMAGE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as run,
            tarfile.open(fileobj=run.stdin, mode="w|") as archive,
        ):
            archive.add(busybox, "bin/busybox")
            for name in ("sh", "sleep", "find", "sha256sum", "dd", "cat", "echo", "env", "mkdir", "grep", "seq"):
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
        assert run.returncode == 0
    return IMAGE


def _is_ready(node):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or [])


@pytest.fixture(scope="module")
def operator(cluster, kubeconfig, tmp_path_factory):
    """The real paddle-operator, watching this module's namespace only."""
    program = Path(os.environ.get("CLOUDEDGE_TEST_TOOLS") or ".peers") / "paddle-operator"
    if not program.is_file():
        pytest.skip("needs paddle-operator: make peers")
    log = tmp_path_factory.mktemp("operator") / "log"
    # Its init container asks a DNS server for every peer; a cluster of one node may have none.
    options = [
        f"--namespace={cluster.namespace}",
        "--initImage=",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, *options], env=os.environ | {"KUBECONFIG": kubeconfig}, stdout=out, stderr=out
        )
    yield process
    process.terminate()
    process.wait(30)
