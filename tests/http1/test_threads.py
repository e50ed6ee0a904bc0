"""The HTTP server with a thread per connection: room, and how it ends."""

from __future__ import annotations

import http.client
import socket
import threading
from http import HTTPStatus

import pytest

from cloudedge.errors import Conflict
from cloudedge.http1 import ThreadedHandler, ThreadedServer

pytestmark = pytest.mark.parts

ASK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Hello(ThreadedHandler):
    def do_GET(self):  # noqa: N802
        self.send_head(HTTPStatus.OK, 5, {"X-Name": "a"})
        self.wfile.write(b"hello")


@pytest.fixture
def serve():
    made = []

    def make(**settings):
        server = ThreadedServer("127.0.0.1", 0, Hello, name="test", **{"max_connections": 2, **settings})
        made.append(server)
        server.start()
        return server

    yield make
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


def test_one_connection_too_many_is_refused(serve):
    server = serve()
    with connect(server) as one, connect(server) as two:
        for each in (one, two):
            each.sendall(ASK)
            assert each.recv(100)
        with connect(server) as third:
            assert third.recv(100).startswith(b"HTTP/1.1 503 ")


def test_or_waits_until_there_is_room(serve):
    server = serve(max_connections=1, wait=True)
    with connect(server) as one, connect(server) as two:
        one.sendall(ASK)
        assert one.recv(100)
        two.sendall(ASK)
        two.settimeout(0.2)
        with pytest.raises(TimeoutError):
            two.recv(100)
        one.shutdown(socket.SHUT_RDWR)
        two.settimeout(60)
        assert two.recv(100).startswith(b"HTTP/1.1 200 ")


def test_closing_ends_a_wait_for_room_and_breaks_off(serve):
    server = serve(max_connections=1, wait=True)
    with connect(server) as one, connect(server) as two:
        one.sendall(ASK)
        assert one.recv(100)
        two.sendall(ASK)
        closing = threading.Thread(target=server.close, kwargs={"break_off": True})
        closing.start()
        while one.recv(100):  # the rest of the answer
            pass
        closing.join(60)
        assert not closing.is_alive()


def test_a_port_that_is_taken_is_said(serve):
    port = serve().port
    with pytest.raises(Conflict, match=rf"the files cannot listen on 127.0.0.1:{port}: Address already in use"):
        ThreadedServer("127.0.0.1", port, Hello, name="test", max_connections=1, title="the files")


def test_a_server_that_never_began_closes():
    server = ThreadedServer("127.0.0.1", 0, Hello, name="test", max_connections=1)
    server.close()


def test_only_a_fault_of_the_program_is_reported(serve, capfd):
    class Broken(Hello):
        def do_GET(self):  # noqa: N802
            raise RuntimeError("a fault")

    server = ThreadedServer("127.0.0.1", 0, Broken, name="test", max_connections=1)
    server.start()
    with connect(server) as client:
        client.sendall(ASK)
        assert client.recv(100) == b""
    server.close()
    assert "a fault" in capfd.readouterr().err
