"""A shard whose volume outlives its pod, on a real cluster: it comes back with what it had, by itself."""

from __future__ import annotations

import os
import secrets

import pytest
import yaml

from cloudedge.config import load as load_config
from cloudedge.errors import Unavailable
from cloudedge.kube import Kind
from cloudedge.release import Target, Unfinished
from cloudedge.release.kubernetes import down, up
from cloudedge.release.places._servers import ShardPlace
from tests.kube.real_cluster import kubeconfig, lab
from tests.release.kubernetes.world import humble
from tests.release.local.world import make, wait

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
POD = "cube-kept-embedding-0of1-0"


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


@pytest.fixture
def kept(volume, pod_images, tmp_path):
    """A target of one shard on such a volume, with a version that is live."""
    cluster, storage = volume
    section = {
        "kind": "kubernetes",
        "kubeconfig": humble(cluster, kubeconfig(), tmp_path),
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
    up("kept", config=config, within_s=300)
    target = Target.load("kept", config=config)
    try:
        target.apply(target.plan(make(tmp_path / "v1", 1).bundle)).wait(300)
        assert target.status().is_whole
        yield cluster, config, target
    finally:
        target._context.journal.close()
        down("kept", config=config, everything=True)
    assert cluster.list(Kind.PVC) == []


def test_a_shard_comes_back_with_its_volume(kept):
    cluster, config, target = kept
    for end in (
        lambda: cluster.delete(Kind.POD, POD, wait_s=300),
        lambda: (down("kept", config=config), up("kept", config=config, within_s=300)),
    ):
        end()
        wait(lambda: _is_ready(cluster), f"{POD} to be ready", 120)
        assert target.status().is_whole
        assert target.resume() is None  # there was nothing to repair


def test_a_shard_that_missed_a_switch_comes_back_and_is_not_ready(kept, tmp_path, monkeypatch):
    """It has the version before, loaded and active; what is live is another one by now."""
    cluster, _, target = kept
    made = make(tmp_path / "v2", 2)

    def away(*_, **__):
        raise Unavailable("it went just now")

    with monkeypatch.context() as patch:
        patch.setattr(ShardPlace, "activate", away)
        with pytest.raises(Unfinished, match="it went just now"):
            target.apply(target.plan(made.bundle, attempts=1)).wait(300)
    cluster.delete(Kind.POD, POD, wait_s=300)
    wait(lambda: target.status().places[0].answers, f"{POD} to answer", 120)
    assert target.status().places[0].answers != {made.pin: 1.0}
    assert not _is_ready(cluster)
    target.resume()
    wait(lambda: _is_ready(cluster), f"{POD} to be ready", 120)
    assert target.status().is_whole
    assert target.status().places[0].answers == {made.pin: 1.0}


def _is_ready(cluster):
    found = cluster.get(Kind.POD, POD) or {"status": {}}
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions") or ())
