"""A lab, a publisher of revisions, and nodes that follow it: what the tests of the node's agent share."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import requests

from cloudedge.bundle import Bundle, Lineage, ProbeRequest, Probes, Signature, Variable, new_key_pair, sign_bundle
from cloudedge.edge_bie.client import App, Bie, Config, File, Mount, Node, Port, Service, Text, Volume
from cloudedge.edge_bie.lab import Lab
from cloudedge.edge_bie.model import _apps as _documents
from cloudedge.edge_bie.model import _mounts as _mounted
from cloudedge.edge_bie.model._app_digest import content_of, texts_digest
from cloudedge.edge_bie.model._names import (
    APP_LABEL,
    OWNER_LABEL,
    REVISION_LABEL,
    app_name,
    blob_config,
    node_label,
    script_config,
    statement_config,
)
from cloudedge.edge_bie.model._statement import SIGNATURE_KEY, STATEMENT_KEY, Blob, Statement
from cloudedge.edge_bie.node import Link, NodeAgent, NodeSettings, ProcessRuntime, Supervised
from cloudedge.hub import LocalHub, current, signature_tag

ROOT = Path(__file__).resolve().parents[2]
PASSPHRASE = b"a passphrase for tests"
APP = "paddle-serving"

SERVER = """
import http.server, json, os, sys
root = os.environ["CLOUDEDGE_ROOT"]
model = json.load(open(os.path.join(os.environ["CLOUDEDGE_MODEL"], "model.json")))
if model.get("crash"):
    sys.exit("this model crashes")

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/predict":
            answer = {"outputs": {"y": [[x[0] * model["factor"]] for x in body["inputs"]["x"]]}}
        else:
            answer = {"version": model["version"]}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler).serve_forever()
