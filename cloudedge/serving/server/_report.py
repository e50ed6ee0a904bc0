"""Reports of a runtime: metrics for Prometheus, and statistics for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from cloudedge.admin import with_key_counts
from cloudedge.http1 import Connections
from cloudedge.serving.model import VersionQueue, metric, resident_bytes, sample
from cloudedge.serving.runtime import Runtime

__all__ = ["prometheus", "stats"]

_UPSTREAM: dict[str, tuple[str, Callable[[VersionQueue], float]]] = {
    "pd_query_request_success_total": ("Requests answered.", lambda queue: queue.version.metrics.succeeded),
    "pd_query_request_failure_total": ("Requests refused or failed.", lambda queue: queue.version.metrics.failed),
    "pd_inference_count_total": ("Runs of the model.", lambda queue: queue.version.metrics.runs),
    "pd_query_request_duration_us_total": (
        "Time from a request being read to its answer, in microseconds.",
        lambda queue: round(queue.version.metrics.latency.total * 1e6),
    ),
    "pd_inference_duration_us_total": (
        "Time in runs of the model, look-ups included, in microseconds.",
        lambda queue: round(queue.version.metrics.run_s * 1e6),
    ),
}
_OWN: dict[str, tuple[str, str, Callable[[VersionQueue], float]]] = {
    "version_memory_bytes": (
        "gauge", "Memory a version takes, as estimated from its files.", lambda queue: queue.version.memory_bytes
    ),
    "queue_rows": ("gauge", "Rows that wait.", lambda queue: queue.queued_rows),
    "pending_requests": ("gauge", "Requests taken and not yet answered.", lambda queue: queue.pending),
    "keys_total": ("counter", "Keys looked up.", lambda queue: queue.version.metrics.keys),
    "missing_keys_total": (
        "counter", "Keys that the table does not have.", lambda queue: queue.version.metrics.missing_keys
    ),
    "defaulted_keys_total": (
        "counter",
        "Keys whose shard was unreachable and whose rows are a declared default.",
        lambda queue: queue.version.metrics.defaulted_keys,
    ),
    "ids_total": ("counter", "Deprecated: keys_total.", lambda queue: queue.version.metrics.keys),
    "ids_missing_total": (
        "counter", "Deprecated: missing_keys_total.", lambda queue: queue.version.metrics.missing_keys
    ),
    "ids_defaulted_total": (
        "counter", "Deprecated: defaulted_keys_total.", lambda queue: queue.version.metrics.defaulted_keys
    ),
    "shadow_compared_total": (
        "counter", "Mirrored requests answered.", lambda queue: queue.version.metrics.shadow_compared
    ),
    "shadow_differed_total": (
        "counter", "Mirrored requests answered differently.", lambda queue: queue.version.metrics.shadow_differed
    ),
    "shadow_dropped_total": (
        "counter", "Mirrored requests left out.", lambda queue: queue.version.metrics.shadow_dropped
    ),
}  # fmt: skip


_CONNECTIONS: dict[str, tuple[str, str, Callable[[Connections], float]]] = {
    "connections": ("gauge", "Connections open now, of HTTP and baidu_std.", lambda all_: len(all_.open)),
    "connections_refused_total": (
        "counter", "Connections and requests refused because there were too many.", lambda all_: all_.refused
    ),
    "connections_timed_out_total": (
        "counter", "Connections closed for sending half a request, or for not reading.", lambda all_: all_.timed_out
    ),
    "held_bytes": ("gauge", "Bytes of requests that are not answered yet.", lambda all_: all_.held.count),
}  # fmt: skip


def prometheus(runtime: Runtime, connections: Connections | None = None) -> str:
    """Write all metrics of a runtime and of its server."""
    return "\n".join((*_lines(runtime), *_server_lines(connections))) + "\n"


def _server_lines(connections: Connections | None) -> Iterator[str]:
    if connections is None:
        return
    for short, (kind, text, value) in _CONNECTIONS.items():
        name = f"cloudedge_serving_{short}"
        yield from metric(name, kind, text)
        yield sample(name, value(connections))


def _lines(runtime: Runtime) -> Iterator[str]:
    queues = dict(runtime.queues)
    labels = {pin: f'model="{queue.version.bundle.name}",version="{pin}"' for pin, queue in queues.items()}
    for name, (text, value) in _UPSTREAM.items():
        yield from metric(name, "counter", text)
        yield from (sample(name, value(queue), labels[pin]) for pin, queue in queues.items())
    for short, (kind, text, value) in _OWN.items():
        name = f"cloudedge_serving_{short}"
        yield from metric(name, kind, text)
        yield from (sample(name, value(queue), labels[pin]) for pin, queue in queues.items())
    yield from metric("cloudedge_serving_request_seconds", "histogram", "From a request being read to its answer.")
    for pin, queue in queues.items():
        yield from queue.version.metrics.latency.lines("cloudedge_serving_request_seconds", labels[pin])
    yield from metric("cloudedge_serving_batch_rows", "histogram", "Rows in one run of the model.")
    for pin, queue in queues.items():
        yield from queue.version.metrics.batch_rows.lines("cloudedge_serving_batch_rows", labels[pin])
    yield from metric("cloudedge_serving_version_active", "gauge", "1 if the version is active.")
    for pin in queues:
        yield sample("cloudedge_serving_version_active", int(runtime.routing.active == pin), labels[pin])
    yield from metric("cloudedge_serving_versions", "gauge", "Versions loaded.")
    yield sample("cloudedge_serving_versions", len(queues))
    yield from metric("process_resident_memory_bytes", "gauge", "Resident memory.")
    yield sample("process_resident_memory_bytes", resident_bytes())


def stats(runtime: Runtime, connections: Connections | None = None) -> dict[str, Any]:
    """Summarise for people."""
    versions = {}
    for pin, queue in dict(runtime.queues).items():
        metrics = queue.version.metrics
        runs = metrics.runs or 1
        found = {
            "model": f"{queue.version.bundle.name}:{queue.version.bundle.version}",
            "answered": metrics.succeeded,
            "failed": metrics.failed,
            "latency_buckets": metrics.latency.buckets(1e3),
            "p50_ms": metrics.latency.quantile(0.5) * 1e3,
            "p99_ms": metrics.latency.quantile(0.99) * 1e3,
            "runs": metrics.runs,
            "rows": int(metrics.batch_rows.total),
            "rows_per_run": round(metrics.batch_rows.total / runs, 2),
            "run_ms": round(metrics.run_s / runs * 1e3, 3),
            "queued_rows": queue.queued_rows,
            "pending": queue.pending,
            "keys": metrics.keys,
            "missing_keys": metrics.missing_keys,
            "defaulted_keys": metrics.defaulted_keys,
            "scores": metrics.scores,
            "score_sum": metrics.score_sum,
            "score_squares": metrics.score_squares,
            "shadow_compared": metrics.shadow_compared,
            "shadow_differed": metrics.shadow_differed,
            "tuning": asdict(queue.version.tuning) | {"inline": queue.is_inline},
        }
        versions[pin] = with_key_counts(found)
    server = {short: value(connections) for short, (_, _, value) in _CONNECTIONS.items()} if connections else {}
    return {"versions": versions, "routing": asdict(runtime.routing), "resident_bytes": resident_bytes(), **server}
