"""A shard whose volume outlives its pod, on a real cluster: it comes back with what it had, by itself."""

from __future__ import annotations

import os
import secrets

import pytest
import yaml
from kubelab import kubeconfig, lab
from real_world import make, wait

from cloudedge.config import load as load_config
from cloudedge.kube import Kind
from cloudedge.release import Target
from cloudedge.release.kubernetes import down, up

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def volume(tmp_path):
    """A class of volumes that are folders of this machine, which is the cluster's node; and one such volume."""
    if os.environ.get("CLOUDEDGE_TEST_DOCKER") is None and not os.environ.get("CLOUDEDGE_TEST_IMAGES"):
        pytest.skip("no images to run")
    name = f"test-{secrets.token_hex(4)}"
    folder = tmp_path / "volume"
    folder.mkdir()
    for path in (folder, *list(folder.parents)[:3]):
        path.chmod(0o777)  # the pod's user is nobody here
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": name,
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(folder)},
        },
    }
    with lab("queues", with_pods=True) as cluster:
        cluster.apply(volume)
        try:
            yield cluster, name
        finally:
            cluster.delete(Kind.PV, name)


def test_a_shard_comes_back_with_its_volume(volume, pod_images, tmp_path):
    cluster, storage = volume
    section = {
        "kind": "kubernetes",
        "kubeconfig": kubeconfig(),
        "namespace": cluster.namespace,
        "sparse": {"shards": 1, "replicas": 1},
        "pods": {
            "pull_policy": "Never",
            "cube": {"image": pod_images["cube"], "storage_class": storage, "storage": "1Gi"},
        },
    }
    file = tmp_path / "cloudedge.yaml"
    file.write_text(yaml.safe_dump({"targets": {"kept": section}}))
    config = load_config(file)
    made = make(tmp_path / "v1", 1)
    up("kept", config=config, within_s=300)
    target = Target.load("kept", config=config)
    pod = "cube-kept-embedding-0of1-0"
    try:
        target.apply(target.plan(made.bundle)).wait(300)
        assert target.status().is_whole
        for end in (
            lambda: cluster.delete(Kind.POD, pod, wait_s=300),
            lambda: (down("kept", config=config), up("kept", config=config, within_s=300)),
        ):
            end()
            wait(lambda: _is_ready(cluster, pod), f"{pod} to be ready", 120)
            assert target.status().is_whole
            assert target.resume() is None  # there was nothing to repair
    finally:
        target._ground.journal.close()
        down("kept", config=config, everything=True)
    assert cluster.list(Kind.PVC) == []


def _is_ready(cluster, pod):
    found = cluster.get(Kind.POD, pod) or {"status": {}}
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions") or ())
