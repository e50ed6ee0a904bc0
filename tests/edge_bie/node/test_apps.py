"""Apps of all kinds: tables that change by rows, apps that are not ours, archives, ports, a cloud that is away."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import shutil
import socket
import ssl
import subprocess
import tarfile
import threading
import zipfile

import numpy as np
import pytest

from cloudedge.edge_bie.model._apps import AppRef, DesiredApp
from cloudedge.edge_bie.model._mounts import MountedConfig, filled_in
from cloudedge.edge_bie.node._archives import unpack_archive
from cloudedge.edge_bie.node._node_plan import plan
from cloudedge.edge_bie.node._sync import Link, merge_patch, take_delta
from cloudedge.edge_bie.node._units import Slot, Unit
from cloudedge.errors import ConfigError, InputError, StorageError, Unavailable
from tests.edge_bie.node.played_runtime import PlayedRuntime
from tests.edge_bie.node.world import free_port, make_bundle, noise, settle
from tests.models import make_table


@pytest.fixture
def played():
    runtime = PlayedRuntime()
    yield runtime
    runtime.stop()


@pytest.mark.parts
def test_one_percent_of_the_rows_is_at_most_three_percent_of_the_bytes(world, played):
    rows, dim = 20_000, 64
    table = make_table(rows=rows, dim=dim)
    v1 = make_bundle(world.hub, world.folder, 1, files={"w": noise(50_000, 1)}, sparse={"emb": table})
    changed = {name: array.copy() for name, array in table.items()}
    at = np.random.default_rng(1).choice(rows, rows // 100, replace=False)
    changed["values"][at] += 1
    v2 = make_bundle(world.hub, world.folder, 2, files={"w": noise(50_000, 1)}, sparse={"emb": changed}, parent=v1)
    agent = world.agent(runtime=played)
    world.release(v1)
    settle(agent)
    first = sum(world.lab.traffic().values())
    assert first >= v1.size_bytes
    world.release(v2)
    settle(agent)
    assert played.asks(world.port) == 2
    second = sum(world.lab.traffic().values()) - first
    whole = sum(member.size for member in v2.members())
    assert second <= 0.03 * whole
    assert agent.state.fetched == first + second
    assert agent.state.kept >= v1.size_bytes * 0.9
    agent.close()


# -- apps that are not ours ------------------------------------------------------------------------------------------


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def seed_objects(world, archive, *, md5=None, unpack="zip", script=None):
    """Write the tutorial's two configs and its app: a zip that is unpacked, a script, and a port."""
    (world.lab.objects / "model.zip").write_bytes(archive)
    value = {"type": "object", "source": "http", "url": f"{world.lab.objects_url}/model.zip", "unpack": unpack}
    value["md5"] = hashlib.md5(archive).hexdigest() if md5 is None else md5
    world.write("POST", "configs", {"name": "paddle-yolov3-model", "data": [{"key": "model.zip", "value": value}]})
    run = script or (
        "#! /usr/bin/env bash\n"
        'cd "$CLOUDEDGE_ROOT/home/work/yolov3"\n'
        'exec python3 -m http.server --bind 127.0.0.1 "$PORT"\n'
    )
    item = {"key": "run.sh", "value": {"type": "kv", "value": run}}
    world.write("POST", "configs", {"name": "paddle-yolov3-run-script", "data": [item]})
    service = {
        "name": "paddle-serving",
        "image": "registry.baidubce.com/pp/paddle-serving:0.7.0-cpu-py36",
        "args": ["/bin/bash", "/home/work/script/run.sh"],
        "ports": [{"hostPort": world.port, "containerPort": 18082, "protocol": "TCP"}],
        "volumeMounts": [
            {"name": "script", "mountPath": "/home/work/script", "readOnly": True},
            {"name": "model", "mountPath": "/home/work/yolov3"},
        ],
    }
    body = {
        "name": "paddle-serving",
        "selector": "baetyl-node-name=n1",
        "replica": 1,
        "services": [service],
        "volumes": [
            {"name": "script", "config": {"name": "paddle-yolov3-run-script"}},
            {"name": "model", "config": {"name": "paddle-yolov3-model"}},
        ],
    }
    world.write("POST", "apps", body)


