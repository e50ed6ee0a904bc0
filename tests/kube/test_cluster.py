"""Against a real API server with upstream's definitions: what is written is what is there, or an error says why."""

import json
import re
import secrets
import shutil
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from cloudedge import errors
from cloudedge.kube import FIELD_MANAGER, PADDLE_SERVICES, Cluster, Kind, schema_has
from tests.kube.fault_proxy import forward, forward_then_reset
from tests.kube.real_cluster import definition, kubeconfig

CONTAINER = {"name": "paddle", "image": "paddle:3", "resources": {"requests": {"cpu": "1000m"}}}
ROLE = {"replicas": 1, "template": {"spec": {"containers": [CONTAINER]}}}


def name():
    return f"t-{secrets.token_hex(4)}"


def config_map(called, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": called}, "data": data}


def paddle_job(called, **spec):
    metadata = {"name": called}
    return {"apiVersion": "batch.paddlepaddle.org/v1", "kind": "PaddleJob", "metadata": metadata, "spec": spec}


@pytest.mark.cluster
def test_what_a_cluster_can_do(cluster):
    found = cluster.capabilities(again=True)
    assert found.has(Kind.PADDLE_JOB, Kind.SAMPLE_SET, Kind.SAMPLE_JOB, Kind.VOLCANO_JOB, Kind.POD_GROUP, Kind.QUEUE)
    assert found.has(Kind.KNATIVE_SERVICE)
    assert found.paddle_service == PADDLE_SERVICES[0]
    assert found.paddle_flavour == "paddlecloud"
    assert found.version >= (1, 20)
    assert not Kind.QUEUE.namespaced


@pytest.mark.rules
def test_which_definition_knows_sample_sets():
    files = ("operator-0.3.5", "paddlecloud-0.4")
    found = [definition(f"paddlejobs.batch.paddlepaddle.org.{file}") for file in files]
    assert [schema_has(each, "v1", "spec", "sampleSetRef") for each in found] == [False, True]
    assert not schema_has(found[1], "v2", "spec", "sampleSetRef")


@pytest.mark.cluster
def test_applying_twice_changes_nothing(cluster):
    job = paddle_job(name(), cleanPodPolicy="Always", worker=ROLE, elastic=0)
    first, second = cluster.apply(job), cluster.apply(job)
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    assert first["metadata"]["namespace"] == cluster.namespace
    assert {each["manager"] for each in first["metadata"]["managedFields"]} == {FIELD_MANAGER}


@pytest.mark.cluster
def test_a_dry_run_changes_nothing(cluster):
    called = name()
    assert cluster.apply(config_map(called, x="1"), dry_run=True)["data"] == {"x": "1"}
    assert cluster.create(config_map(called, x="1"), dry_run=True)["data"] == {"x": "1"}
    assert cluster.get(Kind.CONFIG_MAP, called) is None


LOST = {
    "a typing error in a custom resource": (
        paddle_job("lost", cleanPolicy="Always", worker=ROLE),
        ["spec.cleanPolicy"],
    ),
    "deep in its pod template": (
        paddle_job("lost", worker={"replicas": 1, "template": {"spec": {"containers": [CONTAINER | {"imagee": ""}]}}}),
        ["spec.worker.template.spec.containers[0].imagee"],
    ),
    "a schedule on a sample job": (
        {
            "apiVersion": "batch.paddlepaddle.org/v1alpha1",
            "kind": "SampleJob",
            "metadata": {"name": "lost"},
            "spec": {"type": "warmup", "schedule": "* * * * *"},
        },
        ["spec.schedule"],
    ),
    "a kind of the server's own": (config_map("lost") | {"dataa": {"x": "1"}}, ["dataa"]),
}


@pytest.mark.cluster
@pytest.mark.parametrize("case", LOST)
@pytest.mark.parametrize("how", ["apply", "create"])
def test_no_field_is_dropped_silently(case, how, cluster):
    obj, fields = LOST[case]
    with pytest.raises(errors.InputError) as caught:
        getattr(cluster, how)(obj)
    assert caught.value.fields == fields
    assert cluster.get(cluster.kind_of(obj), "lost") is None


@pytest.mark.cluster
def test_a_patch_that_would_lose_a_field_changes_nothing(cluster):
    called = name()
    cluster.apply(paddle_job(called, worker=ROLE))
    with pytest.raises(errors.InputError) as caught:
        cluster.patch(Kind.PADDLE_JOB, called, {"spec": {"withGloo": 1, "withGlue": 1}})
    assert caught.value.fields == ["spec.withGlue"]
    assert "withGloo" not in cluster.get(Kind.PADDLE_JOB, called)["spec"]


@pytest.mark.cluster
def test_null_removes_a_field(cluster):
    called = name()
    endpoint = {"containerImage": "a", "tag": "1", "port": 80}
    kind = PADDLE_SERVICES[0]
    service = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": called}}
    cluster.apply(service | {"spec": {"default": endpoint, "canary": endpoint, "canaryTrafficPercent": 20}})
    found = cluster.patch(kind, called, {"spec": {"canary": None, "canaryTrafficPercent": None}})
    assert set(found["spec"]) == {"default"}


@pytest.mark.cluster
def test_a_field_that_somebody_else_manages_is_not_taken(cluster):
    called = name()
    cluster.create(config_map(called, x="theirs"))  # a create is not an apply: the field has another owner
    with pytest.raises(errors.Conflict) as caught:
        cluster.apply(config_map(called, x="ours"))
    assert caught.value.fields == [".data.x"]
    assert cluster.get(Kind.CONFIG_MAP, called)["data"] == {"x": "theirs"}
    assert cluster.apply(config_map(called, x="ours"), force=True)["data"] == {"x": "ours"}


@pytest.mark.cluster
def test_creating_what_exists(cluster):
    called = name()
    cluster.create(config_map(called))
    with pytest.raises(errors.Conflict) as caught:
        cluster.create(config_map(called))
    assert caught.value.reason == "AlreadyExists"


@pytest.mark.cluster
def test_an_invalid_object_names_its_fields(cluster):
    with pytest.raises(errors.InputError) as caught:
        cluster.apply(config_map("Not A Name"))
    assert caught.value.fields == ["metadata.name"]
    sample_set = {"apiVersion": "batch.paddlepaddle.org/v1alpha1", "kind": "SampleSet"}
    with pytest.raises(errors.InputError) as caught:
        cluster.apply(sample_set | {"metadata": {"name": name()}, "spec": {"partitions": 0}})
    assert caught.value.fields == ["spec.partitions"]


@pytest.mark.cluster
def test_nobody_may_do_nothing(cluster, tmp_path):
    config = yaml.safe_load(Path(kubeconfig()).read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {}}]
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    with Cluster.connect(kubeconfig=tmp_path / "config") as nobody, pytest.raises(errors.Rejected) as caught:
        nobody.get(Kind.POD, "a")
    assert caught.value.status == 403


