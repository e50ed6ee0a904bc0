"""`cloudedge cube serve | get | stat | bench`: run a cube server, read from one, and measure it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cloudedge.cli._context import read_token
from cloudedge.cli._output import JSON, json_out, renamed_option, say, table_out
from cloudedge.cli._signals import STOP, on_signals, stop_at_once
from cloudedge.errors import InputError, NotFound, Unavailable

if TYPE_CHECKING:
    from cloudedge.cube import CubeTable
    from cloudedge.cube.server import AdminServer, Server

__all__ = ["app"]

app = typer.Typer(help="Serve and read embedding tables.", no_args_is_help=True)

TOKEN_VARIABLE = "CLOUDEDGE_CUBE_TOKEN"  # noqa: S105 - the variable's name, not a token

_MAX_ANSWER = 1 << 20
_OLD_DICT = renamed_option("--dict", "--table")

SERVERS = typer.Option(
    ["127.0.0.1:8027"], "--server", "-s", help="A shard's replicas, host:port[,host:port...]; once for each shard."
)


@app.command()
def serve(
    directory: Path = typer.Argument(
        ..., metavar="DIR", help="A part, or where versions are: DIR/VERSION names the one in DIR/<version>."
    ),
    port: int = typer.Option(8027, help="Data port; 0 takes any free one."),
    host: str = typer.Option("127.0.0.1", help="Address of the data port; beyond loopback with --open."),
    is_open: bool = typer.Option(
        False,
        "--open",
        help="Let any client beyond loopback that reaches the data port read; the protocol has no token.",
    ),
    version: str = typer.Option("", help="Serve DIR/<version>, or name the part DIR."),
    empty: bool = typer.Option(
        False, "--empty", help="Load nothing; wait for the admin API or a control command (without --state)."
    ),
    threads: int = typer.Option(0, help="Threads that answer; 0: one per core."),
    spin_us: int = typer.Option(
        100, help="Microseconds that a busy thread polls for the next request before it sleeps."
    ),
    max_connections: int = typer.Option(20_000, min=1, help="Connections at once; one more is closed."),
    max_keys: int = typer.Option(262_144, min=1, help="Keys in one request."),
    max_body_mb: float = typer.Option(64, min=0.001, help="MiB of one request or answer."),
    max_held_mb: float | None = typer.Option(
        None, min=0.001, help="MiB held for all connections together; 16 for each thread if left out."
    ),
    idle_timeout_s: float = typer.Option(600, min=0.001, help="For a connection between two requests."),
    request_timeout_s: float = typer.Option(30, min=0.001, help="From a request's first byte to its last."),
    write_timeout_s: float = typer.Option(30, min=0.001, help="For a client that does not read its answers."),
    admin_port: int = typer.Option(8028, help="Port of the admin API; 0 takes any free one."),
    admin_host: str = typer.Option("127.0.0.1", help=f"Its address; others than loopback need {TOKEN_VARIABLE}."),
    token_file: Path | None = typer.Option(None, help=f"File with the admin token, instead of {TOKEN_VARIABLE}."),
    remote_control: bool = typer.Option(False, help="Accept upstream's control commands from other machines too."),
    drain_s: float = typer.Option(10, help="Seconds to go on answering after SIGTERM, at most."),
    state: Path | None = typer.Option(
        None, help="Keep versions here: deliveries come here, and a restart restores the loaded and active ones."
    ),
    wanted: Path | None = typer.Option(
        None, metavar="FILE", help='Holds {"order", "pin"}: the server is ready only with that version active.'
    ),
    fetch_limit: float | None = typer.Option(None, metavar="BYTES/S", help="Bandwidth for fetching versions."),
    as_json: bool = JSON,
) -> None:
    """Serve one shard until SIGTERM, which lets requests under way finish.

    Example: cloudedge cube serve data --port 8027
    """
    from cloudedge.cube.server import ServerConfig, ShardHooks, ShardSettings, run_shard  # noqa: PLC0415
    from cloudedge.io import join_address  # noqa: PLC0415

    settings = ShardSettings(
        ServerConfig(
            host=host,
            port=port,
            threads=threads,
            data_dir=directory,
            remote_control=remote_control,
            max_body_bytes=int(max_body_mb * (1 << 20)),
            max_keys=max_keys,
            max_connections=max_connections,
            max_held_bytes=None if max_held_mb is None else int(max_held_mb * (1 << 20)),
            idle_timeout_s=idle_timeout_s,
            request_timeout_s=request_timeout_s,
            write_timeout_s=write_timeout_s,
            spin_us=spin_us,
        ),
        directory,
        version=version,
        empty=empty,
        is_open=is_open,
        admin_host=admin_host,
        admin_port=admin_port,
        token=read_token(token_file) or os.environ.get(TOKEN_VARIABLE) or None,
        state=state,
        wanted=wanted,
        fetch_limit=fetch_limit,
        drain_s=drain_s,
    )
    stop = threading.Event()

    def on_listening(server: Server, admin: AdminServer) -> None:
        on_signals(stop.set, *STOP)
        _announce(server, join_address(admin_host, admin.port), admin.token_file, as_json=as_json)

    def on_lost(problem: str) -> None:
        say("[bold yellow]warning[/]: not loaded; deliver it again, or start again once it can be read: {}", problem)

    run_shard(settings, ShardHooks(stop, on_listening=on_listening, on_lost=on_lost, on_stopping=stop_at_once))


def _announce(server: Server, admin: str, token_file: Path | None, *, as_json: bool) -> None:
    versions = server.versions()
    if as_json:
        facts = {"address": server.address, "admin": admin, "pid": os.getpid(), "version": server.active}
        json_out(facts | ({"token_file": str(token_file)} if token_file else {}))
        return
    what = f"version {versions[0].name or '(unnamed)'} with {versions[0].rows} rows" if versions else "nothing yet"
    say("serving {} on {}, admin API on {}; stop with SIGTERM", what, server.address, admin)
    if token_file:
        say("the token of the admin API is in {}", token_file)


@app.command()
def get(
    keys: list[str] = typer.Argument(..., help="Unsigned 64-bit keys."),
    server: list[str] = SERVERS,
    pin: str | None = typer.Option(None, help="The version that has to answer."),
    dtype: str = typer.Option("float32", help="Numpy type of a value's elements; uint8 for raw bytes."),
    timeout_ms: int = typer.Option(1000, help="For the whole call."),
    as_json: bool = JSON,
) -> None:
    """Read the rows of some keys; fails when one is not there.

    Example: cloudedge cube get 1 2 3 -s 10.0.0.1:8027,10.0.0.2:8027 -s 10.0.0.3:8027
    """
    from cloudedge.cube.client import Client, ClientConfig  # noqa: PLC0415

    for key in keys:
        if not key.isdecimal() or int(key) >= 1 << 64:
            raise InputError(f"{key!r} is not a key", hint="Keys are integers from 0 to 2^64 - 1.")
    with Client(ClientConfig([replicas.split(",") for replicas in server], timeout_ms=timeout_ms)) as client:
        result = client.seek([int(key) for key in keys], pin=pin, dtype=dtype)
    rows: list[dict[str, Any]] = [
        {"key": int(key), "found": bool(found), "value": row.tolist() if found else None}
        for key, found, row in zip(keys, result.found, result.values, strict=True)
    ]
    if as_json:
        json_out({"version": result.version, "rows": rows})
    else:
        shown = [
            (row["key"], "-" if row["value"] is None else " ".join(f"{x:.9g}" for x in row["value"])) for row in rows
        ]
        table_out(("key", "value"), shown, title=f"version {result.version}")
    missing = [row["key"] for row in rows if not row["found"]]
    if missing:
        raise NotFound(f"{len(missing)} of {len(rows)} keys are not in version {result.version!r}: {missing[:5]}")


@app.command()
def stat(server: list[str] = SERVERS, as_json: bool = JSON) -> None:
    """Show the version and the counters of servers; works with upstream's too."""
    found = [_stat(address) for replicas in server for address in replicas.split(",")]
    if as_json:
        json_out({"servers": found})
        return
    counters = ("request_num", "total_key_num", "unfound_key_num")
    rows = [(f["server"], f["version"], *(f["vars"].get(name, "-") for name in counters)) for f in found]
    table_out(("server", "version", "requests", "keys", "missing"), rows)


