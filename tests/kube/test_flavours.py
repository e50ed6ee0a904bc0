"""Which operator a cluster has, when several define almost the same."""

import json
import subprocess
import sys

import pytest

from cloudedge.errors import NotFound
from cloudedge.kube import PADDLE_SERVICES, Capabilities, Cluster, Kind
from tests.kube.fault_proxy import forward, says, status
from tests.kube.real_cluster import account, definition, eventually, kubeconfig

JOB, SETS, CLOUD = Kind.PADDLE_JOB, Kind.SAMPLE_SET, PADDLE_SERVICES[1]
FLAVOURS = {
    "no jobs": ({SETS, CLOUD}, True, None),
    "paddle-operator": ({JOB}, False, "operator"),
    "paddle-operator, and sample sets of somebody else": ({JOB, SETS, CLOUD}, False, "operator"),
    "the branch with sample sets": ({JOB, SETS}, True, "sampleset"),
    "the branch, and ElasticServing": ({JOB, SETS, PADDLE_SERVICES[0]}, True, "sampleset"),
    "PaddleCloud": ({JOB, SETS, CLOUD}, True, "paddlecloud"),
    "nothing can be read": ({JOB}, None, "operator"),
    "nothing can be read, but there are sample sets": ({JOB, SETS, CLOUD}, None, "paddlecloud"),
}


@pytest.mark.rules
@pytest.mark.parametrize("name", FLAVOURS)
def test_flavours(name):
    kinds, sample_set_ref, flavour = FLAVOURS[name]
    can = Capabilities("v1", (1, 30), kinds=frozenset(kinds), sample_set_ref=sample_set_ref)
    assert can.paddle_flavour == flavour


@pytest.mark.cluster
def test_who_may_not_read_definitions_reads_the_servers_schema(cluster):
    with account(cluster, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]) as limited:
        # The schema follows the definitions after a while.
        eventually(lambda: limited.capabilities(again=True).sample_set_ref is not None)
        assert limited.capabilities().sample_set_ref is True


@pytest.mark.cluster
@pytest.mark.parametrize(("file", "answer"), [("operator-0.3.5", False), ("paddlecloud-0.4", True)])
def test_the_schema_of_newer_servers(shaky, file, answer):
    """What a server from 1.24 on says, from the same definition."""
    server, client = shaky
    found = definition(f"paddlejobs.batch.paddlepaddle.org.{file}")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    own = {"group": JOB.group, "version": JOB.version, "kind": JOB.kind}
    schemas = {"other": {"properties": {}}, "job": found | {"x-kubernetes-group-version-kind": [own]}}
    answers = {
        Kind.CRD.path(name=f"{JOB.plural}.{JOB.group}"): status(403, "Forbidden"),
        f"/openapi/v3/apis/{JOB.api_version}": says({"components": {"schemas": schemas}}),
    }
    server.choose = lambda _, path: answers.get(path, forward)
    assert client.capabilities().sample_set_ref is answer


@pytest.mark.cluster
def test_a_kind_that_comes_to_a_group_later_is_found(shaky):
    server, client = shaky
    there = [{"name": "firsts", "kind": "First", "namespaced": True}]
    server.choose = lambda _, path: says({"resources": there}) if path == "/apis/young.example/v1" else forward
    assert client.served("First", ["young.example/v1"]).plural == "firsts"
    with pytest.raises(NotFound, match="has no Second"):
        client.served("Second", ["young.example/v1"])
    there.append({"name": "seconds", "kind": "Second", "namespaced": True})
    assert client.served("Second", ["young.example/v1"]).plural == "seconds"


@pytest.mark.cluster
def test_somebody_may_know_better_where_paddle_services_are(cluster, tmp_path):
    assert cluster.capabilities().paddle_service == PADDLE_SERVICES[0]
    with Cluster.connect(kubeconfig=kubeconfig(), paddle_service_group=CLOUD.group) as client:
        assert client.capabilities().paddle_service == CLOUD
    with Cluster.connect(kubeconfig=kubeconfig(), paddle_service_group="nobody.example") as client:
        assert client.capabilities().paddle_service is None
    config = tmp_path / "cloudedge.yaml"
    target = {"kind": "kubernetes", "kubeconfig": kubeconfig(), "paddle_service_group": CLOUD.group}
    config.write_text(json.dumps({"targets": {"prod": target}}))
    doctor = [sys.executable, "-m", "cloudedge", "doctor", "--target", "prod", "--json"]
    done = subprocess.run(doctor, env={"CLOUDEDGE_CONFIG": str(config)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    notes = {each["name"]: each["note"] for each in json.loads(done.stdout)["components"]}
    assert f"group {CLOUD.group}" in notes["PaddleService"]
