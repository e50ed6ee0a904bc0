"""A real BAETYL node, under the real baetyl-cloud: of a release in content-named configs it fetches only what is new.

Its core runs in native mode and finds no program to start in our app, which is what it then reports; by then it has
downloaded what the app mounts, and that is what counts here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time

import pytest
import requests

from cloudedge.edge_bie.lab import Lab
from cloudedge.edge_bie.model._names import blob_config
from tests.edge_bie.lab.transcript import app
from tests.edge_bie.real.cloud import TOOLS, free_ports, real_cloud

pytestmark = pytest.mark.parts

LARGE, SMALL = 500_000, 2_000
CLIENT = "127.0.0.1"


@pytest.fixture
def cloud(tmp_path):
    if not (TOOLS / "baetyl").exists():
        pytest.skip("not here: baetyl (tests/edge_bie/real/install_edge builds it with Go)")
    (tmp_path / "cloud").mkdir()
    with real_cloud(tmp_path / "cloud", tls=True) as running:
        yield running


def good(cloud, method, path, body=None):
    answer = requests.request(method, cloud.admin_url + path, json=body, timeout=10)
    assert answer.ok, answer.text
    return answer.json()


def start_node(cloud, folder, name):
    """Start a node's core with the certificate that the control plane made for it."""
    good(cloud, "POST", "/v1/nodes", {"name": name})
    mine = f"/v1/secrets?selector=baetyl-cloud-system%3Dtrue,baetyl-node-name%3D{name}"
    secret = good(cloud, "GET", mine)["items"][0]["name"]
    (folder / "node").mkdir(parents=True)
    for key, value in good(cloud, "GET", f"/v1/secrets/{secret}")["data"].items():
        (folder / "node" / key).write_text(value)
    (folder / "etc/baetyl").mkdir(parents=True)
    (folder / "etc/baetyl/conf.yml").write_text(
        f"""
node: {{ca: node/ca.pem, key: node/client.key, cert: node/client.pem}}
httplink: {{address: "{cloud.sync_url}", insecureSkipVerify: true}}
sync: {{report: {{interval: 1s}}, download: {{path: lib/object, timeout: 30m}}}}
engine: {{report: {{interval: 1s}}}}
store: {{path: store/core.db}}
server: {{address: "127.0.0.1:{free_ports(1)[0]}"}}
""",
        encoding="utf-8",
    )
    environment = {
        **os.environ,
        "BAETYL_RUN_MODE": "native",
        "BAETYL_SERVICE_NAME": "baetyl-core",
        "BAETYL_APP_NAME": "baetyl-core",
        "BAETYL_HOST_PATH_LIB": str(folder / "lib"),
        "KUBE_NODE_NAME": name,
    }
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([TOOLS / "baetyl", "core"], cwd=folder, env=environment, stdout=log, stderr=log)


def publish(cloud, lab, data):
    digest = hashlib.sha256(data).hexdigest()
    (lab.objects / digest).write_bytes(data)
    value = {"type": "object", "source": "http", "url": f"{lab.objects_url}/{digest}"}
    value["md5"] = hashlib.md5(data).hexdigest()
    name = blob_config("model", digest)
    good(cloud, "POST", "/v1/configs", {"name": name, "data": [{"key": f"sha256-{digest}", "value": value}]})
    return name


def wait(what, seconds=60):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_real_node_fetches_only_what_is_new(cloud, tmp_path):
    with Lab(tmp_path / "lab") as lab:
        base, old, new = (publish(cloud, lab, os.urandom(size)) for size in (LARGE, SMALL, SMALL + 1))
        for revision, blobs in (("r1", [base, old]), ("r2", [base, new])):
            volumes = [{"name": name, "config": {"name": name}} for name in blobs]
            good(cloud, "POST", "/v1/apps", app(f"serving-{revision}", selector=f"rev={revision}", volumes=volumes))
        node = start_node(cloud, tmp_path / "edge", "edge-1")
        try:
            fetched = []
            for revision, expected in (
                ("r1", LARGE + SMALL),
                ("r2", LARGE + 2 * SMALL + 1),
                ("r1", LARGE + 2 * SMALL + 1),
            ):
                good(cloud, "PUT", "/v1/nodes/edge-1", {"labels": {"rev": revision}})
                kept = f'"name":"serving-{revision}"'
                seen = (tmp_path / "edge/log").read_text().count(kept)

                def tried(seen=seen, kept=kept):
                    return (tmp_path / "edge/log").read_text().count(kept) > seen + 2  # several cycles with this one

                wait(lambda expected=expected, tried=tried: lab.traffic().get(CLIENT, 0) >= expected and tried())
                fetched.append(lab.traffic()[CLIENT])
            assert fetched == [LARGE + SMALL, LARGE + 2 * SMALL + 1, LARGE + 2 * SMALL + 1]
            found = sorted(path.name for path in (tmp_path / "edge/lib/object").iterdir())
            assert found == sorted([base, old, new])
        finally:
            node.kill()
            node.wait()
