"""A server's counters in the text form Prometheus scrapes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cloudedge.cube.server._server import Server

__all__ = ["prometheus"]

_COUNTERS = {
    "requests": "Seeks answered, errors included.",
    "errors": "Seeks answered with an error.",
    "keys": "Keys looked up.",
    "missing_keys": "Keys that were not there.",
    "too_long_values": "Keys whose value is longer than a server delivers.",
    "bytes_received": "Bytes read from clients.",
    "bytes_sent": "Bytes written to clients.",
    "connections_opened": "Connections accepted.",
    "connections_timed_out": "Connections closed for being idle, sending half a request or not reading.",
    "connections_broken": "Connections closed for sending bytes that are no valid request.",
    "connections_turned_away": "Connections closed at once because there were too many.",
}


def prometheus(server: Server) -> str:
    """Write all metrics of a server."""
    return "\n".join(_lines(server)) + "\n"


def _lines(server: Server) -> Iterator[str]:
    stats = server.stats()
    for name, text in _COUNTERS.items():
        yield from _metric(f"{name}_total", "counter", text)
        yield f"cloudedge_cube_{name}_total {stats[name]}"
    yield from _metric("connections", "gauge", "Connections open now.")
    yield f"cloudedge_cube_connections {stats['connections']}"

    yield from _metric("request_seconds", "histogram", "From a request being readable to its answer being sent.")
    total = 0
    *bounded, rest = stats["latency_buckets"]
    for i, count in enumerate(bounded):
        total += count
        yield f'cloudedge_cube_request_seconds_bucket{{le="{2**i / 1e6:.9g}"}} {total}'
    yield f'cloudedge_cube_request_seconds_bucket{{le="+Inf"}} {total + rest}'
    yield f"cloudedge_cube_request_seconds_sum {stats['latency_seconds_sum']:.9f}"
    yield f"cloudedge_cube_request_seconds_count {total + rest}"

    versions = server.versions()
    gauges = (
        ("version_active", "Whether requests without a pin are answered from it.", lambda v: int(v.active)),
        ("version_rows", "Rows of a loaded version.", lambda v: v.rows),
        ("version_memory_bytes", "Memory a loaded version adds.", lambda v: v.memory_bytes),
    )
    for name, text, value in gauges:
        yield from _metric(name, "gauge", text)
        for version in versions:
            labels = f'version="{_escape(version.name)}",checksum="{version.checksum}"'
            yield f"cloudedge_cube_{name}{{{labels}}} {value(version)}"
    yield from _metric("ready", "gauge", "Whether a version is active and the server is not stopping.")
    yield f"cloudedge_cube_ready {int(server.is_ready)}"
    resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    yield "# TYPE process_resident_memory_bytes gauge"
    yield f"process_resident_memory_bytes {resident_pages * os.sysconf('SC_PAGE_SIZE')}"


def _metric(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP cloudedge_cube_{name} {text}", f"# TYPE cloudedge_cube_{name} {kind}"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