@pytest.mark.cluster
def test_a_namespace_that_is_not_there(cluster):
    obj = config_map(name())
    obj["metadata"]["namespace"] = "nowhere"
    with pytest.raises(errors.NotFound, match="nowhere"):
        cluster.apply(obj)


@pytest.mark.cluster
def test_a_kind_that_is_not_there(cluster):
    theirs = Kind("kubeflow.org", "v1", "paddlejobs", "PaddleJob")
    for ask in (
        lambda: cluster.apply({"apiVersion": "kubeflow.org/v1", "kind": "PaddleJob", "metadata": {"name": "a"}}),
        lambda: cluster.list(theirs),
        lambda: list(cluster.watch(theirs, timeout_s=5)),
    ):
        with pytest.raises(errors.NotFound, match=r"has no PaddleJob of kubeflow\.org/v1") as caught:
            ask()
        assert "cloudedge doctor" in caught.value.hint
    assert cluster.get(theirs, "a") is None


@pytest.mark.cluster
@pytest.mark.parametrize("obj", [{}, {"kind": "Pod"}, {"apiVersion": "v1", "kind": "Pod"}, {"metadata": {"name": "a"}}])
def test_what_is_no_object_is_not_sent(obj, cluster):
    with pytest.raises(errors.InputError):
        cluster.apply(obj)


