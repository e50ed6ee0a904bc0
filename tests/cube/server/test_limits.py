"""Clients that send too much, too slowly or nothing at all, or do not read: each meets a limit, nobody else notices."""

from __future__ import annotations

import gzip
import resource
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cube import plain_wire as plain

pytestmark = pytest.mark.parts

ROWS = {1: (1.0, 2.0)}
GOOD = plain.request(plain.keys(1))


def answers(server) -> bool:
    with plain.Peer(server.port) as peer:
        return [status for status, _ in peer.call(GOOD).values] == [0]


def wait_for(condition, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_an_oversized_frame_is_not_read(start):
    server = start(ROWS, max_body_bytes=10_000)
    with plain.Peer(server.port) as peer:
        peer.send(b"PRPC" + struct.pack(">II", 10_001, 10))
        assert peer.closed()
    assert server.stats()["connections_broken"] == 1
    assert answers(server)


def test_the_largest_frame_is_read(start):
    server = start(ROWS, max_body_bytes=10_000)
    filler = 10_000 - (len(GOOD) - 12)
    padding = plain.text(99, b"x" * (filler - 4))
    data = plain.request(plain.keys(1) + padding)
    assert struct.unpack(">I", data[4:8])[0] == 10_000
    with plain.Peer(server.port) as peer:
        assert peer.call(data).code == 0


def test_a_header_alone_reserves_nothing(start):
    server = start(ROWS)
    before = resident_bytes()
    peers = [plain.Peer(server.port) for _ in range(50)]
    for peer in peers:
        peer.send(b"PRPC" + struct.pack(">II", 64 * 1024 * 1024, 100) + b"x" * 1000)
    assert answers(server)
    assert resident_bytes() - before < 20_000_000
    for peer in peers:
        peer.close()


def test_half_requests_of_all_connections_together_have_a_limit(start):
    server = start(ROWS, max_held_bytes=10_000_000)
    half = plain.request(plain.keys(1) + plain.text(99, b"x" * 2_000_000))[:-1]
    peers = [plain.Peer(server.port) for _ in range(8)]
    for peer in peers:
        try:
            peer.send(half)
        except (BrokenPipeError, ConnectionResetError):
            continue
    wait_for(lambda: server.stats()["connections_broken"] == 4)
    assert server.stats()["connections"] == 4, "those that fit stay"
    assert answers(server)
    for peer in peers:
        peer.close()
    wait_for(lambda: server.stats()["connections"] == 0)
    with plain.Peer(server.port) as peer:
        peer.send(half)
        peer.send(b"x")
        assert plain.parse_response(peer.read_frame()).code == 0, "what was held is given back"


def packed(payload: bytes) -> bytes:
    return plain.request(gzip.compress(payload, 9), extra=plain.number(3, 2))


def test_a_long_pin_is_refused_and_not_repeated(start):
    server = start(ROWS)
    before = resident_bytes()
    with plain.Peer(server.port) as peer:
        for size in (257, 60 << 10, 900 << 10):
            response = peer.call(packed(plain.text(1001, b"\x01" * size)))
            assert response.code == 1003, size
            assert response.error.endswith(b"the pin is longer than 256 bytes"), size
        response = peer.call(plain.request(plain.text(1001, b"\x01" * 256)))
        assert response.code == 10404, "an unknown version, and not too long"
        assert len(response.error) < 2200
    assert resident_bytes() - before < 32 << 20
    assert answers(server)


def test_a_small_body_does_not_become_a_large_one(start):
    server = start(ROWS)
    before = resident_bytes()
    with plain.Peer(server.port) as peer:
        response = peer.call(packed(plain.text(99, bytes(60 << 20))))  # 61 kB
        assert response.code == 1003
        assert b"does not unpack, or to more than" in response.error
        assert peer.call(packed(plain.keys(*[1] * 200_000))).code == 0, "few bytes of many equal keys are a request"
    assert resident_bytes() - before < 32 << 20


@pytest.mark.parametrize("field", ["service", "method"])
def test_long_names_are_repeated_in_part(start, field):
    server = start(ROWS)
    with plain.Peer(server.port) as peer:
        response = peer.call(plain.request(b"", **{field: b"x." * 1_000_000}))
        assert response.code == 1002
        assert len(response.error) < 3000
    assert answers(server)


def test_a_long_control_command_is_refused(start):
    server = start(ROWS)
    body = b'{"cmd": "status", "x": "' + b"x" * 70_000 + b'"}'
    head = b"POST /ControlService/cmd HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with plain.Peer(server.port) as peer:
        peer.send(head + body)
        assert peer.socket.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


def test_peers_that_read_nothing_give_way_to_those_that_do(start):
    server = start({1: (1.0,) * 100}, threads=1, max_held_bytes=10_000_000)
    large = plain.request(plain.keys(*[1] * 40_000))  # an answer of 16 MB, more than the kernel takes
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(plain.Peer(server.port)).send(large)
        wait_for(lambda: server.stats()["connections_broken"] >= 3)
        peer = stack.enter_context(plain.Peer(server.port))
        for _ in range(3):
            assert len(peer.call(large).values) == 40_000, "the oldest went, not the newest"


def test_too_many_keys(start):
    server = start(ROWS, max_keys=100)
    with plain.Peer(server.port) as peer:
        assert peer.call(plain.request(plain.keys(*range(100)))).code == 0
        response = peer.call(plain.request(plain.keys(*range(101))))
        assert response.code == 1003
        assert b"100 keys" in response.error
        assert peer.call(plain.request(plain.text(1, b"\x01" * 101))).code == 1003, "packed ones count too"


def test_an_answer_that_would_be_too_large(start):
    server = start({1: (1.0,) * 256}, max_body_bytes=100_000)
    with plain.Peer(server.port) as peer:
        assert len(peer.call(plain.request(plain.keys(*[1] * 90))).values) == 90
        assert peer.call(plain.request(plain.keys(*[1] * 1000))).code == 1003


def test_a_slow_request_has_a_deadline(start):
    server = start(ROWS, request_timeout_s=0.3)
    with plain.Peer(server.port) as peer, plain.Peer(server.port) as dribbler:
        peer.send(GOOD[:20])
        for i in range(100):  # keeps sending, and is late all the same
            try:
                dribbler.send(b"POST /DictService/seek HTTP/1.1\r\nA: xxxxxxxxxxxxxxxxxxxxxxx"[i : i + 1])
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.02)
        else:
            pytest.fail("a request that never ends was not ended")
        assert peer.closed()
    assert server.stats()["connections_timed_out"] == 2
    assert answers(server)


