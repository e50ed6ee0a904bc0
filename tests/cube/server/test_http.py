"""HTTP on the data port: brpc's conventions, and requests that are odd, cut, pipelined or wrong."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import socket
import time

import pytest
import requests

from tests.cube import plain_wire as plain
from tests.cube.memory_versions import BIG, value

pytestmark = pytest.mark.parts

JSON = {"Content-Type": "application/json"}
PROTO = {"Content-Type": "application/proto"}
FOUND = {"status": 0, "value": base64.b64encode(value(1.0, 2.0)).decode()}
MISSING = {"status": 4294967295, "value": ""}


@pytest.fixture
def url(shard):
    return f"http://127.0.0.1:{shard.port}"


def raw(port: int, data: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes and read until the server closes."""
    with plain.Peer(port) as peer:
        peer.send(data)
        if half_close:
            peer.socket.shutdown(socket.SHUT_WR)
        out = b""
        while got := peer.socket.recv(65536):
            out += got
        return out


@pytest.mark.parametrize("path", ["/DictService/seek", "/rec.mcube.DictService/seek", "/DictService/seek?x=1"])
def test_json_seek_byte_for_byte(url, path):
    answer = requests.post(url + path, data='{"keys":[1,2],"version_required":true}', headers=JSON, timeout=5)
    assert answer.status_code == 200
    expected = '{"values":[{"status":0,"value":"AACAPwAAAEA="},{"status":4294967295,"value":""}],"version":"100"}'
    assert answer.text == expected
    assert answer.headers["Content-Type"] == "application/json"


def test_the_largest_key_survives_bare_and_quoted(start):
    server = start({2**64 - 1: (1.0, 2.0), 2**53 + 1: (3.0, 4.0)})
    body = '{"keys":[18446744073709551615,"18446744073709551615",9007199254740993,9007199254740992]}'
    answer = requests.post(f"http://127.0.0.1:{server.port}/DictService/seek", data=body, timeout=5).json()
    assert [v["status"] for v in answer["values"]] == [0, 0, 0, 4294967295]


def test_json_and_frames_agree(url, shard):
    keys = [1, 2, BIG]
    over_http = requests.post(url + "/DictService/seek", json={"keys": keys}, timeout=5).json()["values"]
    with plain.Peer(shard.port) as peer:
        over_rpc = peer.call(plain.request(plain.keys(*keys))).values
    assert [(v["status"], base64.b64decode(v["value"])) for v in over_http] == over_rpc


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("", "{}"),
        ("{}", "{}"),
        (' {"keys" : [ ] } ', "{}"),
        ('{"keys":null,"version_required":null}', "{}"),
        ('{"version_required":true}', '{"version":"100"}'),
        ('{"unknown":{"a":[1,-2.5e3,"\\u00e9\\ud83d\\ude00",true,null]},"keys":[]}', "{}"),
        ('{"keys":[],"version_required":false}', "{}"),
    ],
)
def test_bodies_that_ask_for_nothing(url, body, answer):
    got = requests.post(url + "/DictService/seek", data=body, timeout=5)
    assert (got.status_code, got.text) == (200, answer)


def test_get_is_an_empty_request(url):
    answer = requests.get(url + "/DictService/seek", timeout=5)
    assert (answer.status_code, answer.text) == (200, "{}")


@pytest.mark.parametrize(
    "body",
    [
        "[1]",
        "{",
        "nonsense",
        '{"keys":[1}',
        '{"keys":[1,]}',
        '{"keys":1}',
        '{"keys":[-1]}',
        '{"keys":[1.0]}',
        '{"keys":[1e3]}',
        '{"keys":[01]}',
        '{"keys":[18446744073709551616]}',
        '{"keys":["x"]}',
        '{"keys":[1]} x',
        '{"keys":[1],"keys":[2]}',
        '{"version_required":"yes"}',
        '{"a":' + "[" * 100 + "]" * 100 + "}",
        '{"a":"\\ud83d"}',
        '{"a":"\x01"}',
    ],
)
def test_bad_json_is_400_with_code_1003(url, body):
    answer = requests.post(url + "/DictService/seek", data=body.encode(), headers=JSON, timeout=5)
    assert (answer.status_code, answer.headers["x-bd-error-code"]) == (400, "1003")
    assert answer.headers["Content-Type"] == "text/plain"
    assert "[E1003]" in answer.text


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/DictService/nothing", 404, "1002"),
        ("/NoService/seek", 404, "1002"),
        ("/", 404, "1002"),
        ("/DictService", 404, "1002"),
        ("/DictService/seek/more", 404, "1002"),
    ],
)
def test_unknown_paths(url, path, status, code):
    answer = requests.post(url + path, timeout=5)
    assert (answer.status_code, answer.headers["x-bd-error-code"]) == (status, code)


