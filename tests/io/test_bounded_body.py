"""Bodies of answers, from a server that says what it likes."""

import socket
import threading
from contextlib import contextmanager

import pytest
import requests

from cloudedge.cube.delivery import CubeReplica
from cloudedge.errors import Unavailable
from cloudedge.io._bounded_body import json_parts, parse_length, read_body

pytestmark = pytest.mark.parts

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"


@contextmanager
def saying(answer):
    """A server that gives every connection the same bytes and hangs up, as one that was killed does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(65536)
                    client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_a_body_is_read_up_to_the_limit():
    with saying(WHOLE) as address:
        for limit, body in ((4, b"0123"), (10, b"0123456789"), (100, b"0123456789")):
            with requests.get(f"http://{address}", stream=True, timeout=5) as answer:
                assert read_body(answer, limit) == body


@pytest.mark.parametrize("kept", [0, 3])
def test_a_connection_that_breaks_within_a_body_is_an_error_of_requests(kept):
    with saying(WHOLE[: len(WHOLE) - 10 + kept]) as address:
        with (
            requests.get(f"http://{address}", stream=True, timeout=5) as answer,
            pytest.raises(requests.RequestException),
        ):
            read_body(answer, 100)
        with pytest.raises(Unavailable):
            CubeReplica("t", 0, address=address, admin=address).status()


@pytest.mark.parametrize(
    ("text", "length"),
    [("0", 0), (" 12 ", 12), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("9" * 5000, None), ("", None), ("-1", None),
     ("+1", None), ("1_0", None), ("٣", None), ("1, 1", None)],
)  # fmt: skip
def test_a_length_is_a_number_that_a_message_can_have(text, length):
    assert parse_length(text) == length


def test_the_parts_of_json_are_counted_without_parsing():
    assert json_parts(b'{"a":[1,2,{}]}') == 8
    assert json_parts(b"not JSON") == 0
