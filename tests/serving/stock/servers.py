"""Starts stock Paddle Serving and cloudedge on the same models, each as processes of its own, and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudedge.bundle import Bundle, Lookup, Signature, Variable
from cloudedge.hub import LocalHub
from tests import ROOT
from tests.serving.stock.models import FEEDS, FETCH

HERE = Path(__file__).parent
SETTLE_S = 90.0  # a cold start reads a gigabyte of libraries


@dataclass(frozen=True)
class Server:
    """A service that answers."""

    http_port: int
    rpc_port: int
    sessions: tuple[int, ...]
    """Session ids of its processes: each is started in one of its own."""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.http_port}{path}"

    def usage(self) -> tuple[float, float]:
        """Sum up processor seconds, and megabytes of memory in which shared pages are divided among their users."""
        used = [session_usage(session) for session in self.sessions]
        return sum(seconds for seconds, _ in used), sum(megabytes for _, megabytes in used)


def stock_python() -> Path | None:
    """Find what install_stock made, in $CLOUDEDGE_TEST_TOOLS or the repository's own .peers."""
    for place in (os.environ.get("CLOUDEDGE_TEST_TOOLS"), ROOT / ".peers"):
        if place and (Path(place) / "stock/installed").exists():
            return (Path(place) / "stock/python").absolute()
    return None


def make_models(folder: Path) -> Path:
    """Write the models in a process of its own: Paddle changes the process it is imported into."""
    run = subprocess.run(
        [sys.executable, HERE / "models.py", folder], capture_output=True, text=True, check=False, timeout=120
    )
    if run.returncode:
        raise RuntimeError(run.stderr)
    return folder


def request_body(row: dict[str, Any], **more: Any) -> bytes:
    """Write one row as Pipeline's clients do: a JSON document whose values are strings."""
    return json.dumps({"key": list(row), "value": [json.dumps(value) for value in row.values()], **more}).encode()


@contextlib.contextmanager
def stock_server(model: Path, name: str, folder: Path, *, tuned: bool = False) -> Iterator[Server]:
    python = stock_python()
    if python is None:
        raise RuntimeError("stock Paddle Serving is not installed: make peers")
    http_port, rpc_port = free_ports(2)
    command = [
        python,
        ROOT / "dockerfiles/paddle-serving/web_service.py",
        model,
        name,
        rpc_port,
        http_port,
        *(["--tuned"] if tuned else []),
    ]
    # It logs and notes its processes into the current directory, and trusts PYTHONPATH.
    with service(command, folder, {"PYTHONPATH": ""}) as process:
        # Its gateway answers before the service behind it does: a wrong name is refused by the latter.
        wait(process, folder, lambda: post(http_port, "/nobody/x", b"{}") == 200)
        yield Server(http_port, rpc_port, (process.pid,))


@contextlib.contextmanager
def cloudedge_server(models: Path, model: str, folder: Path, *, cube: bool = False) -> Iterator[Server]:
    """Serve a model with `cloudedge serve`; with `cube`, split, and its rows on a cube server of its own."""
    hub = LocalHub(folder / "hub")
    bundle = pack(models, model, hub, split=cube)
    command = [sys.executable, "-m", "cloudedge", "serve", f"{model}:1", "--hub", folder / "hub", "--json"]
    command += ["--port", "0", "--grpc-port", "0", "--admin-port", "0"]
    with contextlib.ExitStack() as stack:
        sessions = []
        if cube:
            started, session = stack.enter_context(cube_server(models, bundle.pin, folder / "cube"))
            sessions.append(session)
            host, _, port = started["address"].rpartition(":")
            conf = {"dict_name": "table", "shard": 1, "dup": 1, "timeout": 1000, "retry": 1, "backup_request": 0}
            conf |= {"type": "ipport", "nodes": [{"ip": host, "port": int(port)}]}
            (folder / "cube.conf").write_text(json.dumps([conf]))
            command += ["--cube", folder / "cube.conf"]
        started, session = stack.enter_context(announced(command, folder))
        yield Server(started["port"], started["grpc_port"], (*sessions, session))


def pack(models: Path, model: str, hub: LocalHub, *, split: bool, version: int = 1, folder: str = "") -> Bundle:
    """Pack a model; `split` takes the dense program and the table apart from it, `folder` other files."""
    feeds = [Variable(name=name, dtype=kind, shape=shape) for name, (kind, shape) in FEEDS[model].items()]
    ids = [feed.name for feed in feeds if split and feed.dtype == "int64"]
    signature = Signature(
        feed=feeds,
        fetch=[Variable(name="fetch_name_0", alias=FETCH, dtype="float32", shape=(1,))],
        lookups=[Lookup(feed=name, input=f"rows_{name}", table="table") for name in ids],
    )
    dense = models / (folder or (f"{model}-dense" if split else model))
    sparse = {"table": models / "table.npz"} if split else None
    return Bundle.pack(dense, name=model, version=version, signature=signature, sparse=sparse, hub=hub)


@contextlib.contextmanager
def cube_server(models: Path, pin: str, folder: Path) -> Iterator[tuple[dict[str, Any], int]]:
    folder.mkdir(parents=True)
    cube = [sys.executable, "-m", "cloudedge", "cube"]
    for step in (
        ["dump", models / "table.npz", folder / "rows.seq"],
        [
            "build",
            folder / "rows.seq",
            "--output",
            folder / "out",
            "--table",
            "table",
            "--shards",
            "1",
            "--version",
            "1",
        ],
    ):
        subprocess.run([*cube, *step], check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    (part,) = (found.parent for found in (folder / "out").rglob("index.n"))
    with announced(
        [*cube, "serve", part, "--version", pin, "--port", "0", "--admin-port", "0", "--json"], folder
    ) as up:
        yield up


@contextlib.contextmanager
def announced(command: list[Any], folder: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Start one of our services and wait until it says, as JSON, where it listens."""
    with service(command, folder, {"PYTHONPATH": str(ROOT)}) as process:
        wait(process, folder, lambda: announcement(folder) is not None)
        yield announcement(folder), process.pid


def announcement(folder: Path) -> dict[str, Any] | None:
    text = (folder / "log").read_text(errors="replace")
    with contextlib.suppress(ValueError):
        found: dict[str, Any] = json.JSONDecoder().raw_decode(text[text.index("{\n") :])[0]
        return found
    return None


@contextlib.contextmanager
def service(command: list[Any], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service in a session of its own: a stock one that cannot load its model kills its whole process group."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(part) for part in command], cwd=folder, env=os.environ | environment, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(15)


def wait(process: subprocess.Popen[bytes], folder: Path, ready: Any) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"no answer from {process.args}:\n{(folder / 'log').read_text(errors='replace')[-3000:]}"
            )
        time.sleep(0.1)


def post(port: int, path: str, body: bytes) -> int:
    """Send one request; return its status, or 0 where nobody answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return int(error.code)
    except OSError:
        return 0


def free_ports(count: int) -> list[int]:
    """Find ports that are free now; stock takes only numbers."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [found.getsockname()[1] for found in sockets]


def session_usage(session: int) -> tuple[float, float]:
    ticks = pages_kb = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            ticks += int(fields[11]) + int(fields[12])
            rollup = (folder / "smaps_rollup").read_text()
            pages_kb += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return ticks / os.sysconf("SC_CLK_TCK"), pages_kb / 1024
