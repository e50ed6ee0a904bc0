"""The objects of a target: written as they should be, refused where something is missing, and taken by a real server.

CLOUDEDGE_WRITE_GOLDEN=1 writes the golden files anew; the difference is then for review.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from cloudedge.cli import app
from cloudedge.config import Config, CubePods, ServingPods, TargetConfig
from cloudedge.cube import CubeConf
from cloudedge.errors import ConfigError, Conflict, NotFound, Rejected
from cloudedge.kube import FIELD_MANAGER, Kind
from cloudedge.release import Target
from cloudedge.release.kubernetes import Facts, objects
from cloudedge.release.kubernetes._cluster_state import Site
from cloudedge.release.kubernetes._names import Part, labels, named
from cloudedge.release.kubernetes._reach import is_direct
from cloudedge.release.kubernetes._resources import _bytes, pod_resources
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
            "data_from": [{"pod_labels": {"app": "ranker"}, "namespace_labels": {"team": "ads"}}],
        },
        "serving": {
            "image": "registry.example/serving:1",
            "hub": {"url": "s3://models/prod", "region": "eu", "access_key": "ada", "secret_key": "env:HUB_KEY"},
            "hub_secret": "hub-login",
            "requests": {"cpu": "500m"},
            "ingress_host": "ctr.example",
            "ingress_class": "nginx",
            "version_size": "2GiB",
            "data_from": [{"namespace_labels": {"kubernetes.io/metadata.name": "ingress"}}, {"cidr": "10.9.0.0/16"}],
        },
        "admin_from": [{"pod_labels": {"app": "prometheus"}, "namespace_labels": {}}],
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
        for probe in (container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")):
            assert probe["httpGet"]["port"] == "admin"  # not the port that strangers reach
            assert probe["timeoutSeconds"] >= 5
        assert container["livenessProbe"]["periodSeconds"] * container["livenessProbe"]["failureThreshold"] >= 60
        drain = next(float(each.partition("=")[2]) for each in container["args"] if each.startswith("--drain-s="))
        notice = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "0"])[1]
        assert pod["terminationGracePeriodSeconds"] > drain + float(notice)
        assert "the token" not in str(each)


def policies(value, **facts):
    found = objects("prod", section(value), replace(FACTS, **facts))
    return {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "NetworkPolicy"}


def admitted(spec, port):
    """List who reaches a port: None stands for anyone."""
    rules = [
        rule
        for rule in spec["ingress"]
        if port in [each["port"] for each in rule.get("ports", [])] or not rule.get("ports")
    ]
    return [peer for rule in rules for peer in rule.get("from", [None])]


@pytest.mark.rules
def test_other_pods_reach_no_admin_port():
    cube, serving = policies(SMALL)["cube-prod"], policies(SMALL)["serving-prod"]
    assert admitted(cube, 8028) == admitted(serving, 9394) == []
    assert admitted(cube, 8027) == [{"podSelector": {"matchLabels": labels("serving", "prod")}}]
    assert admitted(serving, 9393) == [None]
    assert cube["policyTypes"] == serving["policyTypes"] == ["Ingress"]


@pytest.mark.rules
def test_policies_select_the_pods_of_every_part():
    found = objects("prod", section(SMALL), FACTS)
    for each in (each for each in found if each["kind"] in ("StatefulSet", "Deployment")):
        own = each["spec"]["template"]["metadata"]["labels"]
        assert any(spec["podSelector"]["matchLabels"].items() <= own.items() for spec in policies(SMALL).values())
    kinds = [each["kind"] for each in found]
    assert max(i for i, kind in enumerate(kinds) if kind == "NetworkPolicy") < kinds.index("StatefulSet")


@pytest.mark.rules
def test_a_cloudedge_in_the_cluster_reaches_the_pods_it_releases_to():
    """Policies hold for it: it is a pod too. Which one, only cloudedge.yaml can say; else the namespace is taken."""
    for spec, port in zip(policies(SMALL, direct=True).values(), (8028, 9394), strict=True):
        assert admitted(spec, port) == [{"podSelector": {}}]
    named_one = SMALL | {"pods": SMALL["pods"] | {"admin_from": [{"pod_labels": {"app": "releaser"}}]}}
    for spec, port in zip(policies(named_one, direct=True).values(), (8028, 9394), strict=True):
        assert admitted(spec, port) == [{"podSelector": {"matchLabels": {"app": "releaser"}}}]


@pytest.mark.rules
def test_shards_without_serving_are_read_by_their_namespace():
    assert admitted(policies({**SMALL, "dense": None})["cube-prod"], 8027) == [{"podSelector": {}}]


@pytest.mark.rules
def test_knative_keeps_its_way_to_the_pods():
    knative = SMALL | {"pods": SMALL["pods"] | {"serving": SMALL["pods"]["serving"] | {"knative": {}}}}
    found = policies(knative)
    assert found["serving-prod"]["podSelector"]["matchLabels"] == {"PaddleService": "serving-prod"}
    assert admitted(found["serving-prod"], 8012) == [None]
    assert admitted(found["serving-prod"], 9394) == []
    assert admitted(found["cube-prod"], 8027) == [{"podSelector": {"matchLabels": {"PaddleService": "serving-prod"}}}]


@pytest.mark.rules
def test_policies_can_be_left_to_others():
    assert policies(SMALL | {"pods": SMALL["pods"] | {"network_policies": False}}) == {}


@pytest.mark.rules
@pytest.mark.parametrize("peer", [{}, {"cidr": "10.0.0.1/8"}, {"cidr": "10.0.0.0/8", "pod_labels": {"a": "b"}}])
def test_a_peer_names_one_thing(peer):
    with pytest.raises(ValueError, match="admin_from"):
        Config.model_validate({"targets": {"prod": SMALL | {"pods": {"admin_from": [peer]}}}})


def resources(component="cube", **settings):
    pods = {"cube": CubePods, "serving": ServingPods}[component].model_validate({"image": "x", **settings})
    return pod_resources(component, pods)


@pytest.mark.rules
def test_a_memory_limit_takes_what_a_plan_reckons_with():
    """Beside the live version, a plan wants room for twice the next one."""
    size = 4 << 30
    limit = int(resources(version_size=size)["limits"]["memory"].removesuffix("Mi")) << 20
    assert limit > size + 2 * size
    asked = int(resources(version_size=size)["requests"]["memory"].removesuffix("Mi")) << 20
    assert size < asked < limit


@pytest.mark.rules
@pytest.mark.parametrize("component", ["cube", "serving"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"requests": {"memory": "16Gi", "ephemeral-storage": "40Gi"}},
        {"limits": {"memory": "100M", "ephemeral-storage": "1M"}},
        {"version_size": "8GiB", "limits": {"memory": "1Gi"}},
        {"storage": "1Ti"},
    ],
)
def test_no_request_exceeds_its_limit(component, settings):
    found = resources(component, **settings)
    for name in ("memory", "ephemeral-storage"):
        assert _bytes(found["requests"][name]) <= _bytes(found["limits"][name])
        for part in ("requests", "limits"):
            assert found[part][name] == settings.get(part, {}).get(name, found[part][name])
    assert "cpu" in found["requests"]
    assert "cpu" not in found["limits"]


@pytest.mark.rules
def test_defaults_can_be_taken_away():
    found = resources(limits={"memory": "none", "ephemeral-storage": "none"}, requests={"cpu": "none"})
    assert "limits" not in found
    assert "cpu" not in found["requests"]
    assert resources(limits={"cpu": "2"})["limits"]["cpu"] == "2"
    assert "cpu" not in resources(limits={"cpu": "2"})["requests"]
    with pytest.raises(ConfigError, match="no number of bytes"):
        resources(limits={"memory": "1Xi"})


@pytest.mark.rules
def test_pods_that_had_no_limit_get_none_unasked():
    """They may hold more than a default allows, and would be killed by an `up` of a newer cloudedge."""
    names = ("cube-prod-embedding-0of2", "serving-prod")
    found = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in objects("prod", section(SMALL), replace(FACTS, unlimited=names))
        if each["kind"] in ("StatefulSet", "Deployment")
    }
    for name, pod in found.items():
        is_limited = name not in names
        assert ("limits" in pod["containers"][0]["resources"]) is is_limited
        assert all(
            ("sizeLimit" in volume.get("emptyDir", {"sizeLimit": 0})) is is_limited
            for volume in pod["volumes"]
            if "emptyDir" in volume
        )


def _carries(found, key, value):
    return key in found and value in ("", found[key])


class HumbleCluster:
    """A cluster whose Role may lack the right to NetworkPolicies; it keeps what is applied."""

    namespace, address = "ads", "https://cluster.example"

    def __init__(self, *, allows_policies=False):
        self.applied = {}
        self._allows_policies = allows_policies

    def capabilities(self):
        return SimpleNamespace(version=(1, 34))

    def kind_of(self, obj):
        group, _, version = obj["apiVersion"].rpartition("/")
        return Kind(group, version, f"{obj['kind'].lower()}s", obj["kind"])

    def get(self, kind, name):
        self._require(kind)
        return self.applied.get((kind.kind, name))

    def list(self, kind, *, selector=""):
        self._require(kind)
        wanted = dict(each.partition("=")[::2] for each in selector.split(","))
        return [
            each
            for (of, _), each in self.applied.items()
            if of == kind.kind and all(_carries(each["metadata"]["labels"], *pair) for pair in wanted.items())
        ]

    def apply(self, obj):
        self._require(self.kind_of(obj))
        spec = {"clusterIP": "10.0.0.1"} | obj.get("spec", {}) if obj["kind"] == "Service" else obj.get("spec")
        self.applied[obj["kind"], obj["metadata"]["name"]] = {**obj, "spec": spec}

    def delete(self, kind, name, **_):
        del self.applied[kind.kind, name]

    def close(self):
        pass

    def _require(self, kind):
        if kind.kind == "NetworkPolicy" and not self._allows_policies:
            raise Rejected("networkpolicies is forbidden.", status=403)


@pytest.mark.rules
def test_a_role_without_policies_is_named_and_the_pods_still_start():
    cluster = HumbleCluster()
    site = Site("prod", section(SMALL), cluster)
    site.apply()
    assert [each for each in site.notices if "serving-prod" in each and "networkpolicies to the Role" in each]
    assert {"StatefulSet", "Deployment"} <= {kind for kind, _ in cluster.applied}
    assert {kind.kind for kind, _ in site.owned()} == {"StatefulSet", "Deployment", "PodDisruptionBudget"}


@pytest.mark.rules
def test_policies_that_are_no_longer_wanted_go():
    cluster = HumbleCluster(allows_policies=True)
    site = Site("prod", section(SMALL), cluster)
    site.apply()
    assert site.notices == []
    assert ("NetworkPolicy", "cube-prod") in cluster.applied
    assert "NetworkPolicy" in {kind.kind for kind, _ in site.owned()}  # `down` deletes them
    Site("prod", section(SMALL | {"pods": SMALL["pods"] | {"network_policies": False}}), cluster).apply()
    assert "NetworkPolicy" not in {kind for kind, _ in cluster.applied}


@pytest.mark.rules
def test_up_leaves_pods_without_limits_as_they_are_and_says_so():
    cluster = HumbleCluster()
    policies = {"pods": SMALL["pods"] | {"network_policies": False}}
    site = Site("prod", section(SMALL | policies), cluster)
    site.apply()
    assert site.notices == []
    container = cluster.applied["Deployment", "serving-prod"]["spec"]["template"]["spec"]["containers"][0]
    del container["resources"]["limits"]
    site.apply()
    assert len(site.notices) == 1
    assert "serving-prod" in site.notices[0]
    assert "cube" not in site.notices[0].partition(".")[0]
    container = cluster.applied["Deployment", "serving-prod"]["spec"]["template"]["spec"]["containers"][0]
    assert "limits" not in container["resources"]


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
def test_a_role_without_policies_is_enough_for_everything_else(cluster):
    rules = [
        rule | {"resources": [each for each in rule["resources"] if each != "networkpolicies"]}
        for rule in documented_role()["rules"]
    ]
    with account(cluster, rules) as humble:
        site = Site("lacking", section(SMALL), humble)
        site.apply()
        assert len(site.notices) == 2
        assert all("networkpolicies" in each for each in site.notices)
        site.delete(site.owned(everything=True))


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