"""
RUN = 'exec python3 "$CLOUDEDGE_ROOT/home/work/script/server.py"\n'
# Paths come as the agent gives them: below its root for a process, as they are in a container.


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(check, within_s=180, every_s=0.05):
    end = time.monotonic() + within_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"not within {within_s} s"
        time.sleep(every_s)


def make_bundle(hub, folder, version, *, factor=None, files=None, sparse=None, parent=None, crash=False, wrong=False):
    """Pack a model whose answers tell its version: y = x * factor."""
    factor = version if factor is None else factor
    dense = folder / f"dense-{version}"
    dense.mkdir(parents=True)
    (dense / "model.json").write_text(json.dumps({"version": version, "factor": factor, "crash": crash}))
    for name, data in (files or {}).items():
        (dense / name).write_bytes(data)
    probes = Probes(
        requests=[
            ProbeRequest(name="double", feed={"x": [[2.0]]}, expect={"y": [[2.0 * factor + (1 if wrong else 0)]]})
        ]
    )
    signature = Signature(
        feed=[Variable(name="x", dtype="float32", shape=(1,))], fetch=[Variable(name="y", dtype="float32", shape=(1,))]
    )
    return Bundle.pack(
        dense,
        name="yolov3",
        version=version,
        signature=signature,
        probes=probes,
        lineage=Lineage(job="test"),
        framework_version="3.0.0",
        sparse=sparse,
        parent=parent,
        copy=True,
        hub=hub,
    )


@dataclass
class World:
    """A lab with an account, a hub with bundles, and a key."""

    folder: Path
    lab: Lab
    bie: Bie
    hub: LocalHub
    key: Path
    public: Path
    port: int
    sequence: int = 0
    entry: bool = False
    env: dict = field(default_factory=dict)
    written: set = field(default_factory=set)
    scripts: dict = field(default_factory=lambda: {"run.sh": RUN, "server.py": SERVER})
    shell: str = "/bin/bash"
    released: Statement | None = None
    started: list = field(default_factory=list)
    """Processes of agents, also of tests that fail before they end them."""
    state: str = ""
    """A folder of the node that is mounted where the entry-point helper remembers numbers."""

    def add_node(self, name="n1"):
        self.bie.put_node(Node(name=name))

    def statement(self, bundle, *, sequence=None, app=APP, image=""):
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        blobs = [*bundle.manifest.blobs]
        signed = current(bundle.hub.tags(bundle.name), signature_tag(bundle.digest))
        if signed is not None:
            manifest = bundle.hub.read_manifest(bundle.name, signed.target.digest)
            blobs += [manifest.descriptor, *manifest.blobs]
        described = bundle.manifest.descriptor
        statement = Statement(
            app=app,
            sequence=sequence,
            bundle=f"{bundle.name}@{bundle.digest}",
            pin=bundle.pin,
            image=image,
            manifest=Blob(described.digest, described.size, described.media_type),
            blobs=tuple(Blob(blob.digest, blob.size, blob.media_type) for blob in blobs),
        )
        return self.with_content(statement)

    def with_content(self, statement):
        """Say in a statement what its app runs."""
        texts = {key: text.encode() for key, text in self.scripts.items()}
        configs = {self.script: _mounted.MountedConfig(self.script, "", texts)}
        for blob in statement.every_blob:
            name = blob_config("yolov3-model", blob.digest)
            configs[name] = _mounted.MountedConfig(name, "", {}, (_mounted.Object(blob.digest.replace(":", "-"), ""),))
        body = _documents.DesiredApp.parse(self.app(statement).to_json())
        content = content_of(body, configs, statement=statement_config(statement.app, statement.revision))
        return replace(statement, content=content, scripts=(texts_digest(texts),))

    @property
    def script(self):
        return script_config("yolov3-script", hashlib.sha256(repr(self.scripts).encode()).hexdigest())

    def app(self, statement, *, image=None):
        """Return the app of a revision."""
        volumes, mounts = [], []
        for blob in statement.every_blob:
            name = blob_config("yolov3-model", blob.digest)
            volumes.append(Volume(name, name))
            mounts.append(Mount(name, f"/cloudedge/blobs/{name}", read_only=True))
        own = statement_config(statement.app, statement.revision)
        volumes += [Volume("script", self.script), Volume("statement", own)]
        mounts += [Mount("script", "/home/work/script"), Mount("statement", "/cloudedge/statement")]
        if self.state:
            volumes.append(Volume("state", extra={"hostPath": {"path": self.state}}))
            mounts.append(Mount("state", "/cloudedge/state"))
        service = Service(
            name="serving",
            image=image or statement.image or "cloudedge.invalid/process",
            args=(self.shell, "/home/work/script/run.sh"),
            env={"PORT": str(self.port), "CLOUDEDGE_SERVICE": "yolov3", **self.env},
            ports=(Port(self.port, self.port),),
            mounts=tuple(mounts),
        )
        return App(
            name=app_name(statement.app, statement.revision),
            selector=f"{node_label(statement.app)}={statement.revision}",
            services=(service,),
            volumes=tuple(volumes),
            labels={OWNER_LABEL: "owned", APP_LABEL: statement.app, REVISION_LABEL: statement.revision},
        )

    def publish(self, bundle, *, statement=None, signature=None, image=None, urls=None, **options):
        """Write a revision's objects; returns the statement. No node is moved."""
        statement = statement or self.statement(bundle, **options)
        revision, app = statement.revision, statement.app
        owned = {OWNER_LABEL: "owned"}
        labels = {**owned, APP_LABEL: app, REVISION_LABEL: revision}
        for blob in statement.every_blob:
            hexes = blob.digest.removeprefix("sha256:")
            target = self.lab.objects / "sha256" / hexes
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.hub._files.path(f"blobs/sha256/{hexes}").read_bytes())
            url = (urls or {}).get(blob.digest, f"{self.lab.objects_url}/sha256/{hexes}")
            name = blob_config("yolov3-model", blob.digest)
            md5 = hashlib.md5(target.read_bytes()).hexdigest()
            self.put(Config(name, {f"sha256-{hexes}": File(url=url, md5=md5, sha256=hexes)}, owned))
        items = {name: Text(text) for name, text in self.scripts.items()}
        self.put(Config(self.script, items, owned))
        if signature is None:
            signature = statement.sign(self.key, PASSPHRASE)
        texts = {
            STATEMENT_KEY: Text(statement.to_bytes().decode()),
            SIGNATURE_KEY: Text(base64.b64encode(signature).decode()),
        }
        self.put(Config(statement_config(app, revision), texts, labels))
        self.put_app(self.app(statement, image=image))
        return statement

    def put_app(self, app):
        self.write("POST", "apps", {**app.to_json(), "replica": 1})

    def put(self, config):
        if config.name not in self.written:
            self.write("POST", "configs", config.to_json())
            self.written.add(config.name)

    def write(self, method, path, value):
        answer = requests.request(method, f"{self.lab.admin_url}/v1/{path}", json=value, timeout=10)
        assert answer.status_code == 200, answer.text

    def point(self, statement, node="n1"):
        found = requests.get(f"{self.lab.admin_url}/v1/nodes/{node}", timeout=10).json()
        found["labels"][node_label(statement.app)] = statement.revision
        self.write("PUT", f"nodes/{node}", found)

    def release(self, bundle, node="n1", **options):
        statement = self.publish(bundle, **options)
        self.point(statement, node)
        self.released = statement
        return statement

    def agent(self, name="n1", *, folder=None, key=True, at=lambda _: None, clock=None, runtime=None, **settings):
        """Return a node in this process; `work` and `sync` are called by the test."""
        folder = folder or self.folder / name
        runtime = runtime or ProcessRuntime(
            Supervised(folder / "processes", address="127.0.0.1", port_map={self.port: self.port})
        )
        options = {"interval_s": 0.2, "probe_timeout_s": 20.0, "address": "127.0.0.1", **settings}
        return NodeAgent(
            NodeSettings(name, folder, key=self.public if key else None, **options),
            Link(self.lab.sync_url, name),
            runtime,
            clock=clock,
            at=at,
        )

    def command(self, name="n1", *options):
        """Return the words that start a node as a process of its own."""
        return [
            *(sys.executable, "-m", "cloudedge", "edge", "node", "--cloud", self.lab.sync_url, "--name", name),
            *("--state", str(self.folder / name), "--key", str(self.public), "--interval-s", "0.1", *options),
        ]

    def start(self, name="n1", *options):
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                self.command(name, *options), stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
        self.started.append(started)
        return started

    def asks(self, port=None):
        """Ask the app on its port of the host which version it is; None when nobody answers."""
        with contextlib.suppress(requests.RequestException, ValueError):
            answer = requests.post(f"http://127.0.0.1:{port or self.port}/version", json={}, timeout=5)
            return answer.json().get("version")
        return None

    def reported(self, node="n1"):
        return self.bie.stats(node).report

    def stats(self, statement, node="n1"):
        """Return what a node says of a revision, or None."""
        report = self.reported(node)
        return report.app(app_name(statement.app, statement.revision)) if report else None


