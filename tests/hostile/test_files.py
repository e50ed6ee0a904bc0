"""Attacks on the ports that hand files out and pass requests on: a delivery's file server, a node's switching proxy."""

from __future__ import annotations

import http.client

import pytest

from tests.faults import proves_fault
from tests.hostile.attacks import FRONT, THREADED
from tests.hostile.harness import Target, assault

pytestmark = pytest.mark.parts

FILES = """
import json, sys, time
from cloudedge.cube.server import FileServer
with FileServer(sys.argv[1], token="a-secret", threads=16) as server:
    print(json.dumps({"port": server.port}, indent=1), flush=True)
    time.sleep(3600)
"""
PROXY = """
import http.server, json, sys, threading, asyncio
from pathlib import Path
from cloudedge.http1.switching_proxy import Front, MAX_HEAD

class Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")
    def log_message(self, *_):
        pass

backend = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
threading.Thread(target=backend.serve_forever, daemon=True).start()

async def main():
    target = Path(sys.argv[1]) / "target"
    target.write_text(f"127.0.0.1:{backend.server_address[1]}")
    server = await asyncio.start_server(Front(target).serve, "127.0.0.1", 0, limit=MAX_HEAD)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}, indent=1), flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
TOKEN = {"Authorization": "Bearer a-secret"}


class Get:
    """Gets five bytes, on a new connection each time."""

    def __init__(self, port, path, headers=None):
        self.port, self.path, self.headers = port, path, headers or {}

    def ask(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", self.path, headers=self.headers)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"hello")
        connection.close()

    def close(self):
        pass


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "part").write_bytes(b"hello")
    with Target(
        [str(folder)],
        lambda ports: Get(ports["admin"], "/part", TOKEN),
        lambda told: {"admin": told["port"]},
        program=("-c", FILES),
    ) as target:
        yield target


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    with Target(
        [str(folder)],
        lambda ports: Get(ports["http"], "/"),
        lambda told: {"http": told["port"]},
        program=("-c", PROXY),
    ) as target:
        yield target


@pytest.mark.parametrize("attack", [a for a in THREADED if not a.in_answer], ids=lambda attack: attack.name)
def test_an_attack_on_a_file_server(files, attack, record_property):
    record_property("outcome", str(assault(files, attack)))


@proves_fault(
    area="strangers",
    fault="the proxy of an edge node is sent endless heads and slow requests",
    happens="they are refused, and others are answered",
    cure="nothing",
)
@pytest.mark.parametrize("attack", FRONT, ids=lambda attack: attack.name)
def test_an_attack_on_a_switching_proxy(front, attack, record_property):
    record_property("outcome", str(assault(front, attack)))
