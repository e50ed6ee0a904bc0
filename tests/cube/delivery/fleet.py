"""Shard servers as processes, killed and started again on the same ports."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from cloudedge.cube import Client, ClientConfig
from cloudedge.cube.delivery import CubeReplica

TOKEN = "fleet-secret"
_START_S = 120


class _Zygote:
    """Starts servers by fork; one for each test process, made when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def run(self, argv: list[str], out: Path) -> int:
        with self._lock:
            if self._process is None:
                script = Path(__file__).with_name("server_zygote.py")
                environment = {**os.environ, "CLOUDEDGE_CUBE_TOKEN": TOKEN}
                self._process = subprocess.Popen(
                    [sys.executable, str(script)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
                atexit.register(self.close)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"argv": argv, "out": str(out)}) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


_ZYGOTE = _Zygote()


class ShardProcess:
    """One server; `start` returns before it listens, so that many start together."""

    def __init__(self, folder: Path, table: str, shard: int, replica: int, *options: str) -> None:
        self.folder = folder
        self.table, self.shard, self.number = table, shard, replica
        self.port = self.admin_port = 0
        self._options = options
        self._out = folder.with_name(f"{folder.name}.out")
        self._pid = 0
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> ShardProcess:
        argv = ["cube", "serve", str(self.folder), "--empty", "--state", str(self.folder), "--json", "--threads", "1"]
        argv += ["--port", str(self.port), "--admin-port", str(self.admin_port), *self._options]
        self._out.unlink(missing_ok=True)
        self._pid = _ZYGOTE.run(argv, self._out)
        return self

    def wait(self) -> ShardProcess:
        deadline = time.monotonic() + _START_S
        while not (self._out.exists() and self._out.read_text().endswith("}\n")):
            assert time.monotonic() < deadline, f"{self.folder} did not start"
            assert self._lives(), f"{self.folder} ended at once"
            time.sleep(0.01)
        said = json.loads(self._out.read_text())
        self.port, self.admin_port = (int(said[key].rpartition(":")[2]) for key in ("address", "admin"))
        return self

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pid:
                os.kill(self._pid, signal.SIGKILL)
        while self._lives():
            time.sleep(0.002)
        self._pid = 0

    def _lives(self) -> bool:
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        return bool(self._pid)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def replica(self, **options: object) -> CubeReplica:
        return CubeReplica(
            self.table,
            self.shard,
            replica=str(self.number),
            address=self.address,
            admin=f"127.0.0.1:{self.admin_port}",
            token=TOKEN,
            **{"deadline_s": 60, **options},
        )


class Fleet:
    """All servers of one table."""

    def __init__(self, folder: Path, shards: int, replicas: int, *options: str, table: str = "emb") -> None:
        self.table, self.shards = table, shards
        self.servers = [
            ShardProcess(folder / f"{table}-{shard}-{replica}", table, shard, replica, *options)
            for shard in range(shards)
            for replica in range(replicas)
        ]

    def __enter__(self) -> Fleet:  # noqa: PYI034 - typing.Self is not in 3.10
        try:
            for server in self.servers:
                server.start()
            for server in self.servers:
                server.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for server in self.servers:
            server.kill()

    def replicas(self, **options: object) -> list[CubeReplica]:
        return [server.replica(**options) for server in self.servers]

    def layout(self) -> list[list[str]]:
        return [[each.address for each in self.servers if each.shard == shard] for shard in range(self.shards)]

    def client(self, **options: object) -> Client:
        return Client(ClientConfig(self.layout(), **{"timeout_ms": 20_000, "retry": 4, **options}))

    def as_json(self) -> list[dict[str, object]]:
        """What another process needs to make the replicas."""
        return [
            {"table": s.table, "shard": s.shard, "replica": str(s.number), "address": s.address,
             "admin": f"127.0.0.1:{s.admin_port}", "token": TOKEN, "deadline_s": 60}
            for s in self.servers
        ]  # fmt: skip
