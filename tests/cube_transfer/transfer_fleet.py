"""Shard servers as processes, killed and started again on the same ports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from cloudedge.cube import Client, ClientConfig
from cloudedge.cube.transfer import CubeReplica

COMMAND = [sys.executable, "-m", "cloudedge", "cube", "serve"]
TOKEN = "fleet-secret"


class ShardProcess:
    """One server; `start` announces nothing until it listens, so starting many at once costs one start."""

    def __init__(self, folder: Path, table: str, shard: int, replica: int, *options: str) -> None:
        self.folder = folder
        self.table, self.shard, self.number = table, shard, replica
        self.port = self.admin_port = 0
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> ShardProcess:
        command = [*COMMAND, str(self.folder), "--empty", "--state", str(self.folder), "--json", "--threads", "1"]
        command += ["--port", str(self.port), "--admin-port", str(self.admin_port), *self._options]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "CLOUDEDGE_CUBE_TOKEN": TOKEN},
        )
        return self

    def wait(self) -> ShardProcess:
        assert self._process is not None
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if line.startswith("}"):
                break
        assert lines, f"{self.folder} did not start: exit code {self._process.wait(10)}"
        said = json.loads("".join(lines))
        self.port, self.admin_port = (int(said[key].rpartition(":")[2]) for key in ("address", "admin"))
        return self

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

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
