"""The asyncio HTTP server: files, hang-ups, chunked bodies, faults of handlers, limits."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cloudedge.http1 import (
    ConnectionLimits,
    Connections,
    EventLoopThread,
    FileAnswer,
    FilePart,
    HangUp,
    HttpAnswer,
    OtherProtocol,
)

pytestmark = pytest.mark.parts

LIMITS = ConnectionLimits(max_body_bytes=1000, max_answer_bytes=5000, write_timeout_s=60.0)
SIZE = 8 << 20


class Site:
    """A server whose handler a test sets."""

    def __init__(self):
        self.runs = EventLoopThread("test-http1")
        self.runs.start()
        self.handler = lambda call: HttpAnswer(200, call.body)
        self.connections = self.listener = None
        self.runs.call(self._listen()).result(60)
        self.port = self.listener.sockets[0].getsockname()[1]

    async def _listen(self):
        loop = self.runs.loop
        self.connections = Connections(self._answer, LIMITS, loop)
        self.listener = await loop.create_server(self.connections, "127.0.0.1", 0)

    def _answer(self, call):
        return self.handler(call)

    def connect(self):
        return contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60))

    def raw(self, data):
        """Send bytes and return what comes back until the other side hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as sock:
            sock.sendall(data)
            found = b""
            while chunk := sock.recv(65536):
                found += chunk
        return found

    def close(self):
        async def end():
            self.listener.close()
            self.connections.close()

        self.runs.call(end()).result(60)
        self.runs.stop()


@pytest.fixture
def site():
    made = Site()
    yield made
    made.close()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_a_call_says_what_was_asked_and_by_whom(site):
    site.handler = lambda call: HttpAnswer(
        200, json.dumps([call.method, call.path, call.headers["x-a"], call.body.decode(), call.peer]).encode()
    )
    with site.connect() as http_:
        http_.request("PUT", "/a%20b?c=d", b"body", {"X-A": "b"})
        assert json.loads(http_.getresponse().read()) == ["PUT", "/a%20b?c=d", "b", "body", "127.0.0.1"]


def test_a_chunked_body_is_read_whole_and_bounded(site):
    with site.connect() as http_:
        http_.request(
            "POST", "/", iter([b"a" * 300, b"b" * 300]), {"Transfer-Encoding": "chunked"}, encode_chunked=True
        )
        assert http_.getresponse().read() == b"a" * 300 + b"b" * 300
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert site.raw(head + b"400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 413 ")


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "a header's value": b"GET / HTTP/1.1\r\nA: ",
    "a header's name": b"GET / HTTP/1.1\r\n",
    "the target": b"GET /",
    "a trailer": CHUNKED + b"1\r\na\r\n0\r\nA: ",
    "a chunk's extension": CHUNKED + b"1;",
}


@pytest.mark.parametrize("opening", ENDLESS.values(), ids=ENDLESS)
def test_bytes_without_an_end_are_counted_as_they_arrive(site, opening):
    site.connections.limits = replace(LIMITS, max_body_bytes=64 << 20)  # room to go on sending and hear why
    with socket.create_connection(("127.0.0.1", site.port), 60) as raw:
        raw.sendall(opening)
        sent, answer = 0, b""
        raw.setblocking(False)
        end = time.monotonic() + 60
        while not answer and time.monotonic() < end and sent < 64 << 20:
            with contextlib.suppress(BlockingIOError):
                sent += raw.send(b"a" * 65536)
            with contextlib.suppress(BlockingIOError):
                answer = raw.recv(65536)
        assert answer.startswith(b"HTTP/1.1 431 "), sent
    with site.connect() as http_:
        http_.request("GET", "/")
        assert http_.getresponse().status == 200


def test_a_length_that_no_number_has_is_refused(site):
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"
    assert site.raw(head).startswith(b"HTTP/1.1 400 ")


def test_a_trailer_replaces_no_header(site):
    site.handler = lambda call: HttpAnswer(200, json.dumps(dict(call.headers)).encode())
    answer = site.raw(CHUNKED + b"1\r\na\r\n0\r\nHost: evil\r\nB: c\r\n\r\nGET / HTTP/1.0\r\n\r\n")
    assert b'"host": "a"' in answer
    assert b"evil" not in answer


def test_a_body_in_tiny_chunks_is_whole(site):
    body = bytes(range(250)) * 4
    chunks = b"".join(b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, len(body), 2)) * 3
    site.connections.limits = replace(LIMITS, max_body_bytes=10_000)
    assert site.raw(CHUNKED + chunks + b"0\r\n\r\nGET / HTTP/1.0\r\n\r\n").count(body * 3) == 1


def test_part_of_a_file_is_sent_and_the_connection_goes_on(site, file):
    sent = []
    part = FilePart(file, 1000, SIZE - 2000, on_sent=sent.append)
    site.handler = lambda call: FileAnswer(206, content_type="application/octet-stream", part=part)
    with site.connect() as http_:
        for method in ("GET", "HEAD", "GET"):
            http_.request(method, "/")
            answer = http_.getresponse()
            assert (answer.status, answer.headers["Content-Length"]) == (206, str(SIZE - 2000))
            assert answer.read() == (file.read_bytes()[1000:-1000] if method == "GET" else b"")
    assert sum(sent) == 2 * (SIZE - 2000)