def _stat(address: str) -> dict[str, Any]:
    import requests  # noqa: PLC0415

    from cloudedge.io import parse_address, read_body  # noqa: PLC0415

    parse_address(address)
    try:
        # Not the control service's status: upstream's answers with freed memory.
        asked = {"version_required": True}
        with requests.post(f"http://{address}/DictService/seek", json=asked, timeout=5, stream=True) as answer:
            version = json.loads(read_body(answer, _MAX_ANSWER)).get("version", "") if answer.ok else None
        with requests.get(f"http://{address}/vars", timeout=5, stream=True) as answer:
            page = read_body(answer, _MAX_ANSWER).decode(errors="replace")
    except (requests.RequestException, ValueError, AttributeError, RecursionError) as error:
        raise Unavailable(f"{address} does not answer like a cube server: {error}") from error
    pairs = (line.split(" : ", 1) for line in page.splitlines() if " : " in line)
    return {"server": address, "version": version, "vars": {name: _number(value) for name, value in pairs}}


def _number(text: str) -> int | str:
    return int(text) if text.strip().isdecimal() else text.strip()


@app.command()
def bench(
    server: list[str] = SERVERS,
    conf: Path | None = typer.Option(None, help="A cube.conf with the servers, instead of --server."),
    table: str = typer.Option("", help="One of its tables, if there are several."),
    keys: int = typer.Option(1_000_000, help="Keys are drawn from 0 to this, exclusive."),
    batch: int = typer.Option(260, help="Keys per call."),
    connections: int = typer.Option(8, help="Callers at once, each with one call under way."),
    seconds: float = typer.Option(5, help="Seconds to measure."),
    pin: str | None = typer.Option(None, help="The version that has to answer."),
    timeout_ms: int = typer.Option(5000, help="For a whole call; with --conf, the file's."),
    seed: int = typer.Option(1, help="Of the keys drawn."),
    raw: bool = typer.Option(
        False,
        "--raw",
        help="Send ready-made frames to one server from one thread: measures the server, not a client.",
    ),
    _dict: str = _OLD_DICT,
    as_json: bool = JSON,
) -> None:
    """Load servers from native code, all shards through the client, and measure how fast they answer.

    Example: cloudedge cube bench --conf cube.conf --table ctr --batch 260 --connections 32
    Example: cloudedge cube bench --raw -s 127.0.0.1:8027 --batch 260 --connections 32
    """
    from cloudedge.cube.client import Client, ClientConfig  # noqa: PLC0415

    if min(keys, batch, connections) < 1 or seconds <= 0:
        raise InputError("keys, batch and connections are at least 1, seconds above 0")
    load: dict[str, Any] = {"batch": batch, "seconds": seconds, "seed": seed, "pin": pin}
    row: dict[str, Any] = {"batch": batch, "connections": connections}
    if raw:
        if conf or len(server) != 1 or "," in server[0]:
            raise InputError("--raw loads one server: name it with one --server")
        row |= _raw_load(server[0], connections=connections, key_space=keys, **load)
    else:
        if conf is None:
            config = ClientConfig([replicas.split(",") for replicas in server], timeout_ms=timeout_ms)
        else:
            config = ClientConfig.from_table(_table(conf, table))
        with Client(config) as client:
            measured = client.measure(callers=connections, key_space=keys, **load)
        row |= {"shards": len(config.shards), **_rates(measured, measured["calls"])}
        row |= {
            "missing_share": round(measured["missing"] / max(1, measured["keys"]), 4),
            "failed": measured["failed"],
            "mixed": measured["mixed"],
        }
        if measured["calls"] == measured["failed"]:
            raise Unavailable(f"no call was answered: {measured['failure']}", hint="Check that cube servers run there.")
    json_out(row) if as_json else table_out(tuple(row), [tuple(row.values())])


