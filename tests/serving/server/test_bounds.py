"""Bytes are counted until they are answered, whatever they came by; who is refused hears why."""

import asyncio
import socket
import threading
import time

import grpc
import numpy as np
import pytest

from cloudedge.errors import Overloaded
from cloudedge.serving import Call, HttpLimits, Runtime, RuntimeConfig, Server, ServerConfig
from cloudedge.serving.formats._messages import GENERAL_SERVICE, GeneralRequest, RpcMeta
from cloudedge.serving.protocols._baidu_std import FrameReader, pack_frame
from cloudedge.serving.protocols._general import add_tensor
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

X = [[1.0, 2.0]]
PADDED = b'{"inputs":{"x":[[1,2]]}}' + b" " * 1000


class Gate:
    """A model that answers once it is told to."""

    def __init__(self, runtime, pin):
        version = runtime.queues[pin].version
        self.opened, self.begun, execute = threading.Event(), threading.Event(), version.execute

        def held(*arguments, **options):
            self.begun.set()
            assert self.opened.wait(60)
            return execute(*arguments, **options)

        version.execute = held


@pytest.fixture
def slow(models):
    """A server whose model waits, and the gate it waits at; it holds 3500 bytes."""
    with Runtime(RuntimeConfig(workers=1, inline_below_s=1e-9), hub=models.hub) as runtime:
        pin = runtime.load(models.ref(models.marked[0])).pin
        runtime.activate(pin)
        gate = Gate(runtime, pin)
        limits = HttpLimits(max_held_bytes=3500, max_calls=3)
        try:
            with Server(runtime, ServerConfig(port=0, grpc_port=0, limits=limits)) as server:
                yield server, gate
                gate.opened.set()
        finally:
            gate.opened.set()


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def post(count=1):
    return b"POST /v1/predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(PADDED), PADDED) * count


def test_whole_requests_count_until_they_are_answered(slow):
    server, gate = slow
    held = server.connections.held
    with Http(server.port) as http:
        http.send(post(3))
        wait_for(lambda: held.count == 3 * len(PADDED))
        with Http(server.port) as other:
            other.send(post())
            assert other.reply().status == 503
        gate.opened.set()
        assert [http.reply().status for _ in range(3)] == [200] * 3
        wait_for(lambda: held.count == 0)
        metrics = http.ask("GET", "/metrics").body.decode()
        assert "\ncloudedge_serving_connections_refused_total 1\n" in metrics
        assert "\ncloudedge_serving_connections_timed_out_total 0\n" in metrics
        assert http.ask("GET", "/stats").json()["connections_refused_total"] == 1


def test_what_nobody_waits_for_any_more_is_given_back(slow):
    server, gate = slow
    with Http(server.port) as http:
        http.send(post(3))
        wait_for(lambda: server.connections.held.count == 3 * len(PADDED))
    wait_for(lambda: server.connections.held.count == len(PADDED))  # the one that runs
    gate.opened.set()
    wait_for(lambda: server.connections.held.count == 0)


def message():
    made = GeneralRequest(fetch_var_names=["y"])
    add_tensor(made.tensor, "x", "x", np.array(X, np.float32))
    made.tensor[0].name = "n" * 1000  # known by its alias
    return made.SerializeToString()


def frame(number):
    meta = RpcMeta(correlation_id=number)
    meta.request.service_name, meta.request.method_name = GENERAL_SERVICE, "inference"
    return pack_frame(meta, message())


def test_frames_count_until_they_are_answered(slow):
    server, gate = slow
    with socket.create_connection(("127.0.0.1", server.port), 30) as peer:
        peer.sendall(b"".join(frame(number) for number in range(4)))
        reader, answers = FrameReader(), []

        def receive(count):
            while len(answers) < count:
                answers.extend(reader.feed(peer.recv(1 << 16)))
            return [(each.meta.correlation_id, each.meta.response.error_code) for each in answers]

        assert receive(1) == [(3, 2004)]
        wait_for(lambda: server.connections.held.count == sum(len(frame(number)) for number in range(3)))
        gate.opened.set()
        assert sorted(receive(4)[1:]) == [(0, 0), (1, 0), (2, 0)]
        wait_for(lambda: server.connections.held.count == 0)


def test_calls_over_grpc_are_bounded_and_counted(slow):
    server, gate = slow
    held = server.connections.held
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        method = channel.unary_unary(f"/{GENERAL_SERVICE}/inference")
        calls = [method.future(message(), timeout=60) for _ in range(3)]
        wait_for(lambda: held.count == 3 * len(message()))
        with pytest.raises(grpc.RpcError) as refused:
            method(message(), timeout=60)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        gate.opened.set()
        assert all(call.result() for call in calls)
        wait_for(lambda: held.count == 0)


