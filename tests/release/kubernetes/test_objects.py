"""The objects of a target: written as they should be, refused where something is missing, and taken by a real server.

CLOUDEDGE_WRITE_GOLDEN=1 writes the golden files anew; the difference is then for review.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cloudedge.cli import app
from cloudedge.config import Config, TargetConfig
from cloudedge.cube import CubeConf
from cloudedge.errors import ConfigError, Conflict, NotFound
from cloudedge.kube import FIELD_MANAGER, Kind
from cloudedge.release import Target
from cloudedge.release.kubernetes import Facts, objects
from cloudedge.release.kubernetes._cluster_state import Site
from cloudedge.release.kubernetes._names import Part, labels, named
from cloudedge.release.kubernetes._reach import is_direct
from tests.kube.real_cluster import account, collected, documented_role, kubeconfig, lab

GOLDEN = Path(__file__).parent / "golden"
SMALL = {
    "kind": "kubernetes",
    "sparse": {"tables": ["embedding"], "shards": 2, "replicas": 2},
    "dense": {"replicas": 2, "service": "ctr"},
    "pods": {
        "cube": {"image": "registry.example/cube:1"},
        "serving": {"image": "registry.example/serving:1", "hub": "oci://registry.example/models"},
    },
}
WHOLE = SMALL | {
    "pods": {
        "pull_secrets": ["registry-login"],
        "pull_policy": "Always",
        "service_account": "models",
        "cube": {
            "image": "registry.example/cube:1",
            "storage_class": "fast",
            "storage": "200Gi",
            "requests": {"cpu": 2, "memory": "16Gi"},
            "limits": {"memory": "16Gi"},
            "node_selector": {"disk": "nvme"},
        },
        "serving": {
            "image": "registry.example/serving:1",
            "hub": {"url": "s3://models/prod", "region": "eu", "access_key": "ada", "secret_key": "env:HUB_KEY"},
            "hub_secret": "hub-login",
            "requests": {"cpu": "500m"},
            "ingress_host": "ctr.example",
            "ingress_class": "nginx",
        },
    },
}
ADDRESSES = {
    f"cube-prod-embedding-{shard}of2-{replica}": f"10.0.{shard}.{replica}" for shard in (0, 1) for replica in (0, 1)
}
FACTS = Facts("the token", ADDRESSES, policy="policy/v1")


def section(value, **more):
    return TargetConfig.model_validate({**value, **more})


@pytest.mark.rules
@pytest.mark.parametrize(("name", "value"), [("small", SMALL), ("whole", WHOLE)])
def test_golden(name, value):
    text = yaml.safe_dump_all(objects("prod", section(value), FACTS), sort_keys=False, width=120)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("CLOUDEDGE_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.rules
def test_every_pod_is_humble():
    """No root, no rights, no token of the cluster's, time to drain, and probes that mean what they say."""
    for each in objects("prod", section(WHOLE), FACTS):
        if each["kind"] not in ("StatefulSet", "Deployment"):
            continue
        pod = each["spec"]["template"]["spec"]
        container = pod["containers"][0]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
        assert container["livenessProbe"]["httpGet"]["path"] == "/health"
        drain = next(float(each.partition("=")[2]) for each in container["args"] if each.startswith("--drain-s="))
        notice = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "0"])[1]
        assert pod["terminationGracePeriodSeconds"] > drain + float(notice)
        assert "the token" not in str(each)


@pytest.mark.rules
def test_readers_find_every_layout_by_address():
    facts = Facts("t", ADDRESSES, earlier=[Part("embedding", 0, 1, 1)], live={"embedding": 1})
    texts = [
        each["data"]["cube.conf"]
        for each in objects("prod", section(SMALL), facts)
        if "cube.conf" in each.get("data", {})
    ]
    conf = CubeConf.from_text(texts[0])
    assert [(each.table_name, each.shards) for each in conf.tables] == [
        ("embedding", 1),
        ("embedding@2", 2),
        ("embedding@1", 1),
    ]
    assert conf["embedding@2"].nodes[1].ipport_list == "list://10.0.1.0:8027,10.0.1.1:8027"
    assert conf["embedding"].nodes[0].ipport_list == "list://cube-prod-embedding-0of1-0:8027"  # no address yet


