"""baidu_std and protobuf by hand, from their descriptions alone: what cloudedge's own code is compared with."""

import socket
import struct

SERVICE = b"baidu.paddle_serving.predictor.general_model.GeneralModelService"


def varint(number):
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def chunk(field, value):
    return varint(field << 3 | 2) + varint(len(value)) + value


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """Every (number, value) of a message; values are integers or bytes."""
    at, found = 0, []
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        else:
            assert key & 7 == 2
            size, at = read_varint(data, at)
            value, at = data[at : at + size], at + size
        found.append((key >> 3, value))
    return found


def tensor(values, shape, name):
    return b"".join(
        [
            chunk(2, struct.pack(f"<{len(values)}f", *values)),
            number(10, 1),
            chunk(11, b"".join(varint(size) for size in shape)),
            chunk(13, name),
            chunk(14, name),
        ]
    )


def request(values=(0.5, 0.25), shape=(1, 2), fetch=(b"price",), log_id=7):
    return chunk(1, tensor(values, shape, b"x")) + b"".join(chunk(2, name) for name in fetch) + number(4, log_id)


def frame(payload, correlation=1, service=SERVICE, method=b"inference", compress=0):
    called = chunk(1, service) + chunk(2, method) + number(3, 0)
    meta = chunk(1, called) + number(3, compress) + number(4, correlation)
    return b"PRPC" + struct.pack(">II", len(meta) + len(payload), len(meta)) + meta + payload


def split(answer):
    """Take one answer apart: (error_code, error_text, correlation, compress, payload)."""
    assert answer[:4] == b"PRPC"
    body, size = struct.unpack(">II", answer[4:12])
    assert len(answer) == 12 + body
    meta = dict(fields(answer[12 : 12 + size]))
    response = dict(fields(meta[2]))
    return response.get(1, 0), response.get(2, b"").decode(), meta.get(4), meta.get(3, 0), answer[12 + size :]


class Peer:
    """A blocking client."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def send(self, data):
        self.socket.sendall(data)

    def receive(self):
        head = self.exactly(12)
        return split(head + self.exactly(struct.unpack(">I", head[4:8])[0]))

    def exactly(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the server closed the connection"
            data += part
        return data

    def is_closed(self):
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
