"""What callers notice when one of two serving replicas hangs, loses its network, or refuses: measured on the client.

    python bench/serving_hang.py [--json] [--seconds 10] [--callers 4]

Two servers are processes of this machine that answer every request after 5 ms; the client is the real one, with its
default policy. Callers never stop. For a while nothing happens: normal. Then one server is stopped (SIGSTOP), or every
connection through a relay in front of it is dropped or reset, for as long. A call is slow if it takes more than twice
the 99th percentile of normal. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from _bars import Bar, judge

from cloudedge.serving import Client

ANSWER = b'{"outputs":{"price":[[1.5]]},"pin":"sha256:1"}'
MODEL_S = 0.005
SLOW_BAR = 0.01
ROWS = {"x": np.zeros((1, 13), np.float32)}


class Handler(BaseHTTPRequestHandler):
    """Answers every prediction alike."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def do_POST(self) -> None:
        """Wait as long as a model takes, and answer."""
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(MODEL_S)
        self.send_response(200)
        self.send_header("content-length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """A server as a process; yields its port and its pid."""
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


class Relay:
    """Forwards connections to a port; `drop` swallows their bytes, `reset` resets them."""

    def __init__(self, port: int) -> None:
        self.fault = ""
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := source.recv(1 << 16):
                if self.fault == "reset":
                    break
                if not self.fault:
                    sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.close()


def ask(client: Client, callers: int, seconds: float) -> tuple[list[float], int]:
    """Ask from several threads for a while; returns how long each call took, and how many failed."""
    end = time.monotonic() + seconds

    def one(_: int) -> tuple[list[float], int]:
        took, failed = [], 0
        while (begun := time.monotonic()) < end:
            try:
                client.predict(ROWS)
            except Exception:  # noqa: BLE001 - whatever it is, the call has failed
                failed += 1
            took.append(time.monotonic() - begun)
        return took, failed

    with ThreadPoolExecutor(callers) as pool:
        results = list(pool.map(one, range(callers)))
    return [each for took, _ in results for each in took], sum(failed for _, failed in results)


def measure(fault: str, callers: int, seconds: float, say: Callable[[str], None]) -> list[Bar]:
    """Measure one fault; returns its bars."""
    with server() as (first, pid), server() as (second, _):
        relay = Relay(first)
        with Client(f"http://127.0.0.1:{relay.port}", f"http://127.0.0.1:{second}") as client:
            ask(client, callers, min(1.0, seconds))
            normal, _ = ask(client, callers, seconds)
            if fault == "stop":
                os.kill(pid, signal.SIGSTOP)
            relay.fault = fault if fault != "stop" else ""
            took, failed = ask(client, callers, seconds)
            rests = client.endpoint_states()[0].rests
    usual = float(np.quantile(normal, 0.99))
    p99, slow = float(np.quantile(took, 0.99)), float(np.mean(np.array(took) > 2 * usual))
    say(
        f"{fault:6} normal p99 {usual * 1e3:6.1f} ms; then {len(took)} calls, p99 {p99 * 1e3:6.1f} ms "
        f"({p99 / usual:.2f} x), slowest {max(took) * 1e3:.0f} ms, {slow:.3%} slow, {failed} failed, {rests} rests"
    )
    return [
        Bar(f"{fault}: share of calls slower than twice normal", slow, "at most", SLOW_BAR),
        Bar(f"{fault}: failed calls", failed, "at most", 0),
        Bar(f"{fault}: rests of the faulty server", rests, "at least", 1),
    ]


def main() -> None:
    """Measure every fault, or be a server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        http.daemon_threads = True
        http.handle_error = lambda *_: None  # type: ignore[method-assign] - connections are reset on purpose
        print(http.server_address[1], flush=True)
        http.serve_forever()

    def say(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    bars = [
        bar
        for fault in ("stop", "drop", "reset")
        for bar in measure(fault, options.callers, options.seconds, say)
    ]  # fmt: skip
    verdict = judge(bars, say)
    if options.json:
        print(json.dumps(verdict))
    sys.exit(bool(verdict["missed"]))


if __name__ == "__main__":
    main()