def test_an_idle_connection_is_closed_and_a_used_one_is_not(start):
    server = start(ROWS, idle_timeout_s=0.5)
    with plain.Peer(server.port) as idle, plain.Peer(server.port) as used:
        for _ in range(8):
            assert used.call(GOOD).code == 0
            time.sleep(0.1)
        assert idle.closed()
        assert used.call(GOOD).code == 0


def test_a_client_that_does_not_read_is_not_read_from(start):
    server = start({1: (1.0,) * 256}, write_timeout_s=1.0)
    ask = plain.request(plain.keys(*[1] * 1000))  # 3 kB for 1 MB
    with plain.Peer(server.port) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        before = resident_bytes()
        deaf.socket.settimeout(0.5)
        sent = 0
        try:
            while sent < 20_000 * len(ask):  # 20 GB of answers, if the server went on reading
                sent += deaf.socket.send(ask)
        except TimeoutError:
            pass
        assert sent < 20_000 * len(ask)
        assert resident_bytes() - before < 100_000_000
        assert answers(server), "others are served meanwhile"
        wait_for(lambda: server.stats()["connections_timed_out"] == 1)


def test_a_client_that_reads_late_gets_everything_in_order(start):
    server = start({1: (1.0,) * 256})
    with plain.Peer(server.port) as peer:
        for i in range(1, 31):
            peer.send(plain.request(plain.keys(*[1] * 1000), correlation=i))
        time.sleep(0.3)
        for i in range(1, 31):
            response = plain.parse_response(peer.read_frame())
            assert (response.correlation, len(response.values)) == (i, 1000)


def test_a_reset_in_the_middle_of_an_answer(start):
    server = start({1: (1.0,) * 256})
    for _ in range(20):
        peer = plain.Peer(server.port)
        peer.send(plain.request(plain.keys(*[1] * 20_000)))
        peer.read(1000)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    wait_for(lambda: server.stats()["connections"] == 0)
    with plain.Peer(server.port) as peer:
        assert peer.call(plain.request(plain.keys(1))).code == 0


def test_one_connection_too_many_is_turned_away(start):
    server = start(ROWS, max_connections=3)
    peers = [plain.Peer(server.port) for _ in range(3)]
    assert all(peer.call(GOOD).code == 0 for peer in peers)
    with plain.Peer(server.port) as fourth:
        assert fourth.closed()
    assert server.stats()["connections_turned_away"] == 1
    peers.pop().close()
    wait_for(lambda: server.stats()["connections"] == 2)
    assert answers(server)
    for peer in peers:
        peer.close()


IDLE_CLIENTS = """
import resource, socket, sys
port, wanted, message = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
peers = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(wanted)]
print(len(peers), flush=True)
sys.stdin.readline()
for peer in (peers[0], peers[wanted // 2], peers[-1]):
    peer.sendall(message)
    print(len(peer.recv(100)), flush=True)
"""


def test_ten_thousand_idle_connections(start):
    wanted = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted + 500:
        pytest.skip(f"a process may open {hard} files at most here, {wanted + 500} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        server = start(ROWS, threads=2)
        before = resident_bytes()
        command = [sys.executable, "-c", IDLE_CLIENTS, str(server.port), str(wanted), GOOD.hex()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            assert clients.stdout.readline() == f"{wanted}\n"
            wait_for(lambda: server.stats()["connections"] == wanted)
            assert (resident_bytes() - before) / wanted < 1024, "an idle connection holds no buffers"
            assert all(answers(server) for _ in range(20))
            said, _ = clients.communicate("now\n", timeout=30)
            assert all(int(size) > 20 for size in said.split())
            assert len(said.split()) == 3
        wait_for(lambda: server.stats()["connections"] == 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_running_out_of_descriptors_is_survived(start):
    server = start(ROWS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    peers: list[socket.socket] = []
    used = len(list(Path("/proc/self/fd").iterdir()))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
        with pytest.raises(OSError, match="Too many open files"):  # noqa: PT012 - one of many is the last
            while True:
                peers.append(socket.create_connection(("127.0.0.1", server.port), 5))
        time.sleep(0.1)
    finally:
        for peer in peers:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_for(lambda: server.stats()["connections"] == 0)
    assert answers(server)
