"""S3 servers started from their packages, and a relay that counts and breaks what goes to them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

ACCESS_KEY, SECRET_KEY, BUCKET = "testaccess", "testsecretkey", "hub"


def _binary(name):
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is not installed: run make test, which installs it"
    return found


def _free_ports(count):
    with_sockets = [socket.socket() for _ in range(count)]
    try:
        for one in with_sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in with_sockets]
    finally:
        for one in with_sockets:
            one.close()


@contextmanager
def _running(command, folder, endpoint):
    """Run a server until the block ends; it is ready once it makes the bucket."""
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=out, env=os.environ | {"TMPDIR": str(folder)}
        )
    try:
        deadline = time.monotonic() + 60
        while not _made_bucket(endpoint):
            assert process.poll() is None, f"{command[0]} ended:\n{log.read_text(errors='replace')[-2000:]}"
            assert time.monotonic() < deadline, f"no bucket yet:\n{log.read_text(errors='replace')[-2000:]}"
            time.sleep(0.1)
        yield endpoint
    finally:
        process.kill()
        process.wait()


def _made_bucket(endpoint):
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=2, s3={"addressing_style": "path"})
    session = Session(ACCESS_KEY, SECRET_KEY, region_name="us-east-1")
    with (
        suppress(BotoCoreError, ClientError),
        closing(session.client("s3", endpoint_url=endpoint, config=config)) as client,
    ):
        client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="ready", Body=b"1")
        return True
    return False


def rclone(folder):
    """Takes conditional headers and ignores them, as many servers do."""
    (port,) = _free_ports(1)
    data = folder / "data"
    data.mkdir()
    command = [_binary("rclone"), "serve", "s3", "--config", os.devnull, "--addr", f"127.0.0.1:{port}"]
    command += ["--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", str(data)]
    return _running(command, folder, f"http://127.0.0.1:{port}")


@contextmanager
def seaweedfs(folder):
    """Compares conditional headers, atomically."""
    names = "master", "volume", "filer", "s3"
    ports = dict(zip(names, _free_ports(4), strict=True))
    grpc = dict(zip(names, _free_ports(4), strict=True))
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    command = [
        _binary("weed"),
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
    ]
    command += [f"-{name}.port={ports[name]}" for name in names]
    command += [f"-{name}.port.grpc={grpc[name]}" for name in names]
    command += [f"-{name}.localSocket={folder}/{name}.sock" for name in ("filer", "s3")]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={folder}/s3.json"]
    command += ["-volume.max=20", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"]
    try:
        with _running(command, folder, f"http://127.0.0.1:{ports['s3']}") as endpoint:
            yield endpoint
    finally:
        for name in names:  # it leaves these behind, wherever its temporary directory is
            Path(f"/tmp/seaweedfs-{name}-grpc-{grpc[name]}.sock").unlink(missing_ok=True)


class Relay:
    """Passes TCP connections on to a server; counts what goes up and cuts off what comes down."""

    def __init__(self, endpoint):
        self._target = ("127.0.0.1", int(endpoint.rsplit(":", 1)[1]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = set()
        self._cuts = []
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_next(self, *after_bytes):
        """Close each of the next connections after so many bytes came down; those that are open close now."""
        self._cuts = list(after_bytes)
        for one in list(self._open):
            _close(one)

    def close(self):
        _close(self._listener)
        for one in list(self._open):
            _close(one)

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                limit = self._cuts.pop(0) if self._cuts else sys.maxsize
                server = socket.create_connection(self._target)
                self._open |= {client, server}
                threading.Thread(target=self._up, args=(client, server), daemon=True).start()
                threading.Thread(target=self._down, args=(server, client, limit), daemon=True).start()

    def _up(self, client, server):
        with suppress(OSError):
            while data := client.recv(1 << 16):
                self.sent += len(data)
                server.sendall(data)
        self._end(client, server)

    def _down(self, server, client, limit):
        with suppress(OSError):
            while limit and (data := server.recv(min(limit, 1 << 16))):
                limit -= len(data)
                client.sendall(data)
        self._end(client, server)

    def _end(self, *pair):
        for one in pair:
            _close(one)
            self._open.discard(one)


def _close(one):
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
