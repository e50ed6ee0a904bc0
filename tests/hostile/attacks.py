"""The table of attacks, by the server that they are for. Bodies are made when an attack begins."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from functools import partial

import grpc

from cloudedge.serving.formats._messages import GENERAL_SERVICE, PIPELINE_SERVICE, RpcMeta
from cloudedge.serving.protocols._baidu_std import pack_frame
from tests.cube import plain_wire as cube
from tests.hostile.harness import Attack, dribble, raw

MILLIONS = 4_000_000
GENERAL, PLAIN, PIPELINE = "/GeneralModelService/inference", "/v1/predict", "/marked/prediction"
PROTOBUF, ZIPPED = "Content-Type: application/x-protobuf", "Content-Encoding: gzip"
CHUNKED = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
A = b"a" * 65536
NOISE = b"\x00garbage" * 8192


def post(path, make, *headers):
    """The attack of one request."""

    def pieces():
        body = make()
        lines = (f"POST {path} HTTP/1.1", "Host: x", *headers, f"Content-Length: {len(body)}", "", "")
        return ["\r\n".join(lines).encode(), body]

    return raw(pieces)


def endless(opening, piece, most=80 << 20):
    """The attack of an opening and then one piece again and again."""
    return raw(lambda: itertools.chain([opening], itertools.repeat(piece, most // len(piece))), answer_s=5)


def frame(make, compress_type):
    """The attack of one frame of baidu_std."""
    meta = RpcMeta(correlation_id=7, compress_type=compress_type)
    meta.request.service_name, meta.request.method_name = GENERAL_SERVICE, "inference"
    return raw(lambda: [pack_frame(meta, make())])


def over_grpc(service, make, compression=grpc.Compression.NoCompression):
    """The attack of one gRPC call; its answer is the name of the status and the message."""

    def send(port):
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options, compression) as channel:
            try:
                return channel.unary_unary(f"/{service}/inference")(make(), timeout=30)
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}".encode()

    return send


def delimited(tag, content):
    """A field of protobuf with a length before it."""
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return tag + length + bytes([size]) + content


def times(piece, count=MILLIONS):
    return lambda: piece * count


def tensor(piece, count=MILLIONS):
    return lambda: delimited(b"\x0a", piece * count)


def json_list(start, item, end, count=MILLIONS):
    return lambda: start + b",".join([item] * count) + end


def texts(separated, count=MILLIONS):
    return lambda: b'{"key":["x"],"value":["[%b1]"]}' % (separated * count)


def packed(make, pack=gzip.compress):
    return lambda: pack(make())


MESSAGES = times(b"\x0a\x00")
ZEROS = times(b"\x00", 1 << 27)
TENSORS = json_list(b'{"tensor":[', b"{}", b"]}")
GZIP = grpc.Compression.Gzip

http = partial(Attack, port="http")
HTTP1 = [  # any server on `cloudedge.http1.Connections`
    http("endless header value", send=endless(b"GET / HTTP/1.1\r\nX: ", A), in_answer=b"431"),
    http("endless header name", send=endless(b"GET / HTTP/1.1\r\n", A), in_answer=b"431"),
    http("endless target", send=endless(b"GET /", A), in_answer=b"431"),
    http("endless method", send=endless(b"", b"G" * 65536), in_answer=b"400"),
    http("endless empty lines", send=endless(b"", b"\r\n" * 32768), in_answer=b"431"),
    http("endless headers", send=endless(b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 10000), in_answer=b"431"),
    http("endless trailer", send=endless(CHUNKED + b"1\r\na\r\n0\r\nX: ", A), in_answer=b"431"),
    http("endless trailers", send=endless(CHUNKED + b"1\r\na\r\n0\r\n", b"a: b\r\n" * 10000), in_answer=b"431"),
    http("endless chunk extension", send=endless(CHUNKED + b"1;", A), in_answer=b"431"),
    http("tiny chunks", send=endless(CHUNKED, b"2\r\nab\r\n" * 8192, 8 << 20)),
    http("a length of 5,000 digits", send=raw(lambda: [CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: " + b"9" * 5000)]), in_answer=b"400"),  # noqa: E501
    http("pipelined garbage", send=endless(b"GET /no HTTP/1.1\r\n\r\n" * 50 + NOISE, NOISE), in_answer=b"HTTP/1.1 4"),
    http("endless header values", send=endless(b"GET / HTTP/1.1\r\nX: ", A), in_answer=b"431", connections=20),
]  # fmt: skip
refused = partial(http, in_answer=b"413")
by_frame = partial(http, in_answer=b"--max-")
by_grpc = partial(Attack, port="grpc", in_answer=b"INVALID_ARGUMENT")
SERVING = [
    refused("messages, gzip", send=post(GENERAL, packed(MESSAGES), PROTOBUF, ZIPPED)),
    refused("messages", send=post(GENERAL, MESSAGES, PROTOBUF)),
    refused("texts", send=post(GENERAL, tensor(b"\x4a\x00"), PROTOBUF)),
    refused("unpacked numbers", send=post(GENERAL, tensor(b"\x08\x01"), PROTOBUF)),
    refused("unpacked floats", send=post(GENERAL, tensor(b"\x15\x00\x00\x80\x3f", 6_000_000), PROTOBUF)),
    refused("packed numbers", send=post(GENERAL, tensor(delimited(b"\x0a", bytes(8 << 20)), 1), PROTOBUF)),
    refused("mixed numbers", send=post(GENERAL, tensor(b"\x08\x01" * 10 + b"\x15\x00\x00\x00\x00", 500_000), PROTOBUF)),
    refused("unknown fields", send=post(GENERAL, times(b"\xf8\x01\x01"), PROTOBUF)),
    refused("names of outputs", send=post(GENERAL, times(b"\x12\x00"), PROTOBUF)),
    refused("tensors in JSON, gzip", send=post(GENERAL, packed(TENSORS), ZIPPED)),
    refused("tensors in JSON", send=post(GENERAL, TENSORS)),
    refused("zeros, gzip", send=post(GENERAL, packed(ZEROS), PROTOBUF, ZIPPED)),
    refused("lists, plain", send=post(PLAIN, json_list(b'{"inputs":{"x":[', b"[]", b"]}}"))),
    refused("numbers, plain", send=post(PLAIN, json_list(b'{"inputs":{"x":[', b"1", b"]}}", 9_000_000))),
    http("numbers at the limit, plain", send=post(PLAIN, json_list(b'{"inputs":{"x":[', b"1.5", b"]}}", 1_040_000)), in_answer=b"400"),  # noqa: E501
    refused("inputs, plain", send=post(PLAIN, lambda: json.dumps({"inputs": dict.fromkeys(range(500_000))}).encode())),
    refused("numbers, pipeline", send=post(PIPELINE, texts(b"1,"))),
    refused("tensors, pipeline", send=post(PIPELINE, json_list(b'{"tensors":[', b"{}", b"]}"))),
    http("printed numbers, pipeline", send=post(PIPELINE, texts(b"1 ")), in_answer=b"5000"),
    http("points, pipeline", send=post(PIPELINE, texts(b"-.")), in_answer=b"5000"),
    by_frame("frame, gzip", send=frame(packed(MESSAGES), 2)),
    by_frame("frame, zlib", send=frame(packed(MESSAGES, zlib.compress), 3)),
    by_frame("frame of zeros, zlib", send=frame(packed(ZEROS, zlib.compress), 3)),
    by_frame("frame", send=frame(MESSAGES, 0)),
    http("empty frames", send=endless(b"", (b"PRPC" + bytes(8)) * 5000, 2 << 20)),
    by_grpc("gRPC, messages", send=over_grpc(GENERAL_SERVICE, MESSAGES)),
    by_grpc("gRPC, messages, gzip", send=over_grpc(GENERAL_SERVICE, MESSAGES, GZIP)),
    by_grpc("gRPC, zeros, gzip", send=over_grpc(GENERAL_SERVICE, ZEROS, GZIP), in_answer=b"RESOURCE_EXHAUSTED"),
    by_grpc("gRPC, pipeline tensors", send=over_grpc(PIPELINE_SERVICE, times(b"\x1a\x00"))),
    by_grpc("gRPC, pipeline keys", send=over_grpc(PIPELINE_SERVICE, times(b"\x0a\x00\x12\x00"))),
    refused("messages, gzip, 16 at once", send=post(GENERAL, packed(MESSAGES), PROTOBUF, ZIPPED), connections=16),
]  # fmt: skip
LAB = [
    refused("lists", send=post("/v1/nodes", json_list(b'{"a":[', b"[]", b"]}", 2_000_000))),
    refused("objects", send=post("/v1/nodes", json_list(b'{"a":[', b"{}", b"]}", 2_000_000))),
    refused("deep lists", send=post("/v1/nodes", times(b"["))),
]


def seek(make, pack=None):
    """The attack of one frame for a cube server."""
    if pack is None:
        return raw(lambda: [cube.request(make())])
    return raw(lambda: [cube.request(pack(make()), extra=cube.number(3, 2))])


def half(most):
    """The attack of a frame that is announced, sent but for its last byte, and kept waiting."""
    return raw(lambda: [cube.request(cube.keys(1) + cube.text(99, bytes(most)))[:-1]], answer_s=1)


SEEK = "/DictService/seek"
LONG_PIN = lambda: cube.text(1001, b"\x01" * (60 << 20))  # noqa: E731
ROWS_OF_ONE_KEY = lambda: cube.keys(*[1] * 50_000)  # noqa: E731
data = partial(Attack, port="data")
CUBE = [
    data("a long pin, gzip", send=seek(LONG_PIN, gzip.compress), in_answer=b"does not unpack"),
    data("a pin of 900 kB, gzip", send=seek(lambda: cube.text(1001, b"\x01" * (900 << 10)), gzip.compress), in_answer=b"the pin is longer"),  # noqa: E501
    data("a long pin", send=seek(lambda: cube.text(1001, b"\x01" * (6 << 20))), in_answer=b"the pin is longer"),
    data("a long pin in JSON", send=post(SEEK, lambda: json.dumps({"keys": [1], "version": "\x01" * 1_000_000}).encode()), in_answer=b"the pin is longer"),  # noqa: E501
    data("a long service", send=raw(lambda: [cube.request(b"", service=b"x" * (6 << 20))]), in_answer=b"Fail to find"),
    data("zeros, gzip", send=seek(lambda: bytes(60 << 20), gzip.compress), in_answer=b"does not unpack"),
    data("zeros over HTTP, gzip", send=post(SEEK, packed(lambda: bytes(60 << 20)), ZIPPED), in_answer=b"does not unpack"),  # noqa: E501
    data("millions of keys", send=seek(lambda: cube.keys(*[1] * 3_000_000))),
    data("millions of keys in JSON", send=post(SEEK, json_list(b'{"keys":[', b"1", b"]}", 3_000_000)), in_answer=b"keys"),  # noqa: E501
    data("many members in JSON", send=post(SEEK, lambda: json.dumps(dict.fromkeys(map(str, range(400_000)))).encode())),
    data("deep lists in JSON", send=post(SEEK, lambda: b'{"x":' + b"[" * 4_000_000), in_answer=b"400"),
    data("a command of many members", send=post("/ControlService/cmd", lambda: json.dumps({"cmd": "status"} | {str(i): "" for i in range(300_000)}).encode()), in_answer=b"400"),  # noqa: E501
    data("frames that never end", send=half(6 << 20), connections=40),
    data("answers that are never read", send=raw(lambda: [cube.request(ROWS_OF_ONE_KEY())] * 20), connections=20),
    data("endless header value", send=endless(b"GET / HTTP/1.1\r\nX: ", A), in_answer=b"431", connections=20),
    data("endless trailer", send=endless(CHUNKED + b"1\r\na\r\n0\r\nX: ", A), in_answer=b"431"),
    data("tiny chunks", send=endless(CHUNKED, b"2\r\nab\r\n" * 8192, 16 << 20)),
    data("empty frames", send=endless(b"", (b"PRPC" + bytes(8)) * 5000, 2 << 20)),
    data("slow frames", send=dribble(b"PRPC", b"\x00", seconds=3), connections=140),
]  # fmt: skip
admin = partial(Attack, port="admin")
THREADED = [  # any server on `cloudedge.http1.ThreadedServer`
    admin("slow heads", send=dribble(b"GET /health HTTP/1.1\r\nX: ", b"x", seconds=4), connections=140),
    admin("slow bodies", send=dribble(b"POST /versions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n", b"x", seconds=4), connections=140),  # noqa: E501
    admin("silent connections", send=dribble(b"", b"", seconds=4), connections=140),
    admin("endless header value", send=endless(b"GET / HTTP/1.1\r\nX: ", A), connections=20),
    admin("endless headers", send=endless(b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 10000), connections=20),
    admin("long headers", send=endless(b"GET / HTTP/1.1\r\n", b"a: " + b"b" * 60000 + b"\r\n"), connections=20),
    admin("endless target", send=endless(b"GET /", A), connections=20),
    admin("endless empty lines", send=endless(b"", b"\r\n" * 32768)),
    admin("a body without end", send=endless(b"POST /versions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n", A)),  # noqa: E501
    admin("a length of 5,000 digits", send=raw(lambda: [b"POST /versions HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"]), in_answer=b" 40"),  # noqa: E501
]  # fmt: skip
front = partial(Attack, port="http")
FRONT = [
    front("slow heads", send=dribble(b"GET / HTTP/1.1\r\nX: ", b"x", seconds=4), connections=140),
    front("endless header value", send=endless(b"GET / HTTP/1.1\r\nX: ", A), in_answer=b"400", connections=20),
    front("endless target", send=endless(b"GET /", A), in_answer=b"400"),
    front("endless trailer", send=endless(CHUNKED + b"1\r\na\r\n0\r\nX: ", A)),
    front("endless chunk extension", send=endless(CHUNKED + b"1;", A)),
    front("a length of 5,000 digits", send=raw(lambda: [CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: " + b"9" * 5000)]), in_answer=b"400"),  # noqa: E501
]  # fmt: skip
