"""The HTTP server with a thread per connection: room, and how it ends."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import ExitStack
from http import HTTPStatus

import pytest

from cloudedge.errors import Conflict
from cloudedge.http1 import ThreadedHandler, ThreadedServer

pytestmark = pytest.mark.parts

ASK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LONG = b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n"


class Hello(ThreadedHandler):
    """Accepts a request whose path begins with /long, and answers it when it may end."""

    busy = threading.Event()
    may_end = threading.Event()

    def do_GET(self):  # noqa: N802
        if self.path.startswith("/long"):
            if not self.accept(60):
                self.send_head(HTTPStatus.SERVICE_UNAVAILABLE, 0)
                return
            self.busy.set()
            assert self.may_end.wait(60)
        self.send_head(HTTPStatus.OK, 5, {"X-Name": "a"})
        self.wfile.write(b"hello")


@pytest.fixture
def serve():
    made = []

    def make(**settings):
        server = ThreadedServer("127.0.0.1", 0, Hello, name="test", **{"max_requests": 2, **settings})
        made.append(server)
        server.start()
        return server

    for event in (Hello.busy, Hello.may_end):
        event.clear()
    yield make
    Hello.may_end.set()
    for server in made:
        server.close(break_off=True)


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def test_requests_are_answered_on_one_connection(serve, capfd):
    http_ = http.client.HTTPConnection("127.0.0.1", serve().port, timeout=60)
    for _ in range(2):
        http_.request("GET", "/secret")
        answer = http_.getresponse()
        assert (answer.read(), answer.headers["X-Name"]) == (b"hello", "a")
    http_.close()
    assert capfd.readouterr() == ("", "")


def dribble(connection, seconds, piece=b"x"):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        connection.sendall(piece)


def ask_long(connection):
    connection.sendall(LONG)
    assert Hello.busy.wait(60)


def test_one_request_too_many_is_refused_and_others_are_answered(serve):
    server = serve(max_requests=1)
    with connect(server) as one, connect(server) as two, connect(server) as three:
        ask_long(one)
        two.sendall(LONG)
        assert two.recv(100).startswith(b"HTTP/1.1 503 ")
        three.sendall(ASK)
        assert three.recv(100).startswith(b"HTTP/1.1 200 "), "it needs no slot"
        Hello.may_end.set()
        assert one.recv(100).startswith(b"HTTP/1.1 200 ")
        wait_for_an_answer(two, LONG)


def wait_for_an_answer(connection, request):
    end = time.monotonic() + 60
    while True:  # the slot is given back a moment after the answer
        connection.sendall(request)
        answer = connection.recv(1000)
        if b" 200 " in answer:
            return
        assert time.monotonic() < end


def test_or_waits_until_there_is_room(serve):
    server = serve(max_requests=1, wait=True)
    with connect(server) as one, connect(server) as two:
        ask_long(one)
        two.sendall(LONG)
        two.settimeout(0.2)
        with pytest.raises(TimeoutError):
            two.recv(100)
        Hello.may_end.set()
        two.settimeout(60)
        assert two.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", ASK], ids=["nothing", "half a head", "an answered request"])
def test_connections_without_a_request_give_way_to_new_ones(serve, sent, monkeypatch):
    monkeypatch.setattr("cloudedge.http1._threads._MAX_WAITING", 3)
    server = serve()
    with ExitStack() as stack:
        kept = stack.enter_context(connect(server))
        ask_long(kept)
        for _ in range(20):
            stack.enter_context(connect(server)).sendall(sent)
        last = stack.enter_context(connect(server))
        last.sendall(ASK)
        assert last.recv(100).startswith(b"HTTP/1.1 200 ")
        Hello.may_end.set()
        assert kept.recv(100).startswith(b"HTTP/1.1 200 "), "it has a request"


def test_a_request_that_is_not_accepted_is_bounded(serve):
    head = b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"x" * 60_000) for i in range(90))
    with connect(serve()) as client, pytest.raises((ConnectionResetError, BrokenPipeError)):
        dribble(client, 60, head)


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nX-Slow: ", b"GET /"])
def test_a_whole_request_has_a_deadline(serve, monkeypatch, head):
    monkeypatch.setattr(Hello, "timeout", 1)
    with connect(serve()) as slow:
        slow.sendall(head)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            dribble(slow, 60)


def test_closing_ends_a_wait_for_room_and_breaks_off(serve):
    server = serve(max_requests=1, wait=True)
    with connect(server) as one, connect(server) as two:
        ask_long(one)
        two.sendall(LONG)
        closing = threading.Thread(target=server.close, kwargs={"break_off": True})
        closing.start()
        assert one.recv(100) == b""
        Hello.may_end.set()
        closing.join(60)
        assert not closing.is_alive()


def test_a_port_that_is_taken_is_said(serve):
    port = serve().port
    with pytest.raises(Conflict, match=rf"the files cannot listen on 127.0.0.1:{port}: Address already in use"):
        ThreadedServer("127.0.0.1", port, Hello, name="test", max_requests=1, title="the files")


def test_a_server_that_never_began_closes():
    server = ThreadedServer("127.0.0.1", 0, Hello, name="test", max_requests=1)
    server.close()


def test_only_a_fault_of_the_program_is_reported(serve, capfd):
    class Broken(Hello):
        def do_GET(self):  # noqa: N802
            raise RuntimeError("a fault")

    server = ThreadedServer("127.0.0.1", 0, Broken, name="test", max_requests=1)
    server.start()
    with connect(server) as client:
        client.sendall(ASK)
        assert client.recv(100) == b""
    server.close()
    assert "a fault" in capfd.readouterr().err
