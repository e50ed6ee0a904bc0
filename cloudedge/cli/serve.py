"""`cloudedge serve`: run a serving replica."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from cloudedge.cli._context import configuration, local_hub, named_hub, read_token
from cloudedge.cli._output import JSON, json_out, say
from cloudedge.cli._signals import STOP, on_signals, stop_at_once
from cloudedge.errors import ConfigError

if TYPE_CHECKING:
    from cloudedge.bundle import Bundle
    from cloudedge.serving import AdminServer, Desired, RowSource, Server, Tls

__all__ = ["serve"]

ADMIN_TOKEN = "CLOUDEDGE_SERVING_TOKEN"  # noqa: S105 - the variable's name, not a token


def serve(
    bundles: list[str] = typer.Argument(None, metavar="[BUNDLE]...", help="In the hub, or folders with a model."),
    hub: Path | None = typer.Option(None, metavar="DIR", help="The local hub; ~/.cloudedge/hub if left out."),
    port: int = typer.Option(9393, help="HTTP and baidu_std; 0 takes any free one."),
    host: str = typer.Option("127.0.0.1", help="Of the data ports; beyond loopback: a token, TLS or --open."),
    grpc_port: int | None = typer.Option(None, help="gRPC; 0 takes any free one; none if left out."),
    admin_port: int = typer.Option(9394, help="The admin API; 0 takes any free one."),
    admin_host: str = typer.Option("127.0.0.1", help=f"Its address; others than loopback need {ADMIN_TOKEN}."),
    token_file: Path | None = typer.Option(None, help=f"File with the admin token, instead of {ADMIN_TOKEN}."),
    data_token_file: Path | None = typer.Option(None, help="File with a token every caller has to bring."),
    tls_cert: Path | None = typer.Option(None, metavar="FILE", help="Speak TLS with this certificate and its chain."),
    tls_key: Path | None = typer.Option(None, metavar="FILE", help="Its key; neither is read again before a restart."),
    is_open: bool = typer.Option(False, "--open", help="Beyond loopback, neither a token nor TLS."),
    service: str = typer.Option("", help="Name of the Pipeline service; the first bundle's name if left out."),
    cube: Path | None = typer.Option(
        None, metavar="CUBE.CONF", help="Read rows from these shards, not from the bundle."
    ),
    on_missing_shard: str = typer.Option("error", help="error, or default: zeros, counted and reported in the answer."),
    ops: str = typer.Option("", metavar="MODULE:NAME", help="Hooks around Pipeline predictions, file.py:Name as well."),
    state: Path | None = typer.Option(None, metavar="FILE", help="Keeps the loaded and active versions."),
    follow: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Load and activate the versions of this document, whenever it changes; needs --state.",
    ),
    pull: str = typer.Option("", metavar="HUB", help="With --follow: the hub of bundles that are not here."),
    listen_when_loaded: bool = typer.Option(
        False, "--listen-when-loaded", help="With --follow: open the ports once all its versions are loaded."
    ),
    workers: int = typer.Option(0, help="Threads that run models; 0: one per core."),
    max_rows: int = typer.Option(1024, help="In one request; more are refused."),
    max_batch_rows: int = typer.Option(256, help="Rows of several requests run together; 1: each request by itself."),
    max_queue_rows: int = typer.Option(16384, help="Waiting for one version; further requests are refused (429)."),
    max_queue_mb: int = typer.Option(512, help="As above, with the rows that are looked up."),
    max_wait_ms: int = typer.Option(1000, help="Requests that would wait longer, as estimated, are refused (429)."),
    max_body_mb: int = typer.Option(64, help="Of a request."),
    max_inflated_mb: int = typer.Option(16, help="Of a compressed request, decompressed."),
    max_inflate_ratio: int = typer.Option(100, help="Of a request above 1 MiB, decompressed, to its compressed size."),
    max_parsed_mb: int = typer.Option(32, help="Of the tensors, texts and numbers that a request becomes, estimated."),
    max_answer_mb: int = typer.Option(64, help="Of an answer."),
    max_held_mb: int = typer.Option(
        512, help="Of all requests that are not answered yet, and what they become; further ones are refused."
    ),
    max_connections: int = typer.Option(4096, help="Of HTTP and baidu_std, and as many of gRPC."),
    max_calls: int = typer.Option(256, help="Of gRPC, at once."),
    access_log: float = typer.Option(0.0, help="Share of requests to log, one JSON line each, on standard error."),
    traces: bool = typer.Option(
        False, "--traces", help="Send a span per prediction by OpenTelemetry, configured by OTEL_* variables."
    ),
    drain_s: float = typer.Option(10, help="Seconds to go on answering after SIGTERM, at most."),
    as_json: bool = JSON,
) -> None:
    """Serve models until SIGTERM, which lets requests under way finish.

    The first BUNDLE is activated unless the state file names an active one. Others are loaded beside it.

    Example: cloudedge serve ctr:3 --port 9393 --state serving.json
    """
    from cloudedge.serving import HttpLimits, RuntimeConfig, ServerConfig  # noqa: PLC0415
    from cloudedge.serving.server import ReplicaHooks, ReplicaSettings, run_replica  # noqa: PLC0415

    if follow is not None and cube is not None:
        raise ConfigError("--follow needs --state FILE, and neither bundles nor --cube: the document names them")
    policy = _missing_shard(on_missing_shard)
    settings = ReplicaSettings(
        ServerConfig(
            host=host, port=port, grpc_port=grpc_port, access_log=access_log, token=read_token(data_token_file),
            tls=_tls(tls_cert, tls_key), is_open=is_open,
            admin_token=read_token(token_file) or os.environ.get(ADMIN_TOKEN) or None,
            limits=HttpLimits(
                max_body_bytes=max_body_mb << 20, max_answer_bytes=max_answer_mb << 20,
                max_held_bytes=max_held_mb << 20, max_connections=max_connections, max_calls=max_calls,
                max_inflated_bytes=max_inflated_mb << 20, max_inflate_ratio=max_inflate_ratio,
                max_parsed_bytes=max_parsed_mb << 20,
            ),
        ),
        RuntimeConfig(
            workers=workers, max_rows=max_rows, max_batch_rows=max_batch_rows, max_queue_rows=max_queue_rows,
            max_queue_bytes=max_queue_mb << 20, max_wait_s=max_wait_ms / 1000,
        ),
        bundles=tuple(bundles or ()), service=service, ops=ops, admin_host=admin_host, admin_port=admin_port,
        state=state, follow=follow, listen_when_loaded=listen_when_loaded, traces=traces, drain_s=drain_s,
    )  # fmt: skip
    if access_log:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    stop = threading.Event()
    on_signals(stop.set, *STOP)
    run_replica(
        settings,
        ReplicaHooks(
            hub=local_hub(hub),
            stop=stop,
            rows=None if cube is None else _rows(cube, policy),
            desired_rows=_desired_rows(policy),
            source=named_hub(pull, configuration()) if pull else None,
            on_listening=lambda server, admin: _announce(server, admin, host, admin_host, as_json=as_json),
            on_lost=lambda each: say("[yellow]not brought back[/], will be tried again: {}", each),
            on_stopping=stop_at_once,
        ),
    )


def _missing_shard(given: str) -> Literal["error", "default"]:
    if given == "error":
        return "error"
    if given == "default":
        return "default"
    raise ConfigError(f"--on-missing-shard is error or default, not {given!r}")


def _desired_rows(policy: Literal["error", "default"]) -> Callable[[Desired, Bundle, Mapping[str, str]], RowSource]:
    """Return a function that makes the source of rows for a bundle of a document."""

    def rows(desired: Desired, bundle: Bundle, tables: Mapping[str, str]) -> RowSource:
        import numpy as np  # noqa: PLC0415

        from cloudedge.bundle import RowType  # noqa: PLC0415
        from cloudedge.cube import CubeConf  # noqa: PLC0415
        from cloudedge.release import CubeRows  # noqa: PLC0415
        from cloudedge.serving import BundleRows  # noqa: PLC0415

        if not desired.cube:
            return BundleRows(bundle.sparse)
        known = next((each.rows for each in desired.versions if each.pin == bundle.pin), {})
        kinds = {table: RowType(np.dtype(dtype), dim) for table, (dtype, dim) in known.items()}
        return CubeRows(CubeConf.from_text(desired.cube), bundle, tables, on_missing_shard=policy, kinds=kinds)

    return rows


def _rows(conf: Path, policy: Literal["error", "default"]) -> Callable[[Bundle, Mapping[str, str]], RowSource]:
    from cloudedge.cube import CubeConf  # noqa: PLC0415
    from cloudedge.release import CubeRows  # noqa: PLC0415

    CubeConf.from_file(conf)  # now rather than with the first bundle
    # Read for every bundle: the shards of the next one may be others than those of the first.
    return lambda bundle, tables: CubeRows.from_conf(conf, bundle, tables, on_missing_shard=policy)


def _announce(server: Server, admin: AdminServer, host: str, admin_host: str, *, as_json: bool) -> None:
    from cloudedge.io import join_address  # noqa: PLC0415 - not needed for --help

    active = server.runtime.routing.active
    if as_json:
        json_out(
            {
                "address": join_address(host, server.port),
                "port": server.port,
                "grpc_port": server.grpc_port,
                "admin": join_address(admin_host, admin.port),
                "admin_port": admin.port,
                "service": server.config.service,
                "active": active,
                "versions": [version.pin for version in server.runtime.versions()],
                "pid": os.getpid(),
            }
            | ({"token_file": str(admin.token_file)} if admin.token_file else {})
        )
        return
    url = f"{'https' if server.config.tls else 'http'}://{join_address(host, server.port)}"
    say(
        "serving {} as {} on {}/{}/prediction, admin API on {}:{}; stop with SIGTERM",
        active or "nothing yet",
        server.config.service,
        url,
        server.config.service,
        admin_host,
        admin.port,
    )
    if admin.token_file:
        say("the token of the admin API is in {}", admin.token_file)
    if active:
        say("try: {}/docs", url)


def _tls(certificate: Path | None, key: Path | None) -> Tls | None:
    from cloudedge.serving import Tls  # noqa: PLC0415

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key belong together")
    return Tls(certificate, key)