@pytest.mark.parts
def test_the_seeds_own_zip_config_runs(world):
    import requests  # noqa: PLC0415 - not of the other tests

    seed_objects(world, zipped({"config.yml": "port: 18082\n", "sub/label.txt": "dog\n"}))
    agent = world.agent(key=False)
    settle(agent)
    url = f"http://127.0.0.1:{world.port}"
    assert requests.get(f"{url}/sub/label.txt", timeout=5).text == "dog\n"
    assert requests.get(f"{url}/model.zip", timeout=5).status_code == 200  # stays beside what was unpacked of it
    stats = world.reported().app("paddle-serving")
    assert (stats.status, stats.cause) == ("Running", "")
    agent.close()


@pytest.mark.parts
def test_a_wrong_md5_and_a_member_that_leaves_its_folder_are_refused(world, played):
    seed_objects(world, zipped({"../../out.txt": "x"}))
    agent = world.agent(key=False, runtime=played)
    settle(agent)
    assert "must stay inside its folder" in world.reported().app("paddle-serving").cause
    assert not list(world.folder.glob("**/out.txt"))
    agent.close()


@pytest.mark.parts
def test_a_wrong_md5_is_refused(world, played):
    seed_objects(world, zipped({"a": "b"}), md5="0" * 32)
    agent = world.agent(key=False, runtime=played)
    settle(agent)
    assert "has MD5" in world.reported().app("paddle-serving").cause
    agent.close()