def _table(conf: Path, name: str) -> CubeTable:
    from cloudedge.cube import CubeConf  # noqa: PLC0415

    found = CubeConf.from_file(conf)
    if not name and len(found.tables) != 1:
        names = ", ".join(each.table_name for each in found.tables)
        raise InputError(f"{conf} has {len(found.tables)} tables", hint=f"Name one with `--table`: {names}.")
    return found[name or found.tables[0].table_name]


def _rates(measured: dict[str, Any], requests: int) -> dict[str, float]:
    return {
        "requests_per_s": round(requests / measured["seconds"], 1),
        "keys_per_s": round(measured["keys"] / measured["seconds"], 1),
        "p50_us": round(measured["p50_us"], 1),
        "p99_us": round(measured["p99_us"], 1),
    }


def _raw_load(server: str, *, seconds: float, **load: Any) -> dict[str, Any]:
    from cloudedge import _core  # noqa: PLC0415
    from cloudedge.io import parse_address  # noqa: PLC0415

    host, port = parse_address(server)
    try:
        measured = _core.generate_load(
            peer="cube", host=host, port=port, value_bytes=0, seconds=seconds,
            warmup_seconds=min(1.0, seconds / 5), **load,
        )  # fmt: skip
    except RuntimeError as error:
        raise Unavailable(str(error), hint="Check that a cube server runs on that address.") from error
    return _rates(measured, measured["requests"]) | {"missing_share": round(measured["missing_share"], 4)}
