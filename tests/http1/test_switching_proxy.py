"""The front passes HTTP on whole, and turns to another container between two requests, never within one."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import cloudedge.http1.switching_proxy

pytestmark = pytest.mark.parts

FRONT = Path(cloudedge.http1.switching_proxy.__file__)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Backend(http.server.ThreadingHTTPServer):
    """Answers with its own name and what was sent."""

    daemon_threads = True

    def __init__(self, name):
        self.name = name.encode()
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/slow":
            self.server.begun.release()
            self.server.go_on.wait(30)
        answer = self.server.name + b" " + body
        self.send_response(200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(answer), 7000):
                piece = answer[at : at + 7000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
            return
        if self.path == "/until-the-end":
            self.send_header("Connection", "close")
            self.end_headers()
        else:
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
        self.wfile.write(answer)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def backends():
    with Backend("one") as one, Backend("two") as two:
        for backend in (one, two):
            threading.Thread(target=backend.serve_forever, daemon=True).start()
        yield one, two
        for backend in (one, two):
            backend.go_on.set()
            backend.shutdown()


class Front:
    def __init__(self, port, target, process):
        self.port, self.target, self.process = port, target, process

    def turn_to(self, address):
        self.target.write_text(address)
        self.process.send_signal(signal.SIGHUP)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)


@pytest.fixture
def front(backends, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    target = tmp_path / "target"
    target.write_text(backends[0].address)
    process = subprocess.Popen([sys.executable, FRONT, str(port), target], env={"PATH": os.environ["PATH"]})
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield Front(port, target, process)
    finally:
        process.kill()
        process.wait(10)


def ask(connection, path="/x", body=b"hello", **options):
    connection.request("POST", path, body, **options)
    answer = connection.getresponse()
    return answer.status, answer.read()


def wait_for(connection, name):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if ask(connection)[1].startswith(name):
            return
        time.sleep(0.01)
    raise AssertionError(f"{name} does not answer")


@pytest.mark.parametrize("path", ["/x", "/chunked"])
def test_bodies_pass_whole_on_one_connection(front, path):
    with contextlib.closing(front.connect()) as connection:
        for size in (0, 1, 100, 300_000, 3_000_000):
            body = os.urandom(size)
            assert ask(connection, path, body) == (200, b"one " + body)


def test_a_body_that_ends_with_the_connection(front):
    with contextlib.closing(front.connect()) as connection:
        assert ask(connection, "/until-the-end", b"a" * 100_000) == (200, b"one " + b"a" * 100_000)


def test_a_request_in_chunks(front):
    with contextlib.closing(front.connect()) as connection:
        for _ in range(2):
            pieces = iter([b"a" * 10, b"b" * 70_000, b"c"])
            assert ask(connection, body=pieces, encode_chunked=True)[1] == b"one " + b"a" * 10 + b"b" * 70_000 + b"c"


def test_a_head_has_no_body(front):
    with contextlib.closing(front.connect()) as connection:
        connection.request("HEAD", "/")
        assert connection.getresponse().read() == b""
        assert ask(connection) == (200, b"one hello")


def test_an_open_connection_moves_between_two_requests(front, backends):
    with contextlib.closing(front.connect()) as connection:
        connection.connect()
        before = connection.sock.getsockname()
        assert ask(connection) == (200, b"one hello")
        front.turn_to(backends[1].address)
        wait_for(connection, b"two")
        assert connection.sock.getsockname() == before


def test_a_request_under_way_ends_where_it_began(front, backends):
    answers = []
    with contextlib.closing(front.connect()) as slow, contextlib.closing(front.connect()) as other:
        thread = threading.Thread(target=lambda: answers.append(ask(slow, "/slow")))
        thread.start()
        assert backends[0].begun.acquire(timeout=20)
        front.turn_to(backends[1].address)
        wait_for(other, b"two")
        backends[0].go_on.set()
        thread.join(20)
        assert answers == [(200, b"one hello")]
        assert ask(slow) == (200, b"two hello")


def test_nobody_notices_under_load(front, backends):
    stop, failed, counts = threading.Event(), [], {b"one": 0, b"two": 0}

    def client():
        with contextlib.closing(front.connect()) as connection:
            while not stop.is_set():
                try:
                    status, body = ask(connection)
                except (OSError, http.client.HTTPException) as error:
                    failed.append(error)
                    return
                if status != 200 or body[3:] != b" hello":
                    failed.append((status, body))
                counts[body[:3]] += 1

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        time.sleep(0.1)
        front.turn_to(backends[(turn + 1) % 2].address)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not failed
    assert min(counts.values()) > 0


def test_nothing_behind_it(front, backends):
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    with contextlib.closing(front.connect()) as connection:
        front.turn_to(nobody)
        deadline = time.monotonic() + 20
        while (answer := ask(connection))[0] == 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert answer[0] == 503
        assert b"no server" in answer[1]


class Closing:
    """A server that answers the first request of each connection, and does with the second one what it is told to."""

    def __init__(self, second):
        self.second = second
        self.received = []
        self.closed = threading.Semaphore(0)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                accepted, _ = self.listening.accept()
                with accepted, accepted.makefile("rb") as reader:
                    self.read(reader)
                    accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    if self.second != "is idle":
                        self.read(reader)
                    if self.second == "answers half":
                        accepted.sendall(b"HTTP/1.1 200 OK\r\nConte")
                self.closed.release()

    def read(self, reader):
        line, length = reader.readline(), 0
        while (field := reader.readline()) not in (b"\r\n", b""):
            if field.lower().startswith(b"content-length:"):
                length = int(field.split(b":")[1])
        body = reader.read(length)
        if line:
            self.received.append(body)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listening.close()


def turned(front, server, connection):
    """Turn a front to a server and ask it once."""
    front.turn_to(server.address)
    deadline = time.monotonic() + 20
    while ask(connection, body=b"1") != (200, b"ok"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_connection_that_the_server_closed_while_idle_costs_no_request(front):
    with Closing("is idle") as server, contextlib.closing(front.connect()) as connection:
        turned(front, server, connection)
        for number in (b"2", b"3"):
            assert server.closed.acquire(timeout=20)
            assert ask(connection, body=number) == (200, b"ok")
        assert server.received == [b"1", b"2", b"3"]


@pytest.mark.parametrize("body", [b"", b"2" * 200_000])
def test_a_request_that_a_closing_server_left_unanswered_is_sent_again(front, body):
    with Closing("takes and closes") as server, contextlib.closing(front.connect()) as connection:
        turned(front, server, connection)
        assert ask(connection, body=body) == (200, b"ok")
        assert server.received == [b"1", body, body]


@pytest.mark.parametrize(
    ("second", "body"),
    [("answers half", b"2"), ("takes and closes", b"2" * (cloudedge.http1.switching_proxy.MAX_AGAIN + 1))],
    ids=["answered in part", "too long to be kept"],
)
def test_what_cannot_be_sent_again_ends_the_connection(front, second, body):
    with Closing(second) as server, contextlib.closing(front.connect()) as connection:
        turned(front, server, connection)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            ask(connection, body=body)
        assert server.received == [b"1", body]


UNCLEAR = {
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "length and chunks": b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length that is not a number": b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello",
    "another encoding": b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\nhello",
    "not HTTP": b"hello\r\n\r\n",
    "a chunk of unclear size": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "a length of 5,000 digits": b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nhello",
    "a chunk line without an end": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;" + b"a" * 200_000,
    "trailers without an end": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 20_000,
    "a head without an end": b"POST / HTTP/1.1\r\nA: " + b"a" * 200_000,
}


@pytest.mark.parametrize("sent", UNCLEAR.values(), ids=UNCLEAR.keys())
def test_what_could_be_read_in_two_ways_is_refused(front, sent):
    with socket.create_connection(("127.0.0.1", front.port), 10) as raw:
        raw.sendall(sent)
        got = b""
        with contextlib.suppress(ConnectionError):
            while piece := raw.recv(4096):
                got += piece
        assert got.startswith(b"HTTP/1.1 400") or not got
    with contextlib.closing(front.connect()) as connection:
        assert ask(connection) == (200, b"one hello")


@pytest.mark.parametrize(
    ("start", "apart"),
    [(HTTP2, False), (HTTP2, True), (b"PRPC\0\0\0\x05", False)],
    ids=["HTTP/2", "HTTP/2 on a port of its own", "baidu_std"],
)
def test_other_protocols_are_passed_on_as_they_are_and_stay_where_they_began(front, backends, start, apart):
    def echo(server):
        accepted, _ = server.accept()
        with accepted:
            while data := accepted.recv(4096):
                accepted.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if start.startswith(b"PRI") and apart:  # gRPC has a port of its own; the one of HTTP stays
            front.target.with_name("target.grpc").write_text(address)
            address = backends[0].address
        front.turn_to(address)
        time.sleep(0.5)
        with contextlib.closing(front.connect()) as connection:
            assert not apart or ask(connection) == (200, b"one hello")
            connection.close()
            connection.connect()
            connection.sock.settimeout(20)
            answers = connection.sock.makefile("rb")
            connection.sock.sendall(start)
            assert answers.read(len(start)) == start
            front.turn_to(backends[0].address)
            time.sleep(0.5)
            connection.sock.sendall(b"more")
            assert answers.read(4) == b"more"
            connection.sock.shutdown(socket.SHUT_WR)
            assert answers.read() == b""
            answers.close()
        thread.join(20)
        assert not thread.is_alive()