@pytest.mark.parametrize("kind", ["application/proto", "application/x-protobuf", "application/proto; charset=x"])
def test_protobuf_in_protobuf_out(url, kind):
    body = plain.keys(1, 2) + plain.number(2, 1)
    answer = requests.post(url + "/DictService/seek", data=body, headers={"Content-Type": kind}, timeout=5)
    assert answer.headers["Content-Type"] == kind
    expected = plain.parse_response(plain.write_response(1, [value(1.0, 2.0), None], b"100"))
    assert answer.content == expected.payload


@pytest.mark.parametrize("kind", ["application/protox", "text/plain", "application/json; charset=utf-8"])
def test_every_other_content_type_is_json_and_echoed(url, kind):
    answer = requests.post(url + "/DictService/seek", data='{"keys":[1]}', headers={"Content-Type": kind}, timeout=5)
    assert answer.json() == {"values": [FOUND]}
    assert answer.headers["Content-Type"] == kind


def test_bad_protobuf_is_400(url):
    answer = requests.post(url + "/DictService/seek", data=b"\x08", headers=PROTO, timeout=5)
    assert (answer.status_code, answer.headers["x-bd-error-code"]) == (400, "1003")


@pytest.mark.parametrize("level", [0, 1, 9])
def test_gzip_requests(url, level):
    body = gzip.compress(json.dumps({"keys": [1, 2] * 500}).encode(), level)
    headers = {**JSON, "Content-Encoding": "gzip"}
    answer = requests.post(url + "/DictService/seek", data=body, headers=headers, timeout=5)
    assert answer.json()["values"] == [FOUND, MISSING] * 500
    for damaged in (body[:-1], body[:40], body[:20] + b"\xff" + body[21:], b"not gzip"):
        answer = requests.post(url + "/DictService/seek", data=damaged, headers=headers, timeout=5)
        assert answer.status_code == 400


def test_a_small_body_that_unpacks_to_a_huge_one_is_refused(start):
    server = start({1: (1.0,)}, max_body_bytes=100_000)
    body = gzip.compress(b" " * 10_000_000)
    assert len(body) < 100_000
    headers = {**JSON, "Content-Encoding": "gzip"}
    answer = requests.post(f"http://127.0.0.1:{server.port}/DictService/seek", data=body, headers=headers, timeout=5)
    assert answer.status_code == 400


def test_pages(url, shard):
    requests.post(url + "/DictService/seek", json={"keys": [1, 2]}, timeout=5)
    assert requests.get(url + "/health", timeout=5).text == "OK"
    assert requests.get(url + "/version", timeout=5).text == "Cube Service"
    lines = dict(line.split(" : ") for line in requests.get(url + "/vars", timeout=5).text.splitlines())
    assert (lines["request_num"], lines["total_key_num"], lines["unfound_key_num"]) == ("1", "2", "1")
    for name in ("request_num_minute", "long_value_num", "keys_per_request_num", "data_load_time", "data_size"):
        assert name in lines


def test_one_connection_mixes_both_protocols(shard):
    post = b'POST /DictService/seek HTTP/1.1\r\nContent-Length: 12\r\n\r\n{"keys":[1]}'
    with plain.Peer(shard.port) as peer:
        peer.send(post + plain.request(plain.keys(1)) + post)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
        body = b'{"values":[{"status":0,"value":"AACAPwAAAEA="}]}'
        head = head.replace(b"50", str(len(body)).encode())
        assert peer.read(len(head + body)) == head + body
        assert plain.parse_response(peer.read_frame()).values == [(0, value(1.0, 2.0))]
        assert peer.read(len(head + body)) == head + body