@pytest.mark.cluster
def test_deleting_waits_until_this_one_is_gone(cluster):
    called = name()
    obj = config_map(called)
    obj["metadata"]["finalizers"] = ["cloudedge.test/held"]
    old = cluster.create(obj)["metadata"]["uid"]
    with pytest.raises(errors.DeadlineExceeded, match=r"waits for cloudedge\.test/held"):
        cluster.delete(Kind.CONFIG_MAP, called, wait_s=1)

    def release():
        cluster.patch(Kind.CONFIG_MAP, called, {"metadata": {"finalizers": None}})
        cluster.create(config_map(called, made="again"))

    later = threading.Timer(0.3, release)
    later.start()
    cluster.delete(Kind.CONFIG_MAP, called, wait_s=20)
    later.join()
    assert cluster.get(Kind.CONFIG_MAP, called)["metadata"]["uid"] != old
    cluster.delete(Kind.CONFIG_MAP, called, uid=old, wait_s=5)
    assert cluster.get(Kind.CONFIG_MAP, called)["data"] == {"made": "again"}


@pytest.mark.cluster
def test_deleting_nothing_is_done(cluster):
    cluster.delete(Kind.CONFIG_MAP, "nothing", wait_s=5)


@pytest.mark.cluster
def test_a_long_list_comes_in_pages(cluster, monkeypatch):
    monkeypatch.setattr("cloudedge.kube.api._listing._PAGE", 3)
    for index in range(8):
        obj = config_map(f"page-{index}")
        obj["metadata"]["labels"] = {"of": cluster.namespace}  # other namespaces may hold those of earlier runs
        cluster.apply(obj)
    found = cluster.list(Kind.CONFIG_MAP, selector=f"of={cluster.namespace}")
    assert [each["metadata"]["name"] for each in found] == [f"page-{index}" for index in range(8)]
    assert {each["kind"] for each in found} == {"ConfigMap"}
    assert len(cluster.list(Kind.CONFIG_MAP, selector=f"of={cluster.namespace}", everywhere=True)) == 8


@pytest.mark.cluster
def test_the_events_belong_into_the_error(cluster):
    called = name()
    job = cluster.apply(paddle_job(called, worker=ROLE))
    for uid, message in ((job["metadata"]["uid"], "sampleset nix is not exists"), ("another", "not about this one")):
        about = {"apiVersion": job["apiVersion"], "kind": "PaddleJob", "name": called, "uid": uid}
        about["namespace"] = cluster.namespace
        metadata = {"name": f"{called}.{secrets.token_hex(4)}"}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about}
        cluster.create(event | {"type": "Warning", "reason": "Create", "message": message, "count": 3})
    cluster.patch(Kind.PADDLE_JOB, called, {"status": {"phase": "Pending"}}, subresource="status")
    with pytest.raises(errors.DeadlineExceeded) as caught:
        cluster.wait(Kind.PADDLE_JOB, called, lambda _: False, timeout_s=1, what="training")
    assert caught.value.state == "phase Pending"
    assert caught.value.events == [f"Warning Create PaddleJob/{called}: sampleset nix is not exists (3 times)"]
    assert caught.value.last["metadata"]["name"] == called
    assert "sampleset nix" in str(caught.value)


@pytest.mark.cluster
def test_waiting_for_something_that_comes(cluster):
    called = name()
    later = threading.Timer(0.3, cluster.apply, [config_map(called, x="1")])
    later.start()
    found = cluster.wait(Kind.CONFIG_MAP, called, lambda now: now is not None, timeout_s=20, what="waiting")
    later.join()
    assert found["data"] == {"x": "1"}