def test_bytes_of_calls_over_grpc_are_bounded(slow):
    server, gate = slow
    with Http(server.port) as http, grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        http.send(post(3))
        wait_for(lambda: server.connections.held.count == 3 * len(PADDED))
        with pytest.raises(grpc.RpcError, match="too many bytes") as refused:
            channel.unary_unary(f"/{GENERAL_SERVICE}/inference")(message(), timeout=60)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        gate.opened.set()
        assert http.reply().status == 200


def test_connections_over_grpc_have_a_cap(marked):
    limits = HttpLimits(max_connections=1)
    with Server(marked, ServerConfig(port=0, grpc_port=0, limits=limits)) as server:
        address, method = f"127.0.0.1:{server.grpc_port}", f"/{GENERAL_SERVICE}/inference"
        own = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(address, options=own) as one, grpc.insecure_channel(address, options=own) as two:
            assert one.unary_unary(method)(message(), timeout=60)
            with pytest.raises(grpc.RpcError) as refused:
                two.unary_unary(method)(message(), timeout=2)
            assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            assert one.unary_unary(method)(message(), timeout=60)


@pytest.mark.parametrize("length", [b"Content-Length: 4000000", b"Transfer-Encoding: chunked"])
def test_who_still_sends_hears_why_it_was_refused(marked, length):
    """Closed at once, the connection would be reset, and the answer lost on its way."""
    with Server(marked, ServerConfig(port=0, limits=HttpLimits(max_body_bytes=1_000_000))) as server:
        for _ in range(5):
            with Http(server.port) as http:
                body = bytes(1_900_000)
                if b"chunked" in length:
                    body = b"%x\r\n%b\r\n" % (len(body), body)
                http.send(b"POST /v1/predict HTTP/1.1\r\n" + length + b"\r\n\r\n")
                http.send(body)
                reply = http.reply()
                assert (reply.status, reply.headers["connection"]) == (413, "close")
                assert http.is_closed()
        wait_for(lambda: not server.connections.open)


def test_an_answer_that_is_read_slowly_is_read_whole_though_the_server_stops(models):
    rows = 300_000
    with Runtime(RuntimeConfig(workers=1, inline_below_s=1e-9, max_rows=rows), hub=models.hub) as runtime:
        pin = runtime.load(models.ref(models.marked[0])).pin
        runtime.activate(pin)
        gate, server = Gate(runtime, pin), Server(runtime, ServerConfig(port=0)).start()
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.settimeout(60)
            raw.connect(("127.0.0.1", server.port))
            body = b'{"inputs":{"x":[%b]}}' % b",".join([b"[1.5,2.5]"] * rows)
            raw.sendall(b"POST /v1/predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            assert gate.begun.wait(60)
            stopping = threading.Thread(target=server.drain, args=(60,))
            stopping.start()
            wait_for(lambda: server.connections.draining)
            gate.opened.set()
            received = [raw.recv(300)]
            stopping.join(1.5)  # longer than a client that says nothing is waited for
            assert stopping.is_alive()
            while received[-1]:
                received.append(raw.recv(1 << 20))
            stopping.join(60)
        length, _, content = b"".join(received).partition(b"\r\n\r\n")
        assert len(content) == int(length.rpartition(b" ")[2])


def test_who_is_refused_does_not_send_for_ever(marked):
    with (
        Server(marked, ServerConfig(port=0, limits=HttpLimits(max_body_bytes=1000))) as server,
        Http(server.port) as http,
    ):
        http.send(b"POST /v1/predict HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
        with pytest.raises(ConnectionError):
            http.send(bytes(500_000_000))
        wait_for(lambda: not server.connections.parting)


def test_a_queue_has_room_for_so_many_bytes(models):
    config = RuntimeConfig(workers=1, inline_below_s=1e-9, max_queue_bytes=100)
    with Runtime(config, hub=models.hub) as runtime:
        pin = runtime.load(models.ref(models.marked[0])).pin
        runtime.activate(pin)
        gate = Gate(runtime, pin)
        queue = runtime.queues[pin]

        async def ask():
            x = np.ones((5, 2), np.float32)  # 40 bytes
            running = asyncio.create_task(_ask(runtime, x))
            await asyncio.to_thread(gate.begun.wait, 60)
            waiting = [asyncio.create_task(_ask(runtime, x)) for _ in range(3)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert queue.queued_bytes == 80
            gate.opened.set()
            return await asyncio.gather(running, *waiting)

        try:
            told = asyncio.run(ask())
        finally:
            gate.opened.set()
        assert told[:3] == ["", "", ""]
        assert "80 bytes" in told[3]
        assert queue.queued_bytes == 0


async def _ask(runtime, x):
    try:
        await runtime.predict(Call({"x": x}))
    except Overloaded as error:
        return error.message
    return ""
