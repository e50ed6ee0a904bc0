"""What a release costs on nodes that run stock BAETYL: with content-named configs only what is new travels."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile

import pytest
import requests

from cloudedge.edge_bie.lab import Lab
from cloudedge.edge_bie.model._names import blob_config
from cloudedge.errors import Unavailable
from tests.edge_bie.lab.stock_edge import StockEdge
from tests.edge_bie.lab.transcript import app

pytestmark = pytest.mark.parts

NODE = "127.0.0.7"
LARGE, SMALL = 200_000, 2_000


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path / "lab") as running:
        good(running, "POST", "/v1/nodes", {"name": "n1"})
        yield running


@pytest.fixture
def edge(lab, tmp_path):
    return StockEdge(lab.sync_url, "n1", tmp_path / "node", address=NODE)


def good(lab, method, path, body=None):
    answer = requests.request(method, lab.admin_url + path, json=body, timeout=10)
    assert answer.ok, answer.text
    return answer.json()


def stored(lab, data, **more):
    """Put bytes where nodes download, and return the item that refers to them."""
    digest = hashlib.sha256(data).hexdigest()
    (lab.objects / digest).write_bytes(data)
    md5 = hashlib.md5(data).hexdigest()
    return {"type": "object", "source": "http", "url": f"{lab.objects_url}/{digest}", "md5": md5, **more}


def release(lab, revision, blobs):
    """Publish blobs as configs named by their content, and an app for a revision that mounts them."""
    names = []
    for data in blobs:
        digest = hashlib.sha256(data).hexdigest()
        names.append(blob_config("model", digest))
        if requests.get(f"{lab.admin_url}/v1/configs/{names[-1]}", timeout=10).status_code == 404:
            item = {"key": f"sha256-{digest}", "value": stored(lab, data)}
            good(lab, "POST", "/v1/configs", {"name": names[-1], "data": [item]})
    service = {"name": "web", "image": "i"}
    service["volumeMounts"] = [{"name": name, "mountPath": f"/blobs/{name}"} for name in names]
    volumes = [{"name": name, "config": {"name": name}} for name in names]
    good(
        lab,
        "POST",
        "/v1/apps",
        app(f"serving-{revision}", selector=f"app={revision}", services=[service], volumes=volumes),
    )


def traffic(lab):
    """Return what the node was sent since the last time."""
    found = lab.traffic().get(NODE, 0)
    requests.delete(f"{lab.admin_url}/_lab/traffic", timeout=10)
    return found


def test_only_new_blobs_travel_to_a_stock_node(lab, edge):
    base, old, new = os.urandom(LARGE), os.urandom(SMALL), os.urandom(SMALL)
    release(lab, "r1", [base, old])
    release(lab, "r2", [base, new])
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"app": "r1"}})
    edge.cycle()
    assert list(edge.running) == ["serving-r1"]
    assert traffic(lab) == LARGE + SMALL
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"app": "r2"}})
    edge.cycle()
    assert list(edge.running) == ["serving-r2"]
    assert traffic(lab) == SMALL
    # Going back moves nothing: the old blobs are where they were.
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"app": "r1"}})
    edge.cycle()
    assert list(edge.running) == ["serving-r1"]
    assert traffic(lab) == 0
    found = [file.read_bytes() for folder in edge.mounts("serving-r1").values() for file in folder.iterdir()]
    assert sorted(found) == sorted([base, old])
    edge.cycle()
    assert traffic(lab) == 0


def archive(*parts):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for number, part in enumerate(parts):
            file.writestr(f"part-{number}", part)
    return buffer.getvalue()


def test_one_config_edited_in_place_sends_everything_again(lab, edge):
    base = os.urandom(LARGE)
    packed = [archive(base, b"old"), archive(base, b"new")]
    body = [
        {"name": "model", "data": [{"key": "model.zip", "value": stored(lab, data, unpack="zip")}]} for data in packed
    ]
    good(lab, "POST", "/v1/configs", body[0])
    service = {"name": "web", "image": "i", "volumeMounts": [{"name": "model", "mountPath": "/m"}]}
    seed = app("serving", selector="a=b", services=[service], volumes=[{"name": "model", "config": {"name": "model"}}])
    good(lab, "POST", "/v1/apps", seed)
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"a": "b"}})
    edge.cycle()
    assert traffic(lab) == len(packed[0])
    good(lab, "PUT", "/v1/configs/model", body[1])
    good(lab, "PUT", "/v1/apps/serving", good(lab, "GET", "/v1/apps/serving"))  # both writes may be of one second
    edge.cycle()
    edge.cycle()
    assert traffic(lab) == len(packed[1])
    assert (edge.mounts("serving")["/m"] / "part-1").read_bytes() == b"new"
    # Only a label changed, and everything travels once more, because the folder is named by the version.
    good(lab, "PUT", "/v1/configs/model", {**body[1], "labels": {"x": "y"}})
    good(lab, "PUT", "/v1/apps/serving", good(lab, "GET", "/v1/apps/serving"))
    edge.cycle()
    assert traffic(lab) == len(packed[1])


def test_a_failed_download_begins_again_and_removes_everything(lab, edge):
    first, second = os.urandom(SMALL), os.urandom(LARGE)
    items = [{"key": "a", "value": stored(lab, first)}, {"key": "b", "value": stored(lab, second)}]
    items[1]["value"]["md5"] = "0" * 32
    good(lab, "POST", "/v1/configs", {"name": "model", "data": items})
    good(
        lab,
        "POST",
        "/v1/apps",
        app("serving", selector="a=b", volumes=[{"name": "model", "config": {"name": "model"}}]),
    )
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"a": "b"}})
    for _ in range(2):
        edge.cycle()
        assert "MD5 of config object (b) invalid" in edge.causes["serving"]
        assert traffic(lab) == SMALL + LARGE  # again and again, with every cycle
    assert not list((edge.lib / "object/model").iterdir())
    edge.cycle()
    stats = good(lab, "GET", "/v1/nodes/n1/stats")["report"]["appstats"]
    assert stats == [{"cause": edge.causes["serving"]}]


def test_power_lost_before_unpacking_is_never_repaired(lab, edge):
    data = archive(b"content")
    item = {"key": "model.zip", "value": stored(lab, data, unpack="zip")}
    version = good(lab, "POST", "/v1/configs", {"name": "model", "data": [item]})["version"]
    folder = edge.lib / "object/model" / version
    folder.mkdir(parents=True)
    (folder / "model.zip").write_bytes(data)
    good(
        lab,
        "POST",
        "/v1/apps",
        app("serving", selector="a=b", volumes=[{"name": "model", "config": {"name": "model"}}]),
    )
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"a": "b"}})
    edge.cycle()
    assert list(edge.running) == ["serving"]
    assert [file.name for file in folder.iterdir()] == ["model.zip"]


def test_braces_in_one_app_stop_every_app(lab, edge):
    good(lab, "POST", "/v1/apps", app("good", selector="a=b"))
    service = {"name": "web", "image": "i", "args": ["{{.BAETYL_NODE_NAME}}"]}
    good(lab, "POST", "/v1/apps", app("named", selector="a=b", services=[service]))
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"a": "b"}})
    edge.cycle()
    assert edge.running["named"]["services"][0]["args"] == ["n1"]
    good(lab, "POST", "/v1/apps", app("bad", selector="a=b", services=[{**service, "args": ["{{ jinja }}"]}]))
    good(lab, "DELETE", "/v1/apps/good")
    with pytest.raises(Unavailable, match="not a template"):
        edge.cycle()
    assert sorted(edge.running) == ["good", "named"]


def test_scripts_are_mounted_unless_a_file_is_with_them(lab, edge):
    text = {"type": "kv", "value": "#! /bin/sh\n"}
    good(lab, "POST", "/v1/configs", {"name": "script", "data": [{"key": "run.sh", "value": text}]})
    mixed = [{"key": "run.sh", "value": text}, {"key": "file", "value": stored(lab, b"x")}]
    good(lab, "POST", "/v1/configs", {"name": "mixed", "data": mixed})
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("script", "mixed")]
    service = {"name": "web", "image": "i", "volumeMounts": mounts}
    volumes = [{"name": name, "config": {"name": name}} for name in ("script", "mixed")]
    good(lab, "POST", "/v1/apps", app("serving", selector="a=b", services=[service], volumes=volumes))
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"a": "b"}})
    edge.cycle()
    names = {path: sorted(file.name for file in folder.iterdir()) for path, folder in edge.mounts("serving").items()}
    assert names == {"/script": ["run.sh"], "/mixed": ["file"]}


def test_a_node_in_step_is_left_alone(lab, edge):
    good(lab, "POST", "/v1/apps", app("serving", selector="a=b"))
    good(lab, "PUT", "/v1/nodes/n1", {"labels": {"a": "b"}})
    edge.cycle()
    edge.cycle()
    node = good(lab, "GET", "/v1/nodes/n1")
    assert node["report"]["apps"] == node["desire"]["apps"]
    body = edge._report()
    named = {"common-name": "baetyl-cloud.n1", "source": "baetyl-core"}
    assert requests.post(f"{lab.sync_url}/v1/sync/report", json=body, headers=named, timeout=10).json() == {}