@pytest.mark.cluster
def test_an_answer_that_was_lost(shaky, cluster):
    """The server did it and nobody heard: an apply is sent again, a create is left to the caller to look at."""
    proxy, client = shaky
    client.capabilities()
    applied, created = name(), name()
    client.apply(config_map(applied), dry_run=True)
    proxy.script = [forward, forward_then_reset]  # it pretends first, then it does it
    client.apply(config_map(applied, x="1"))
    assert cluster.get(Kind.CONFIG_MAP, applied)["data"] == {"x": "1"}
    proxy.script = [forward, forward_then_reset]
    with pytest.raises(errors.Unavailable):
        client.create(config_map(created, x="1"))
    assert client.get(Kind.CONFIG_MAP, created)["data"] == {"x": "1"}


@pytest.mark.cluster
def test_a_delete_whose_answer_was_lost_deletes_once(shaky, cluster):
    proxy, client = shaky
    called = name()
    cluster.create(config_map(called))
    proxy.script = [forward, forward_then_reset]
    client.delete(Kind.CONFIG_MAP, called)
    assert cluster.get(Kind.CONFIG_MAP, called) is None
    assert [method for method, _ in proxy.seen].count("DELETE") == 2


@pytest.mark.rules
def test_which_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(errors.ConfigError, match="no kubeconfig"):
        Cluster.connect()
    user = {"name": "u", "user": {"token": "t"}}
    contexts = [
        {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "ads"}},
        {"name": "two", "context": {"cluster": "c", "user": "u"}},
    ]
    config = {"clusters": [{"name": "c", "cluster": {"server": "https://one.example:6443"}}], "users": [user]}
    path = tmp_path / "elsewhere"
    path.write_text(yaml.safe_dump(config | {"contexts": contexts, "current-context": "one"}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    with Cluster.connect() as found:
        assert (found.address, found.namespace) == ("one.example:6443", "ads")
    (tmp_path / "copy").write_text(path.read_text())
    with Cluster.connect(kubeconfig="~/copy") as found:
        assert found.namespace == "ads"
    with Cluster.connect(context="two") as found:
        assert found.namespace == "default"
    with Cluster.connect(context="two", namespace="mine") as found:
        assert found.namespace == "mine"
    with pytest.raises(errors.ConfigError, match="three"):
        Cluster.connect(context="three")
    (tmp_path / "broken").write_text("clusters: [")
    with pytest.raises(errors.ConfigError):
        Cluster.connect(kubeconfig=tmp_path / "broken")


def credentials():
    config = yaml.safe_load(Path(kubeconfig()).read_text())
    return urlsplit(config["clusters"][0]["cluster"]["server"]), config["users"][0]["user"]["token"]


@pytest.mark.cluster
def test_inside_a_pod(cluster, tmp_path, monkeypatch):
    """What a pod is given: an address in its environment; a token, a certificate and a namespace as files."""
    server, token = credentials()
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    shown = subprocess.run(
        ["openssl", "s_client", "-showcerts", "-connect", server.netloc], input=b"", capture_output=True, check=False
    )
    certificate = "\n".join(re.findall(r"-----BEGIN C.*?-----END C[^\n]*", shown.stdout.decode(), re.DOTALL))
    for file, content in (("token", token), ("ca.crt", certificate), ("namespace", cluster.namespace)):
        (tmp_path / file).write_text(content)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", server.hostname)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    module = "kubernetes.config.incluster_config"
    monkeypatch.setattr(f"{module}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{module}.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr("cloudedge.kube.api._session._ACCOUNT", tmp_path)
    with Cluster.connect() as found:
        assert found.namespace == cluster.namespace
        assert found.apply(config_map(name(), x="1"))["data"] == {"x": "1"}


@pytest.mark.cluster
def test_a_program_that_gives_credentials(cluster, tmp_path):
    _, token = credentials()
    credential = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}
    (tmp_path / "give").write_text(json.dumps(credential | {"status": {"token": token}}))
    config = yaml.safe_load(Path(kubeconfig()).read_text())
    plugin = {"apiVersion": credential["apiVersion"], "command": "cat", "args": [str(tmp_path / "give")]}
    config["users"][0]["user"] = {"exec": plugin}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    with Cluster.connect(kubeconfig=tmp_path / "config", namespace=cluster.namespace) as found:
        assert found.list(Kind.CONFIG_MAP) is not None