@pytest.mark.rules
def test_names_fit_and_differ():
    tables = ["a" * 60 + "x", "a" * 60 + "y"]
    names = {Part(table, 0, 4096, 2).name("9" * 63) for table in tables}
    assert len(names) == 2
    assert all(len(f"{name}-1-0123456789") <= 63 and name[0].isalpha() for name in names)
    assert named("serving", "prod", dotted="state") != named("serving", "prod-state")


@pytest.mark.rules
@pytest.mark.parametrize(
    ("pods", "lacking"),
    [
        ({}, "pods.cube.image, pods.serving.image, pods.serving.hub"),
        ({"cube": {"image": "c"}, "serving": {"image": "s"}}, "pods.serving.hub"),
        (
            {
                "cube": {"image": "c"},
                "serving": {"image": "s", "hub": {"url": "s3://m/x", "secret_key": "file:/home/ada/key"}},
            },
            "pods have no such file",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_is_sent(pods, lacking):
    with pytest.raises(ConfigError, match=lacking):
        objects("prod", section(SMALL, pods=pods), FACTS)


@pytest.mark.rules
@pytest.mark.parametrize(
    "pods", [{"cube": {"image": "c", "requests": {"cpu": "many"}}}, {"access": "perhaps"}, {"serving": {"imgae": "x"}}]
)
def test_settings_are_checked(pods):
    with pytest.raises(ValueError, match="pods"):
        Config.model_validate({"targets": {"prod": SMALL | {"pods": pods}}})


@pytest.mark.rules
def test_how_pods_are_reached(monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert not is_direct(section(SMALL))
    assert is_direct(section(SMALL, pods={"access": "direct"}))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert is_direct(section(SMALL))
    assert not is_direct(section(SMALL, kubeconfig="somewhere"))
    assert not is_direct(section(SMALL, pods={"access": "forward"}))


@pytest.fixture(scope="module")
def cluster():
    with lab("queues") as found, collected(found, Kind.DEPLOYMENT, Kind.STATEFUL_SET):
        yield found


@pytest.mark.cluster
@pytest.mark.parametrize(("name", "value"), [("small", SMALL), ("whole", WHOLE)])
def test_a_server_takes_every_object_and_twice_is_once(cluster, name, value):
    """Against a real API server: nothing is pruned, a second `up` writes nothing, `down` keeps what it should."""
    site = Site(name, section(value), cluster)
    applied = site.apply()

    def writes():
        # Controllers may write statuses, and accounts their tokens, meanwhile; the time of an apply is told even if it
        # changed nothing. What was asked for has a generation, or is data.
        found = [cluster.get(kind, each) for kind, each in site.owned(everything=True)]
        return {
            each["metadata"]["uid"]: (
                each["metadata"].get("generation"),
                each.get("data"),
                [by["fieldsV1"] for by in each["metadata"]["managedFields"] if by["manager"] == FIELD_MANAGER],
            )
            for each in found
        }

    before, token = writes(), site.token
    assert len(before) >= len(applied)
    site.apply()
    assert writes() == before
    assert Site(name, section(value), cluster).token == token
    conf = CubeConf.from_text(site.cube_conf())
    addresses = [node.ipport_list for each in conf.tables for node in each.nodes]
    assert len(addresses) == 4
    assert not any("cube-" in each for each in addresses)  # all have an address by now

    site.delete(site.owned())
    kept = {kind.kind for kind, _ in site.owned(everything=True)}
    assert {"Service", "ConfigMap", "Secret"} <= kept
    assert not kept & {"Deployment", "StatefulSet"}
    site.delete(site.owned(everything=True))
    assert [each for each in site.owned(everything=True) if each[0] is not Kind.PVC] == []


@pytest.mark.cluster
def test_layouts_of_before_stay_until_they_are_retired(cluster):
    """Also across down and up: what is live may be in them."""
    Site("cut", section(SMALL), cluster).apply()
    site = Site("cut", section(SMALL, sparse={"shards": 1, "replicas": 2}), cluster)
    before = [Part("embedding", 0, 2, 2), Part("embedding", 1, 2, 2)]
    site.apply()
    assert site.earlier() == before
    site.delete(site.owned())
    assert site.earlier() == before
    site.apply()
    assert len([name for kind, name in site.owned() if kind is Kind.STATEFUL_SET]) == 3
    plain = {each.table_name: each.shards for each in CubeConf.from_text(site.cube_conf()).tables}
    assert plain == {"embedding": 2, "embedding@1": 1, "embedding@2": 2}  # readers without a pin stay where they were
    site.publish({"embedding": 1})
    site.retire(before)
    site.publish()
    assert site.earlier() == []
    plain = {each.table_name: each.shards for each in CubeConf.from_text(site.cube_conf()).tables}
    assert plain == {"embedding": 1, "embedding@1": 1}
    site.delete(site.owned(everything=True))


@pytest.mark.cluster
def test_what_the_guide_allows_is_enough_to_wait_for_volumes_to_go(cluster):
    """A claim stays for as long as a pod uses it: who may not watch it cannot wait for that."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": labels("cube", "claimed"), "finalizers": ["cloudedge.io/test"]},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    with account(cluster, documented_role()["rules"]) as humble:
        site = Site("claimed", section(SMALL), humble)
        cluster.apply(claim)
        going = threading.Thread(target=_let_go, args=(cluster, "data"))
        going.start()
        try:
            site.delete(site.owned(everything=True))
        finally:
            going.join()
    assert cluster.get(Kind.PVC, "data") is None


def _let_go(cluster, name):
    def is_going(found):
        return found is not None and found["metadata"].get("deletionTimestamp")

    cluster.wait(Kind.PVC, name, is_going, timeout_s=60, what="waiting for the claim to be deleted")
    time.sleep(2)  # whoever waits has begun to
    cluster.patch(Kind.PVC, name, {"metadata": {"finalizers": None}})


@pytest.mark.cluster
def test_a_namesake_is_left_alone(cluster):
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "serving-taken"}, "data": {"mine": "x"}}
    cluster.apply(mine)
    with pytest.raises(Conflict, match="is not one of target 'taken'"):
        Site("taken", section(SMALL), cluster).apply()
    assert cluster.get(Kind.CONFIG_MAP, "serving-taken")["data"] == {"mine": "x"}


@pytest.mark.cluster
def test_commands(cluster, tmp_path, monkeypatch):
    """`up --dry-run` prints what would be there and writes nothing; what was never brought up says so."""
    monkeypatch.setenv("CLOUDEDGE_CONFIG", str(tmp_path / "cloudedge.yaml"))
    target = SMALL | {"kubeconfig": kubeconfig(), "namespace": cluster.namespace}
    (tmp_path / "cloudedge.yaml").write_text(yaml.safe_dump({"targets": {"dry": target}}))
    shown = CliRunner().invoke(app, ["up", "dry", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    found = list(yaml.safe_load_all(shown.stdout))
    assert [each["kind"] for each in found] == [each["kind"] for each in objects("dry", section(SMALL), FACTS)]
    assert [each["data"] for each in found if each["kind"] == "Secret"] == [{}]
    assert Site("dry", section(target), cluster).owned(everything=True) == []
    gone = CliRunner().invoke(app, ["down", "dry", "--dry-run"])
    assert (gone.exit_code, gone.stdout) == (0, "")
    with pytest.raises(NotFound, match="is not in namespace") as away:
        Target.load("dry")
    assert "cloudedge up dry" in away.value.hint
