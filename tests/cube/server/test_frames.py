"""baidu_std on the data port: the known bytes, and everything around them that a peer may send."""

from __future__ import annotations

import gzip
import struct
import zlib

import numpy as np
import pytest

from cloudedge import _core
from tests.cube import plain_wire as plain
from tests.cube.memory_versions import BIG, value

pytestmark = pytest.mark.parts

VECTOR_REQUEST = bytes.fromhex(
    "50525043 00000027 000000230a1d 0a15 7265632e6d637562652e4469637453657276696365 1204 7365656b1800 2001 0801 0802"
)
VECTOR_RESPONSE = bytes.fromhex(
    "50525043 00000020 00000008 12020800 1800 20010a0c 0800 1208 0000803f000000400a08 08ffffffff0f 1200"
)
NO_KEYS = bytes.fromhex("50525043 00000008 00000008 12020800 1800 2007")
WITH_VERSION = bytes.fromhex("50525043 0000001b 00000008 12020800 1800 2007 0a0c0800 1208 0000803f00000040 1203 313030")


@pytest.fixture
def peer(shard):
    with plain.Peer(shard.port) as peer:
        yield peer


def test_the_plain_codec_writes_the_vector():
    assert plain.request(plain.keys(1, 2)) == VECTOR_REQUEST
    assert plain.write_response(1, [value(1.0, 2.0), None], None) == VECTOR_RESPONSE


def test_seek_answers_byte_for_byte(peer):
    peer.send(VECTOR_REQUEST)
    assert peer.read(44) == VECTOR_RESPONSE


def test_no_keys_and_version_answer_byte_for_byte(peer):
    peer.send(plain.request(b"", correlation=7))
    assert peer.read_frame() == NO_KEYS
    peer.send(plain.request(bytes.fromhex("0801 1001"), correlation=7))
    assert peer.read_frame() == WITH_VERSION


def test_unknown_method_answers_byte_for_byte(peer, shard):
    peer.send(plain.request(b"", correlation=7, method=b"parallel_seek"))
    error = b"[127.0.0.1:%d][E1002]Fail to find method=rec.mcube.DictService/parallel_seek" % shard.port
    response = plain.text(2, bytes.fromhex("08ea07") + plain.text(2, error))
    assert peer.read_frame() == plain.frame(response + bytes.fromhex("1800 2007"))


def test_frames_one_byte_at_a_time(peer):
    for i in range(len(VECTOR_REQUEST)):
        peer.send(VECTOR_REQUEST[i : i + 1])
    assert peer.read(44) == VECTOR_RESPONSE


@pytest.mark.parametrize("cut", [1, 4, 11, 12, 13, 47, 50, 51, 52, 70, 101])
def test_two_frames_cut_anywhere(peer, cut):
    both = VECTOR_REQUEST + VECTOR_REQUEST
    peer.send(both[:cut])
    peer.send(both[cut:])
    assert peer.read(88) == VECTOR_RESPONSE * 2


def test_many_pipelined_frames_come_back_in_order(peer):
    peer.send(b"".join(plain.request(plain.keys(1, i), correlation=i) for i in range(1, 2001)))
    for i in range(1, 2001):
        response = plain.parse_response(peer.read_frame())
        assert (response.correlation, len(response.values)) == (i, 2)


def test_packed_mixed_and_duplicate_keys(peer):
    packed = plain.text(1, plain.varint(1) + plain.varint(BIG))
    response = peer.call(plain.request(packed + plain.keys(1, 1)))
    assert [status for status, _ in response.values] == [0, 0, 0, 0]
    assert response.values[1][1] == value(3.0, -1.5)


def test_keys_of_every_varint_length(peer):
    wanted = [0, 127, 128, *(2**bits for bits in range(7, 64)), BIG, 2**64 - 1]
    response = peer.call(plain.request(plain.keys(*wanted)))
    assert [status == 0 for status, _ in response.values] == [key in {1, BIG} for key in wanted]


def test_unknown_fields_are_skipped(peer):
    extra = b"".join(plain.number(no, 5) for no in range(9, 12)) + plain.text(12, b"x") + plain.text(13, b"")
    later = plain.number(77, 2**64 - 1) + plain.text(99, b"future") + bytes.fromhex("1d01020304 210102030405060708")
    assert peer.call(plain.request(plain.keys(1) + later, extra=extra)).values == [(0, value(1.0, 2.0))]


