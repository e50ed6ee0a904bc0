"""baidu_std over real sockets, from a client that was written from its description."""

import asyncio
import gzip
import random
import struct
import zlib

import pytest

from cloudedge.errors import DeadlineExceeded, InputError, Overloaded, Unavailable
from cloudedge.serving.protocols._baidu_std import FrameReader, answer_frame, pack_frame, serve_baidu_std
from tests.serving.protocols.engine import PIN, TinyEngine
from tests.serving.protocols.event_loop import loop_in_thread
from tests.serving.protocols.plain_frames import (
    SERVICE,
    Peer,
    chunk,
    fields,
    frame,
    number,
    request,
    split,
    tensor,
    varint,
)

PRICE_ANSWER = chunk(
    1,
    chunk(1, tensor([0.75], [1, 1], b"price").replace(chunk(13, b"price"), chunk(13, b"fc_0.tmp_1")))
    + chunk(2, b"GeneralInferOp_0"),
)


class SlowFirst(TinyEngine):
    async def predict(self, call):
        if call.log_id == 1:
            await asyncio.sleep(0.2)
        return await super().predict(call)


@pytest.fixture
def port(request):
    engine = getattr(request, "param", None) or TinyEngine()
    with loop_in_thread() as call:
        server = call(serve_baidu_std(engine, max_body=1 << 20))
        yield server.sockets[0].getsockname()[1]

        async def close():
            server.close()
            await asyncio.sleep(0.05)

        call(close())


@pytest.mark.parts
def test_the_answer_byte_for_byte(port):
    with Peer(port) as peer:
        peer.send(frame(request(), correlation=0x1234567890))
        meta = chunk(2, number(1, 0)) + number(3, 0) + number(4, 0x1234567890) + chunk(1001, PIN.encode())
        expected = b"PRPC" + struct.pack(">II", len(meta) + len(PRICE_ANSWER), len(meta)) + meta + PRICE_ANSWER
        assert peer.exactly(len(expected)) == expected


@pytest.mark.parts
def test_frames_arrive_in_any_pieces_and_several_at_once(port):
    data = b"".join(frame(request(log_id=i), correlation=i) for i in range(1, 6))
    with Peer(port) as peer:
        for at in range(0, len(data), 7):
            peer.send(data[at : at + 7])
        assert {peer.receive()[2] for _ in range(5)} == {1, 2, 3, 4, 5}


@pytest.mark.parts
@pytest.mark.parametrize("port", [SlowFirst()], indirect=True)
def test_a_slow_call_does_not_hold_up_the_next(port):
    with Peer(port) as peer:
        peer.send(frame(request(log_id=1), correlation=1) + frame(request(log_id=2), correlation=2))
        assert [peer.receive()[2] for _ in range(2)] == [2, 1]


@pytest.mark.parts
def test_debug_is_inference(port):
    with Peer(port) as peer:
        peer.send(frame(request(), method=b"debug"))
        assert peer.receive()[4] == PRICE_ANSWER


@pytest.mark.parts
@pytest.mark.parametrize(
    ("kind", "pack", "unpack"), [(2, gzip.compress, gzip.decompress), (3, zlib.compress, zlib.decompress)]
)
def test_compressed_calls_get_compressed_answers(port, kind, pack, unpack):
    with Peer(port) as peer:
        peer.send(frame(pack(request()), compress=kind))
        code, _, _, compress, payload = peer.receive()
        assert (code, compress, unpack(payload)) == (0, kind, PRICE_ANSWER)


@pytest.mark.parts
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(request(), service=b"other.Service"), 1001),
        (frame(request(), method=b"train"), 1002),
        (frame(b"\xff\xff\xff"), 1003),
        (frame(request(), compress=1), 1003),
        (frame(request(), compress=4), 1003),
        (frame(b"not gzip", compress=2), -5100),
        (frame(zlib.compress(bytes(2 << 20)), compress=3), -5100),
        (frame(request(shape=(1, 3))), -5100),
        (frame(request(fetch=[b"prise"])), -5100),
        (frame(b""), -5100),
    ],
    ids=["service", "method", "payload", "snappy", "lz4", "gzip", "bomb", "shape", "fetch", "empty"],
)
def test_errors_are_answered_and_the_connection_lives_on(port, sent, code):
    with Peer(port) as peer:
        peer.send(sent)
        got, text, correlation, compress, payload = peer.receive()
        assert got == code & (1 << 64) - 1
        assert text
        assert (correlation, compress, payload) == (1, 0, b"")
        peer.send(frame(request(), correlation=2))
        assert peer.receive()[0] == 0


