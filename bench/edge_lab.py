"""How many nodes one lab carries: reports per second and CPU time of each, and label writes per second, durable.

    python bench/edge_lab.py [NODES] [SECONDS]

Reports are what a node with one app sends (about 1.5 kB), over kept connections, one node after the other on each.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time

NODES = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
CONNECTIONS = 32
NAMESPACE = "baetyl-cloud"


def report(node: str, desire: dict) -> bytes:
    instance = {
        "name": "paddle-serving-0", "appName": "paddle-serving", "status": "Running", "nodeName": node,
        "createTime": "2026-01-01T00:00:00Z", "usage": {"cpu": "0.5", "memory": "512Mi"},
        "containers": [{"name": "paddle-serving", "state": "Running"}, {"name": "cloudedge-probe", "state": "Running"}],
        "initContainers": [{"name": "cloudedge-verify", "state": "Terminated", "reason": "Completed"}],
    }  # fmt: skip
    stats = {"name": "paddle-serving", "version": "1", "status": "Running", "instances": {"i": instance}}
    numbers = {"ready": True, "usage": {"cpu": "0.3", "memory": "1Gi"}, "capacity": {"cpu": "4", "memory": "8Gi"}}
    host = {"hostname": node, "address": "10.0.0.5", "arch": "amd64", "os": "linux", "role": "master"}
    body = {**desire, "appstats": [stats], "node": {node: host}, "nodestats": {node: numbers}}
    return json.dumps(body).encode()


def request(method: str, path: str, body: bytes, node: str = "") -> bytes:
    named = f"common-name: {NAMESPACE}.{node}\r\nsource: baetyl-core\r\n" if node else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: lab\r\n{named}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Client:
    """One kept connection."""

    def __init__(self, url: str) -> None:
        self.address = url.removeprefix("http://").split(":")

    async def __aenter__(self) -> Client:  # noqa: PYI034 - typing.Self is not in 3.10
        self.reader, self.writer = await asyncio.open_connection(*self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(self, data: bytes) -> dict:
        """Send one request and return what came back."""
        self.writer.write(data)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        body = json.loads(await self.reader.readexactly(length))
        assert head.startswith(b"HTTP/1.1 200"), body
        return body


async def spread(url: str, requests: list[bytes], seconds: float | None) -> tuple[int, list]:
    """Send requests over all connections; again and again until the time is over, or each once."""
    answers: list = [None] * len(requests)
    until = None if seconds is None else time.perf_counter() + seconds
    done = 0

    async def one(start: int) -> None:
        nonlocal done
        async with Client(url) as client:
            while True:
                for index in range(start, len(requests), CONNECTIONS):
                    if until is not None and time.perf_counter() > until:
                        return
                    answers[index] = await client.ask(requests[index])
                    done += 1
                if until is None:
                    return

    await asyncio.gather(*(one(start) for start in range(CONNECTIONS)))
    return done, answers


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:  # noqa: PTH123
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


async def measure(where: dict) -> None:
    pid = where["pid"]
    names = [f"node-{number:05}" for number in range(NODES)]

    async def timed(what: str, url: str, requests: list[bytes], seconds: float | None = None) -> list:
        began, cpu = time.perf_counter(), cpu_s(pid)
        done, answers = await spread(url, requests, seconds)
        took, used = time.perf_counter() - began, cpu_s(pid) - cpu
        print(f"{what:34} {done:7} in {took:5.1f} s: {done / took:8.0f}/s, {used / done * 1e6:6.0f} us CPU each")
        return answers

    bodies = [json.dumps({"name": name, "labels": {"site": "a"}}).encode() for name in names]
    await timed("nodes made", where["admin"], [request("POST", "/v1/nodes", body) for body in bodies])
    app = {"name": "paddle-serving-r1", "selector": "cloudedge-app=r1", "replica": 1,
           "services": [{"name": "web", "image": "serving"}]}  # fmt: skip
    await spread(where["admin"], [request("POST", "/v1/apps", json.dumps(app).encode())], None)
    labels = json.dumps({"labels": {"site": "a", "cloudedge-app": "r1"}}).encode()
    await timed("labels moved, on disk", where["admin"],
                [request("PUT", f"/v1/nodes/{name}", labels) for name in names])  # fmt: skip
    found = await timed("nodes read", where["admin"], [request("GET", f"/v1/nodes/{name}", b"") for name in names])
    reports = [request("POST", "/v1/sync/report", report(node["name"], node["desire"]), node["name"]) for node in found]
    await timed(f"reports of {len(reports[0])} bytes", where["sync"], reports, SECONDS)
    wanted = json.dumps({"infos": [{"kind": "app", "name": "paddle-serving-r1"}]}).encode()
    await timed("apps fetched", where["sync"],
                [request("POST", "/v1/sync/desire", wanted, name) for name in names])  # fmt: skip
    pages = [f"/v1/nodes?pageNo={page}&pageSize=200" for page in range(1, NODES // 200 + 1)]
    await timed("lists of 200 nodes", where["admin"], [request("GET", page, b"") for page in pages])
    print(f"{'memory of the lab':34} {memory_mb(pid):7.0f} MB with {NODES} nodes")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cloudedge", "edge", "lab", "--state", folder, "--json",
                   "--admin", ":0", "--sync", ":0", "--objects", ":0"]  # fmt: skip
        lab = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            lines = ""
            while "}" not in lines:
                lines += lab.stdout.readline()
            asyncio.run(measure(json.loads(lines)))
        finally:
            lab.kill()
            lab.wait()


if __name__ == "__main__":
    main()