def test_a_request_meta_may_leave_out_what_is_zero(peer):
    meta = plain.text(1, plain.text(1, b"DictService") + plain.text(2, b"seek") + plain.number(8, 100))
    response = peer.call(plain.frame(meta, plain.keys(1)))
    assert (response.correlation, response.code, response.compress) == (0, 0, 0)
    assert response.values == [(0, value(1.0, 2.0))]


def test_correlation_ids_keep_all_their_bits(peer):
    for number in (0, 2**31, 2**63, 2**64 - 1):
        assert peer.call(plain.request(plain.keys(1), correlation=number)).correlation == number


@pytest.mark.parametrize(
    ("service", "method", "code"),
    [
        (b"DictService", b"seek", 0),
        (b"NoService", b"seek", 1001),
        (b"rec.mcube.NoService", b"seek", 1002),
        (b"DictService", b"nothing", 1002),
        (b"", b"", 1001),
    ],
)
def test_services_by_name(peer, service, method, code):
    assert peer.call(plain.request(plain.keys(1), service=service, method=method)).code == code


@pytest.mark.parametrize(
    "payload",
    [
        "08",  # a key that is not there
        "0a05 01",  # packed keys that end early
        "08ffffffffffffffffff7f",  # more than 64 bits
        "0b 0c",  # a group
        "00",  # field number 0
        "ca3e 05 61",  # a version that ends early
    ],
)
def test_payloads_that_do_not_parse(peer, payload):
    response = peer.call(plain.request(bytes.fromhex(payload)))
    assert (response.code, response.payload) == (1003, b"")
    assert peer.call(VECTOR_REQUEST).code == 0, "the connection goes on"


@pytest.mark.parametrize("attachment", [100, 2**31 - 1, 2**64 - 1])
def test_attachments_that_do_not_fit(peer, attachment):
    assert peer.call(plain.request(plain.keys(1), extra=plain.number(5, attachment))).code == 1003


def test_an_attachment_is_not_part_of_the_payload(peer):
    response = peer.call(plain.request(plain.keys(1) + b"attached", extra=plain.number(5, 8)))
    assert response.values == [(0, value(1.0, 2.0))]


@pytest.mark.parametrize(
    ("kind", "pack", "code"),
    [(1, bytes, 1003), (2, gzip.compress, 0), (3, zlib.compress, 0), (2, zlib.compress, 1003), (9, bytes, 1003)],
)
def test_compressed_requests(peer, kind, pack, code):
    meta = plain.text(1, plain.text(1, plain.SEEK) + plain.text(2, b"seek")) + plain.number(3, kind)
    assert peer.call(plain.frame(meta, pack(plain.keys(*range(1000))))).code == code


@pytest.mark.parametrize(
    "data",
    [
        b"PRPC" + struct.pack(">II", 4, 5),  # meta longer than the body
        b"PRPC" + struct.pack(">II", 2**32 - 1, 4),  # larger than any frame may be
        plain.frame(b"\xff\xff\xff"),  # a meta that does not parse
        plain.frame(b""),  # no request in it
        plain.frame(plain.text(2, plain.number(1, 0))),  # an answer
    ],
)
def test_frames_without_a_meaning_close_the_connection(peer, data):
    peer.send(data)
    assert peer.closed()


def test_values_of_every_length(start):
    widths = (0, 1, 3, 4, 7, 8, 11, 12, 15, 16, 17, 31, 32, 33, 122, 123, 124, 127, 128, 200, 1023, 1024)
    server = start()
    with plain.Peer(server.port) as peer:
        for width in widths:
            content = bytes(i * 7 % 256 for i in range(width))
            server.add(
                _core.memory_version(
                    str(width), np.array([5], np.uint64), np.frombuffer(content, np.uint8).reshape(1, width)
                )
            )
            server.activate(str(width))
            assert peer.call(plain.request(plain.keys(5, 6, 5))).values == [
                (0, content),
                (0xFFFFFFFF, b""),
                (0, content),
            ]


def test_a_value_above_1024_bytes_is_not_found_and_counted_apart(start):
    server = start({5: (1.0,) * 257})
    with plain.Peer(server.port) as peer:
        assert peer.call(plain.request(plain.keys(5))).values == [(0xFFFFFFFF, b"")]
    assert (server.stats()["too_long_values"], server.stats()["missing_keys"]) == (1, 0)


def test_without_data_the_answer_is_an_error(start):
    server = start()
    with plain.Peer(server.port) as peer:
        response = peer.call(plain.request(plain.keys(5)))
    assert (response.code, response.payload) == (2003, b"")
