"""The image of a cube shard, built without a network and run as a pod. Takes minutes: set CLOUDEDGE_TEST_DOCKER=1."""

import json
import urllib.error
import urllib.request

import pytest

from cloudedge.kube import Kind
from tests.images.built_images import built, needs_docker
from tests.kube.real_cluster import lab

TOKEN = "a-token-for-tests"

pytestmark = [pytest.mark.cluster, needs_docker, pytest.mark.timeout(1800)]


def ask(port, path, token=""):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def probe(path):
    """Ask often, and give up late: how long a start takes says something of the machine, not of the image."""
    return {"httpGet": {"path": path, "port": 8028}, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 300}


def test_a_shard_runs_as_a_pod():
    """It lives, it is not ready before it has a version, it takes orders from those with the token, and is not root."""
    container = {
        "name": "cube",
        "image": built("cube"),
        "imagePullPolicy": "Never",
        "env": [{"name": "CLOUDEDGE_CUBE_TOKEN", "value": TOKEN}],
        "livenessProbe": probe("/health"),
        "readinessProbe": probe("/ready"),
        "securityContext": {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "containers": [container],
        "securityContext": {"runAsUser": 10001, "fsGroup": 10001},
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 20,
    }
    with lab("queues", with_pods=True) as cluster:
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shard"}, "spec": spec})

        def is_running(found):
            statuses = ((found or {}).get("status") or {}).get("containerStatuses") or []
            return any("running" in each["state"] for each in statuses)

        cluster.wait(Kind.POD, "shard", is_running, timeout_s=600, what="starting a shard", pods="")
        with cluster.port_forward("shard", 8028) as port:
            for _ in range(60):
                try:
                    code, _ = ask(port, "/health")
                    break
                except OSError:
                    cluster.clock.sleep(1)
            assert code == 200
            assert ask(port, "/ready")[0] == 503
            assert ask(port, "/versions")[0] == 401
            code, body = ask(port, "/versions", TOKEN)
            assert code == 200
            assert json.loads(body)["versions"] == []
        assert cluster.run("shard", ["id", "-u"]).stdout == b"10001\n"
        statuses = cluster.get(Kind.POD, "shard")["status"]["containerStatuses"]
        assert [(each["ready"], each["restartCount"]) for each in statuses] == [(False, 0)]
        cluster.delete(Kind.POD, "shard", wait_s=300)
