"""All images built for real, pushed to a real registry and run from there as pods. Slow: CLOUDEDGE_TEST_DOCKER=1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request

import pytest

from cloudedge.hub import LocalHub
from cloudedge.images import KINDS, local_name
from cloudedge.kube import Kind
from tests.hub.registry.servers import HTPASSWD, PASSWORD, USER, registry
from tests.images.built_images import ROOT, base, built, engine, needs_docker, tag, wheelhouse
from tests.kube.real_cluster import lab

pytestmark = [needs_docker, pytest.mark.timeout(1800)]


def cloudedge(*arguments, fails=False, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "cloudedge", "image", *map(str, arguments)],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(scope="module")
def pushed(host):
    """Push an image and return the name to pin it by; each once."""
    known = {}

    def push(kind):
        if kind not in known:
            built(kind)
            (row,) = json.loads(cloudedge("push", kind, "--registry", f"{host}/lab", "--tag", tag(kind), "--json"))
            known[kind] = row["pinned"]
        return known[kind]

    yield push
    client = engine()
    for image in client.images.list():
        for name in image.tags:
            if name.startswith(f"{host}/"):
                client.images.remove(name)


@pytest.mark.parts
def test_an_image_is_built_pushed_and_listed(kind, pushed, host):
    image = built(kind)
    pinned = pushed(kind)
    assert pinned.startswith(f"{host}/lab/cloudedge-{kind}@sha256:")
    rows = {row["image"]: row for row in json.loads(cloudedge("list", "--json"))}
    ours, there = rows[image], rows[f"{host}/lab/{image}"]
    assert ours["kind"] == there["kind"] == kind
    assert ours["id"] == there["id"]
    assert there["pinned"] == pinned
    name, _, digest = pinned.removeprefix(f"{host}/").partition("@")
    request = urllib.request.Request(
        f"http://{host}/v2/{name}/manifests/{digest}",
        headers={"Accept": "application/vnd.docker.distribution.manifest.v2+json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["config"]["digest"] == ours["id"]


@pytest.mark.parts
def test_building_again_changes_nothing(kind):
    """The engine takes every step from its cache."""
    image = built(kind)
    options = ["--base", base(kind), "--wheelhouse", wheelhouse(kind), "--tag", tag(kind), "--json"]
    (row,) = json.loads(cloudedge("build", kind, *options))
    assert row["id"] == engine().images.get(image).id


@pytest.mark.parts
def test_an_image_is_nobodys_root_and_has_no_installer(kind):
    run = engine().containers.run
    python = "/opt/serving/bin/python" if kind == "paddle-serving" else "/opt/cloudedge/bin/python"
    code = (
        "import os, importlib.util; print(os.getuid(), importlib.util.find_spec('pip'), os.path.exists('/wheelhouse'))"
    )
    said = run(built(kind), ["-c", code], entrypoint=[python], remove=True, cap_drop=["ALL"], network_mode="none")
    assert said.decode().strip() == "10001 None False"


@pytest.mark.parts
def test_the_dockerfiles_come_with_the_package():
    said = engine().containers.run(
        built("cube"), ["image", "build", "all", "--dry-run"], entrypoint=["cloudedge"], remove=True
    )
    assert said.decode().count("/site-packages/cloudedge/images/dockerfiles/") >= len(KINDS)


@pytest.mark.parts
def test_a_base_that_is_not_there():
    said = cloudedge("build", "cube", "--base", "127.0.0.1:1/no-such-base", "--tag", "never", fails=True)
    assert "the base image 127.0.0.1:1/no-such-base is missing" in said
    assert "--base" in said


@pytest.mark.parts
def test_pushing_what_is_not_there():
    said = cloudedge("push", "cube", "--registry", "127.0.0.1:1", "--tag", "never", fails=True)
    assert "the engine does not have it" in said
    assert "cloudedge image build cube" in said


@pytest.mark.parts
def test_a_registry_that_is_not_there(host):
    built("cube")
    said = cloudedge("push", "cube", "--registry", "127.0.0.1:1", "--tag", tag("cube"), fails=True)
    assert "the registry at 127.0.0.1:1 runs" in said
    engine().images.remove(f"127.0.0.1:1/{local_name('cube', tag('cube'))}")


@pytest.mark.parts
def test_a_registry_that_wants_to_know_who_asks(tmp_path):
    built("cube")
    (tmp_path / "users").write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "lab", "path": str(tmp_path / "users")}}
    options = ["push", "cube", "--tag", tag("cube"), "--json"]
    with registry(tmp_path / "registry", auth=auth) as host:
        name = f"{host}/{local_name('cube', tag('cube'))}"
        try:
            said = cloudedge(*options, "--registry", host, fails=True, DOCKER_CONFIG=str(tmp_path / "none"))
            assert f"docker login {host}" in said
            login = {"HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path / "docker")}
            subprocess.run(
                ["docker", "login", "--username", USER, "--password-stdin", host],
                input=PASSWORD, text=True, check=True, capture_output=True, env=os.environ | login,
            )  # fmt: skip
            assert "sha256:" in cloudedge(*options, "--registry", host, **login)
        finally:
            engine().images.remove(name)


def pod(image, **container):
    """Describe a pod that a careful cluster would take: no root, nothing to write to but /tmp and its data."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "Always",
                    "securityContext": {
                        "runAsNonRoot": True,
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
            "securityContext": {"runAsUser": 10001, "fsGroup": 10001},
            "terminationGracePeriodSeconds": 20,
        },
    }


def is_ready(found):
    statuses = ((found or {}).get("status") or {}).get("containerStatuses") or []
    return bool(statuses) and all(each["ready"] for each in statuses)


@pytest.mark.cluster
def test_a_pushed_replica_answers_as_a_pod(pushed, tmp_path_factory):
    """The cluster pulls it from the registry by its digest; its model is a bundle on a volume."""
    pytest.importorskip("paddle")
    from tests.serving.models import pack_marked  # noqa: PLC0415 - paddle is heavy

    folder = tmp_path_factory.mktemp("hub")
    for path in (folder, *list(folder.parents)[:2]):
        path.chmod(0o755)  # the pod's user is nobody here
    bundle = pack_marked(folder / "model", LocalHub(folder / "hub"), 4.0)
    mount = {"name": "models", "mountPath": "/models", "readOnly": True}
    described = pod(
        pushed("serving"),
        args=[f"marked:{bundle.version}", "--hub", "/models", "--host", "0.0.0.0", "--open", "--port", "9393"],
        readinessProbe={"httpGet": {"path": "/readyz", "port": 9393}, "periodSeconds": 1, "timeoutSeconds": 10},
        volumeMounts=[mount, {"name": "tmp", "mountPath": "/tmp"}],
    )
    described["spec"]["volumes"] = [
        {"name": "models", "hostPath": {"path": str(folder / "hub")}},
        {"name": "tmp", "emptyDir": {}},
    ]
    with lab("queues", with_pods=True) as cluster:
        cluster.apply(described)
        cluster.wait(Kind.POD, "one", is_ready, timeout_s=600, what="starting a replica", pods="")
        with cluster.port_forward("one", 9393) as port:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/predict", json.dumps({"inputs": {"x": [[1.0, 2.0]]}}).encode()
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.load(answer)["outputs"]["y"] == [[5.0, 6.0]]
        cluster.delete(Kind.POD, "one", wait_s=300)