def settle(agent, rounds=2):
    """Let a node learn and act until nothing more happens."""
    for _ in range(rounds):
        agent.sync()
        agent.work()
    agent.sync()


def make_world(folder):
    key, public = new_key_pair(folder, "release", PASSPHRASE)
    lab = Lab(folder / "lab", seed=1)
    lab.start()
    bie = Bie.from_url(lab.admin_url)
    return World(folder, lab, bie, LocalHub(folder / "hub"), key, public, free_port())


def signed(world, bundle, key=None):
    sign_bundle(bundle, key or world.key, PASSPHRASE)
    return bundle


def noise(size, seed):
    return np.random.default_rng(seed).bytes(size)


class Hammer:
    """Asks for the version again and again, on a connection that stays open."""

    def __init__(self, world):
        self.versions, self.failed, self._stop = [], [], threading.Event()
        self._thread = threading.Thread(target=self._run, args=(world.port,))
        self._thread.start()

    def _run(self, port):
        with requests.Session() as session:
            while not self._stop.is_set():
                try:
                    answer = session.post(f"http://127.0.0.1:{port}/version", json={}, timeout=10)
                    self.versions.append(answer.json()["version"])
                except Exception as error:  # noqa: BLE001 - every failure counts
                    self.failed.append(error)

    def stop(self):
        self._stop.set()
        self._thread.join()