def test_a_file_waits_for_a_slow_reader(site, file):
    sent = []
    part = FilePart(file, 0, SIZE, on_sent=sent.append)
    site.handler = lambda call: FileAnswer(200, part=part)
    with site.connect() as http_:
        http_.request("GET", "/")
        answer = http_.getresponse()
        deadline, before = time.monotonic() + 60, -1
        while sum(sent) != before:  # until its buffers are full
            assert time.monotonic() < deadline
            before = sum(sent)
            time.sleep(0.2)
        assert sum(sent) < SIZE, "all was read into memory"
        assert answer.read() == file.read_bytes()


def test_a_client_that_leaves_in_the_middle_of_a_file_lets_it_go(site, file):
    site.handler = lambda call: FileAnswer(200, part=FilePart(file, 0, SIZE))
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert sock.recv(100)
    deadline = time.monotonic() + 60
    while site.connections.open or file in open_files():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_files():
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(link.readlink())
    return found


@pytest.mark.parametrize("cut", [0, 1, 70_000])
def test_a_file_can_be_cut_off(site, file, cut):
    site.handler = lambda call: FileAnswer(200, part=FilePart(file, 0, SIZE, cut=cut))
    head, _, body = site.raw(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").partition(b"\r\n\r\n")
    assert f"Content-Length: {SIZE}".encode() in head
    assert body == file.read_bytes()[:cut]


def test_a_file_that_became_shorter_ends_the_connection(site, file):
    site.handler = lambda call: FileAnswer(200, part=FilePart(file, SIZE - 10, 20))
    assert site.raw(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").endswith(file.read_bytes()[-10:])


def test_a_file_that_is_not_there_is_a_fault_of_the_server(site, tmp_path):
    site.handler = lambda call: FileAnswer(200, part=FilePart(tmp_path / "none", 0, 20))
    with site.connect() as http_:
        http_.request("GET", "/")
        assert http_.getresponse().status == 500


@pytest.mark.parametrize("is_later", [False, True])
def test_a_handler_may_hang_up(site, is_later):
    async def later():
        return HangUp(200)

    site.handler = lambda call: later() if is_later else HangUp(200)
    with contextlib.suppress(ConnectionResetError):
        assert site.raw(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") == b""


@pytest.mark.parametrize("is_later", [False, True])
def test_a_handler_that_fails_is_answered(site, is_later):
    async def later():
        raise RuntimeError

    def now(call):
        if is_later:
            return later()
        raise RuntimeError

    site.handler = now
    with site.connect() as http_:
        http_.request("GET", "/")
        answer = http_.getresponse()
        assert (answer.status, answer.read()) == (500, b'{"error":"internal"}')


def test_an_answer_that_is_too_long_is_replaced(site):
    site.handler = lambda call: HttpAnswer(200, b"x" * 5001)
    with site.connect() as http_:
        http_.request("GET", "/")
        answer = http_.getresponse()
        assert (answer.status, b"5001 bytes" in answer.read()) == (400, True)


def test_another_protocol_may_share_the_port(site):
    class Shout:
        half_received, is_answering = 0, False

        def __init__(self, part):
            self.part = part

        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data.upper())
            self.part()

        def connection_lost(self, exc):
            pass

        pause_writing = resume_writing = lambda self: None

    site.connections.other = OtherProtocol(b"shout ", Shout)
    assert site.raw(b"shout hello") == b"SHOUT HELLO"
    assert site.raw(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as sock:
        sock.sendall(b"sho")
        threading.Event().wait(0.05)
        sock.sendall(b"ut x")
        assert sock.recv(100) == b"SHOUT X"


def test_the_package_needs_no_httptools_until_its_server_is_used():
    code = (
        "import sys; sys.modules['httptools'] = None\n"
        "import cloudedge.http1, cloudedge.admin\n"
        "from cloudedge.http1 import ThreadedServer, HttpAnswer, ConnectionLimits, switching_proxy\n"
        "try:\n    cloudedge.http1.Connections\n"
        "except ImportError:\n    print('needs httptools')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "needs httptools\n"


def test_a_header_of_one_answer_only_is_sent_and_not_remembered(site, tmp_path):
    """Remembering a trace id would fill the server's heads with ones that no other answer has."""
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    with site.connect() as client:
        for number in range(5):
            own = {"Trace": f"t{number}\n"}
            site.handler = lambda _, own=own: HttpAnswer(200, b"abc", headers={"Pin": "p"}, own_headers=own)
            assert _headers(client) == ("p", f"t{number}?", "3")
            part = FilePart(file, 0, 3)
            site.handler = lambda _, own=own, part=part: FileAnswer(
                200, headers={"Pin": "p"}, own_headers=own, part=part
            )
            assert _headers(client) == ("p", f"t{number}?", "3")
    assert len(site.connections.heads) == 1


def _headers(client):
    client.request("GET", "/")
    response = client.getresponse()
    assert response.read() == b"abc"
    return tuple(response.headers[name] for name in ("Pin", "Trace", "Content-Length"))