def tarred(kind, *members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz" if kind == "tgz" else "w") as archive:
        for name, data, link in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if link:
                member.type, member.linkname, member.size = tarfile.SYMTYPE, link, 0
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.rules
@pytest.mark.parametrize("kind", ["tar", "tgz"])
def test_archives(tmp_path, kind):
    archive = tmp_path / "a"
    out = tmp_path / "out"
    out.mkdir()
    archive.write_bytes(tarred(kind, ("sub/a", b"hello", ""), ("b", b"", "")))
    unpack_archive(archive, kind, out, room=1000)
    assert (out / "sub/a").read_bytes() == b"hello"
    for bad in (("../x", b"", ""), ("/x", b"", ""), ("x", b"", "/etc/passwd")):
        archive.write_bytes(tarred(kind, ("good", b"1", ""), bad))
        with pytest.raises(InputError):
            unpack_archive(archive, kind, out, room=1000)
        assert not (out / "good").exists()
    archive.write_bytes(tarred(kind, ("big", bytes(2000), "")))
    with pytest.raises(StorageError):
        unpack_archive(archive, kind, out, room=1000)
    archive.write_bytes(b"nothing of the kind")
    for wrong in (kind, "zip", "rar"):
        with pytest.raises(InputError):
            unpack_archive(archive, wrong, out, room=1000)


# -- the cloud -------------------------------------------------------------------------------------------------------


@pytest.mark.parts
def test_a_cloud_that_is_away_changes_nothing(world, played):
    world.release(make_bundle(world.hub, world.folder, 1))
    agent = world.agent(runtime=played)
    settle(agent)
    agent.close()
    sync_url, world.lab._urls["sync"] = world.lab._urls["sync"], f"http://127.0.0.1:{free_port()}"
    played.stop()  # the machine was restarted too, and another program was quicker
    port = agent.state.running[0].runs[0].leads[0].private
    squatter = socket.create_server(("127.0.0.1", port))
    agent = world.agent(runtime=played)
    assert agent.state.running[0].runs[0].env["PORT"] != str(port)
    with pytest.raises(Unavailable):
        agent.sync()
    agent.work()
    assert played.asks(world.port) == 1
    agent.close()
    squatter.close()
    world.lab._urls["sync"] = sync_url


@pytest.mark.parts
def test_an_app_that_is_desired_no_more_is_ended_and_returns_without_a_byte(world, played):
    statement = world.release(make_bundle(world.hub, world.folder, 1))
    agent = world.agent(runtime=played)
    settle(agent)
    fetched = agent.state.fetched
    world.bie.set_labels("n1", {"cloudedge-paddle-serving": None})
    settle(agent)
    assert not played.servers
    assert world.reported().apps == {}
    world.point(statement)
    settle(agent)
    assert played.asks(world.port) == 1
    assert agent.state.fetched == fetched
    agent.close()


# -- decisions -------------------------------------------------------------------------------------------------------


def app(name, *, port=0, label="", version="1"):
    service = {"name": "serving", "image": "i", "ports": [{"hostPort": port, "containerPort": 80}] if port else []}
    labels = {"cloudedge-app": label} if label else {}
    return DesiredApp.parse({"name": name, "version": version, "labels": labels, "services": [service]})


def running(name, slot, version="1"):
    return Slot(live=Unit(AppRef(name, version), slot, ""))


CASES = {
    "nothing to do": ([app("a1", label="a")], {"a": running("a1", "a")}, [], [], {}),
    "the next revision takes the place of the live one": (
        [app("a2", label="a", port=80)],
        {"a": running("a1", "a")},
        [],
        ["a2"],
        {},
    ),
    "a new version of an app that is not ours": ([app("bb", version="2")], {"bb": running("bb", "bb")}, [], ["bb"], {}),
    "what nothing desires is ended": ([app("a1", label="a")], {"bb": running("bb", "bb")}, ["bb"], ["a1"], {}),
    "the live one keeps a port, whatever the order": (
        [app("xx", port=80), app("a1", label="a", port=80)],
        {"a": running("a1", "a")},
        [],
        [],
        {"xx": "host port 80 conflict: a1 has it"},
    ),
    "the first one gets a port": (
        [app("xx", port=80), app("yy", port=80)],
        {},
        [],
        ["xx"],
        {"yy": "host port 80 conflict: xx has it"},
    ),
    "two revisions of one app": (
        [app("a2", label="a"), app("a1", label="a")],
        {"a": running("a1", "a")},
        [],
        [],
        {"a2": "a1 is a revision of a too, and comes first"},
    ),
    "a line that only holds what was is left alone": ([], {"a": Slot(highest=3)}, [], [], {}),
}


@pytest.mark.rules
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_node_decides(case):
    desired, slots, remove, install, skip = case
    decided = plan(desired, slots)
    assert decided.remove == tuple(remove)
    assert [each.ref.name for each in decided.install] == install
    assert {ref.name: cause for ref, cause in decided.skip.items()} == skip


@pytest.mark.rules
def test_a_delta_makes_the_desire_of_the_report_and_not_of_the_last_one():
    report = {"apps": [{"name": "a1", "version": "1"}], "sysapps": [], "nodeprops": {"k": "v"}}
    assert take_delta(report, {}).apps == (AppRef("a1", "1"),)
    assert take_delta(report, {"apps": [{"name": "a2", "version": "2"}]}).apps == (AppRef("a2", "2"),)
    assert take_delta(report, {"apps": None}).apps == ()
    assert take_delta(report, {"nodeprops": {"k": None, "l": "w"}}).nodeprops == {"l": "w"}
    assert take_delta(report, None) is None
    with pytest.raises(InputError):
        take_delta(report, [])


@pytest.mark.rules
@pytest.mark.parametrize(
    ("value", "patch", "result"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [1]}, {"a": [2, 3]}, {"a": [2, 3]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(value, patch, result):
    assert merge_patch(value, patch) == result


@pytest.mark.rules
def test_templates_are_filled_in_as_stock_nodes_do_and_stop_only_their_own_app():
    fields = {"BAETYL_NODE_NAME": "n1"}
    assert filled_in({"a": ["x-{{.BAETYL_NODE_NAME}}", 1]}, fields) == {"a": ["x-n1", 1]}
    for bad in ("{{.OTHER}}", "{{ range }}", "{{"):
        with pytest.raises(InputError):
            filled_in(bad, fields)


@pytest.mark.rules
@pytest.mark.parametrize(
    "data",
    [
        {"_object_x": "not json"},
        {"_object_x": json.dumps({"url": "file:///etc/passwd"})},
        {"_object_..": json.dumps({"url": "http://h/x"})},
        {"a/b": "text"},
        {"..": "text"},
        {"a": 1},
    ],
)
def test_configs_that_cannot_be(data):
    with pytest.raises(InputError):
        MountedConfig.parse({"name": "config", "version": "1", "data": data})


@pytest.mark.rules
def test_documents_of_any_shape_are_refused_by_an_input_error():
    shapes = [None, 1, "x", [], {}, {"name": "a1"}, {"name": "a1", "services": 3}, {"name": "a1", "services": [7]}]
    service = {"name": "serving", "image": "i"}
    shapes += [
        {"name": "a1", "services": [{**service, "ports": [{"containerPort": port}]}]} for port in (0, 1 << 16, "x")
    ]
    shapes += [{"name": "a1", "services": [{**service, "volumeMounts": [{"name": "v", "mountPath": "/a/../b"}]}]}]
    shapes += [{"name": "a1", "services": [service], "volumes": [{"name": "v", "config": "x"}]}]
    shapes += [{"name": "a1", "services": [service], "version": version} for version in ("../../x", "/x", "a/b", 7)]
    for shape in shapes:
        with contextlib.suppress(InputError):
            DesiredApp.parse(shape)
            pytest.fail(f"accepted {shape!r}")


@pytest.mark.parts
def test_the_live_and_the_previous_version_stay_and_nothing_else(world, played):
    agent = world.agent(runtime=played)
    bundles = {}
    for version in (1, 2, 3):
        bundles[version] = make_bundle(world.hub, world.folder, version, files={"w": noise(9000, version)})
        world.release(bundles[version])
        settle(agent)
    (slot,) = agent.state.slots.values()
    assert {path.name for path in (world.folder / "n1/units").iterdir()} == {slot.live.id, slot.previous.id}
    held = {path.name for path in (world.folder / "n1/hub/blobs/sha256").iterdir()}
    weights = {v: bundle.dense_layers["w"].digest.removeprefix("sha256:") for v, bundle in bundles.items()}
    assert {v for v, digest in weights.items() if digest in held} == {2, 3}
    assert not list((world.folder / "n1/downloads").iterdir())
    agent.close()


@pytest.mark.parts
def test_a_node_is_known_by_its_certificate(tmp_path):
    """Mutual TLS: who the node is comes from its certificate, and a cloud without the right one gets no report."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")

    def made(name, subject, *options):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        names = ["-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={subject}", "-days", "2", *options]
        subprocess.run([*command, *names], cwd=tmp_path, check=True, capture_output=True)
        return tmp_path / f"{name}.crt", tmp_path / f"{name}.key"

    server_pair = made("server", "127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    node_pair = made("node", "baetyl-cloud.n1")
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            subject = dict(pair for part in self.connection.getpeercert()["subject"] for pair in part)
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((subject["commonName"], self.headers.get("common-name"), self.path))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server_pair)
    context.load_verify_locations(node_pair[0])
    context.verify_mode = ssl.CERT_REQUIRED
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    url = f"https://127.0.0.1:{server.server_address[1]}"
    try:
        link = Link(url, "n1", certificate=node_pair, authority=server_pair[0])
        assert link.report({"apps": []}).apps == ()
        link.close()
        stranger = Link(url, "n1", certificate=node_pair, authority=node_pair[0])
        with pytest.raises(Unavailable):
            stranger.report({"apps": []})
        stranger.close()
        with pytest.raises(ConfigError):
            Link(url, "n1")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert seen == [("baetyl-cloud.n1", None, "/v1/sync/report")]
