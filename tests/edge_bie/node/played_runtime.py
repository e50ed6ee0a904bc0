"""A runtime whose units are servers in this process: it outlives an agent that is cut off, as a supervisor does."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import requests

from cloudedge.bundle import Bundle
from cloudedge.edge_bie.node._runtime import ObservedService
from cloudedge.hub import LocalHub, hash_file


class PlayedRuntime:
    """Runs units, and looks at each one it starts: a unit that is not whole fails the test."""

    kind = "process"

    def __init__(self):
        self.servers = {}
        self.targets = {}
        self.started = []

    def apply(self, units, targets):
        for unit in units:
            if unit.id not in self.servers:
                self.servers[unit.id] = _Server(unit)
                self.started.append(unit.id)
        ports = {lead.private for unit in units for run in unit.runs for lead in run.leads}
        assert set(targets.values()) <= ports, "a port of the host leads nowhere"
        self.targets = dict(targets)
        for gone in set(self.servers) - {unit.id for unit in units}:
            self.servers.pop(gone).close()

    def require_ports(self, targets):
        pass

    def bring_images(self, images, logins):
        pass

    def observe(self, unit):
        server = self.servers.get(unit.id)
        if server is None:
            return {run.name: ObservedService("Waiting", "ContainerCreating") for run in unit.runs}
        if server.model.get("crash"):
            return {run.name: ObservedService("Waiting", "CrashLoopBackOff", "exit 1", 2) for run in unit.runs}
        return {run.name: ObservedService("Running") for run in unit.runs}

    def tail(self, unit, service):
        return "this model crashes"

    def stop(self):
        for server in self.servers.values():
            server.close()
        self.servers, self.targets = {}, {}

    def asks(self, host):
        """Ask who answers on a port of the host."""
        if host not in self.targets:
            return None
        return requests.post(f"http://127.0.0.1:{self.targets[host]}/version", json={}, timeout=5).json()["version"]


class _Server:
    def __init__(self, unit):
        (run,) = unit.runs
        folder = Path(run.env["CLOUDEDGE_MODEL"])
        bundle = Bundle.open(unit.bundle, hub=LocalHub(run.env["CLOUDEDGE_HUB"]))
        bundle.verify()
        for path, layer in bundle.dense_layers.items():
            assert hash_file(folder / path).digest == layer.digest, f"{path} of {unit.id} is not whole"
        self.model = model = json.loads((folder / "model.json").read_text())

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = {"version": model["version"]}
                if self.path == "/v1/predict":
                    answer = {"outputs": {"y": [[x[0] * model["factor"]] for x in body["inputs"]["x"]]}}
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", run.leads[0].private), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