@pytest.mark.rules
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Overloaded("full"), 2004),
        (DeadlineExceeded("late"), 1008),
        (Unavailable("shard"), -5000),
        (OSError("secret"), -5000),
    ],
)
def test_codes_of_failures(fault, code):
    (taken,) = FrameReader().feed(frame(request()))
    got, text, *_ = split(pack_frame(*asyncio.run(answer_frame(TinyEngine(fail=fault), taken))))
    assert got == code & (1 << 64) - 1
    assert "secret" not in text


@pytest.mark.parts
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRPX",
        b"PRPC" + struct.pack(">II", (1 << 20) + 1, 0),
        b"PRPC" + struct.pack(">II", 0xFFFFFFFF, 10) + bytes(10),
        b"PRPC" + struct.pack(">II", 10, 11),
        b"PRPC" + struct.pack(">II", 3, 3) + b"\xff\xff\xff",
        b"PRPC" + struct.pack(">II", 2, 2) + number(5, 9)[:2],
    ],
    ids=["http", "magic", "large", "huge", "meta", "no meta", "attachment"],
)
def test_what_cannot_be_framed_ends_the_connection(port, data):
    with Peer(port) as peer:
        peer.send(data)
        assert peer.receive()[0] == 1003
        assert peer.is_closed()


@pytest.mark.parts
def test_a_frame_that_is_too_long_is_refused_by_its_number_after_those_before_it(port):
    long = frame(bytes(1 << 20), correlation=78)
    with Peer(port) as peer:
        peer.send(frame(request(), correlation=77) + long[:40])
        assert peer.receive()[:3] == (0, "", 77)
        peer.send(long[40:2000])
        code, text, correlation, *_ = peer.receive()
        assert (code, correlation) == (1003, 78)
        assert "is too large" in text
        assert peer.is_closed()


@pytest.mark.rules
def test_an_attachment_is_left_out():
    body = request()
    meta = chunk(1, chunk(1, SERVICE) + chunk(2, b"inference")) + number(4, 3) + number(5, 4)
    data = b"PRPC" + struct.pack(">II", len(meta) + len(body) + 4, len(meta)) + meta + body + b"tail"
    (taken,) = FrameReader().feed(data)
    assert taken.payload == body


@pytest.mark.rules
def test_unknown_fields_are_ignored():
    meta = chunk(1, chunk(1, SERVICE) + chunk(2, b"inference") + number(77, 1)) + number(4, 3) + chunk(99, b"later")
    body = request() + chunk(88, b"later")
    data = b"PRPC" + struct.pack(">II", len(meta) + len(body), len(meta)) + meta + body
    (taken,) = FrameReader().feed(data)
    assert split(pack_frame(*asyncio.run(answer_frame(TinyEngine(), taken))))[0] == 0


@pytest.mark.parts
def test_many_calls_on_one_connection_are_all_answered(port):
    with Peer(port) as peer:
        peer.send(b"".join(frame(request(log_id=i), correlation=i) for i in range(1, 2001)))
        assert {peer.receive()[2] for _ in range(2000)} == set(range(1, 2001))


def mutated(seed):
    rng = random.Random(seed)
    data = bytearray(frame(request(), correlation=5) * rng.randint(1, 2))
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            case 3:
                data[at : at + 4] = struct.pack(">I", rng.choice([0, 1, 2**31, 2**32 - 1, len(data)]))
        if not data:
            data = bytearray(b"P")
    return bytes(data), rng


@pytest.mark.rules
def test_mutated_frames_are_answered_or_refused():
    async def every():
        outcomes = set()
        for seed in range(3000):
            data, rng = mutated(seed)
            reader, taken = FrameReader(1 << 16), []
            try:
                while data:
                    size = rng.randint(1, len(data))
                    taken += reader.feed(data[:size])
                    data = data[size:]
            except InputError:
                outcomes.add("refused")
            for one in taken:
                code, *_, payload = split(pack_frame(*await answer_frame(TinyEngine(), one)))
                outcomes.add(code)
                assert fields(payload) or code
        return outcomes

    outcomes = asyncio.run(every())
    assert {"refused", 0, 1001, 1002, 1003, -5100 & (1 << 64) - 1} <= outcomes


@pytest.mark.rules
def test_random_bytes_after_the_header():
    rng = random.Random(1)
    for _ in range(3000):
        body = rng.randbytes(rng.randint(0, 60))
        data = b"PRPC" + struct.pack(">II", len(body), rng.randint(0, len(body))) + body
        try:
            taken = FrameReader().feed(data)
        except InputError:
            continue
        for one in taken:
            split(pack_frame(*asyncio.run(answer_frame(TinyEngine(), one)))) if one.meta.request.service_name else None


@pytest.mark.rules
def test_varints_of_this_test_are_right():
    assert varint(300) == b"\xac\x02"
