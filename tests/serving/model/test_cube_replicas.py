"""Cube servers that are killed while models are served: one of two replicas costs nothing, a whole shard is said."""

import asyncio
import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from cloudedge import _core
from cloudedge.cube import CubeConf
from cloudedge.cube import Server as CubeServer
from cloudedge.cube import ServerConfig as CubeConfig
from cloudedge.release import CubeRows
from cloudedge.serving import Runtime, RuntimeConfig, Server, ServerConfig
from tests.serving.models import pack_rows, row_table
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

SHARDS, REPLICAS, CLIENTS = 2, 2, 8
EVEN, ODD = {"ids": [[4]], "more": [[2]]}, {"ids": [[5]], "more": [[2]]}
CUBE = """
import sys
import numpy as np
from cloudedge import _core
from cloudedge.cube import Server, ServerConfig

pin, shard, shards = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
keys = np.arange(40, dtype=np.uint64)
keys = keys[keys % shards == shard]
values = (keys[:, None] + np.array([0, 0.25, 0.5])).astype(np.float32)
server = Server(ServerConfig(port=0, threads=1)).start()
server.add(_core.memory_version(pin, keys, np.ascontiguousarray(values).view(np.uint8)))
server.activate(pin)
print(server.port, flush=True)
sys.stdin.read()
"""


class CubeProcess:
    def __init__(self, pin, shard):
        self.process = subprocess.Popen(
            [sys.executable, "-c", CUBE, pin, str(shard), str(SHARDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @property
    def port(self):
        return int(self.process.stdout.readline())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def bundle(models, tmp_path):
    return pack_rows(tmp_path / "rows", models.hub, row_table(gaps=False))


@pytest.fixture
def replicas(bundle):
    """Those of shard 1, which has the odd keys: processes."""
    made = [CubeProcess(bundle.pin, 1) for _ in range(REPLICAS)]
    yield made
    for replica in made:
        if replica.process.poll() is None:
            replica.kill()


@pytest.fixture
def even(bundle):
    """Shard 0, which stays."""
    arrays = row_table(gaps=False)
    mine = arrays["keys"] % SHARDS == 0
    with CubeServer(CubeConfig(port=0, threads=1)) as server:
        values = np.ascontiguousarray(arrays["values"][mine])
        server.add(_core.memory_version(bundle.pin, arrays["keys"][mine], values.view(np.uint8)))
        server.activate(bundle.pin)
        yield server


@pytest.fixture
def serve(models, bundle, even, replicas):
    odd = ",".join(f"127.0.0.1:{replica.port}" for replica in replicas)
    nodes = [{"ipport_list": f"list://127.0.0.1:{even.port}"}, {"ipport_list": f"list://{odd}"}]
    table = {"dict_name": "t", "shard": SHARDS, "dup": REPLICAS, "timeout": 30_000, "retry": 3, "backup_request": 0}
    conf = CubeConf.from_text(json.dumps([table | {"type": "ipport_list", "nodes": nodes}]))

    def start(policy):
        rows = lambda found, _: CubeRows(conf, found, on_missing_shard=policy)  # noqa: E731
        runtime = Runtime(RuntimeConfig(workers=2, max_wait_s=60), hub=models.hub, rows=rows)
        runtime.activate(runtime.load(models.ref(bundle)).pin)
        return runtime

    return start


def row(key):
    return [key, key + 0.25, key + 0.5]


def test_killing_one_of_two_replicas_fails_no_request(serve, replicas):
    answered, wrong, killed_at = [], [], []

    async def client(port, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        key = number
        while not killed_at or len(answered) < killed_at[0] + 400:
            key = (key + 3) % 39
            body = json.dumps({"inputs": {"ids": [[key]], "more": [[2]]}}).encode()
            writer.write(b"POST /v1/predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            found = json.loads(await reader.readexactly(length))
            answered.append(key)
            if found.get("outputs") != {"rows": [row(key) + row(2)]}:
                wrong.append((key, found))
        writer.close()

    async def killer():
        while len(answered) < 200:  # noqa: ASYNC110 - no event for a count
            await asyncio.sleep(0.01)
        await asyncio.to_thread(replicas[0].kill)
        killed_at.append(len(answered))

    async def everybody(port):
        await asyncio.gather(killer(), *(client(port, number) for number in range(CLIENTS)))

    with serve("error") as runtime, Server(runtime, ServerConfig(port=0)) as server:
        asyncio.run(everybody(server.port))
    assert len(answered) >= killed_at[0] + 400
    assert not wrong


def test_a_shard_without_replicas_is_an_error(serve, replicas):
    with serve("error") as runtime, Server(runtime, ServerConfig(port=0)) as server, Http(server.port, 60) as http:
        for replica in replicas:
            replica.kill()
        reply = http.ask("POST", "/v1/predict", {"inputs": ODD})
        assert reply.status == 503
        assert "rows this call needs could not be had" in reply.json()["error"]
        assert "127.0.0.1" not in reply.body.decode()
        assert http.ask("POST", "/v1/predict", {"inputs": EVEN}).json()["outputs"] == {"rows": [row(4) + row(2)]}


def test_a_shard_without_replicas_is_a_declared_default_with_its_share(serve, replicas):
    with serve("default") as runtime, Server(runtime, ServerConfig(port=0)) as server, Http(server.port, 60) as http:
        for replica in replicas:
            replica.kill()
        reply = http.ask("POST", "/v1/predict", {"inputs": ODD})
        assert reply.json()["outputs"] == {"rows": [[0.0, 0.0, 0.0, *row(2)]]}
        assert (reply.json()["defaulted"], reply.headers["x-cloudedge-defaulted"]) == (0.5, "0.5")
        assert "x-cloudedge-defaulted" not in http.ask("POST", "/v1/predict", {"inputs": EVEN}).headers
        metrics = runtime.queues[runtime.routing.active].version.metrics
        assert metrics.defaulted_keys == 1
    assert metrics.missing_keys == 0