def test_one_byte_at_a_time_and_pipelined(shard):
    post = b'POST /DictService/seek HTTP/1.1\r\nContent-Length: 12\r\n\r\n{"keys":[1]}'
    last = post.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with plain.Peer(shard.port) as peer:
        for byte in post + post + last:
            peer.send(bytes([byte]))
        answers = b""
        while got := peer.socket.recv(65536):
            answers += got
    assert answers.count(b"AACAPwAAAEA=") == 3
    assert answers.count(b"Connection: close") == 1


@pytest.mark.parametrize(
    ("version", "header", "stays"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close\r\n", False),
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive\r\n", True),
        ("1.1", "connection: CLOSE\r\n", False),
    ],
)
def test_keep_alive(shard, version, header, stays):
    with plain.Peer(shard.port, timeout=0.5) as peer:
        peer.send(f"GET /health HTTP/{version}\r\n{header}\r\n".encode())
        answer = peer.socket.recv(65536)
        assert answer.endswith(b"\r\n\r\nOK")
        if stays:
            peer.send(b"GET /version HTTP/1.1\r\n\r\n")
            assert peer.socket.recv(65536).endswith(b"Cube Service")
        else:
            assert peer.closed()


def test_head_has_no_body(shard):
    answer = raw(shard.port, b"HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert b"Content-Length: 2\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_a_client_that_half_closes_still_gets_its_answer(shard):
    assert raw(shard.port, b"GET /health HTTP/1.1\r\n\r\n", half_close=True).endswith(b"OK")


def test_bare_newlines_do(shard):
    assert raw(shard.port, b"GET /health HTTP/1.0\n\n").endswith(b"OK")


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


def test_chunked_bodies(shard):
    head = b"POST /DictService/seek HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    body = b'{"keys":[1,2]}'
    whole = head + chunked(body)
    pieces = head + chunked(*(bytes([b]) for b in body))
    with_extras = head + b"5;name=x\r\n" + body[:5] + b"\r\n9\r\n" + body[5:] + b"\r\n0\r\nTrailer: x\r\n\r\n"
    for data in (whole, pieces, with_extras):
        assert b"AACAPwAAAEA=" in raw(shard.port, data)


def test_expect_continue_is_answered_before_the_body(shard):
    with plain.Peer(shard.port) as peer:
        peer.send(b"POST /DictService/seek HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 12\r\n\r\n")
        assert peer.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.send(b'{"keys":[1]}')
        assert peer.socket.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\x02\x03", 400),
        (b"PRPX" + b"\x00" * 20, 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /health\r\n\r\n", 400),
        (b"GET  /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/2.0\r\n\r\n", 505),
        (b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nA: \x01\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nA: " + b"x" * 20000, 431),
        (b"GET /" + b"x" * 20000, 431),
        (b"POST /x HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (b"POST /x HTTP/1.1\r\nContent-Length: 67108865\r\n\r\n", 413),
        (b"POST /x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", 400),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 100, 400),
    ],
)
def test_what_is_not_http_is_refused_and_closed(shard, data, status):
    answer = raw(shard.port, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"Connection: close\r\n" in answer


def test_limits_hold_alike_for_what_comes_at_once_and_in_pieces(shard):
    head = b"POST /DictService/seek HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    longest = b"0;" + b"x" * 62 + b"\r\n\r\n"
    too_long = b"0;" + b"x" * 63 + b"\r\n\r\n"
    trailers = b"0\r\n" + b"X: y\r\n" * 4_000 + b"\r\n"
    for end, status in ((longest, b"200"), (too_long, b"400"), (trailers, b"431")):
        for cut in (len(head), len(head) + 65, len(head) + len(end) - 3):
            with plain.Peer(shard.port) as peer:
                whole = head + end
                peer.send(whole[:cut])
                time.sleep(0.02)  # so that the server sees them apart
                with contextlib.suppress(OSError):  # refused and closed after the first piece
                    peer.send(whole[cut:])
                assert peer.socket.recv(100).split()[1] == status
