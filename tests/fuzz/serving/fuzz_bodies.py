"""Any bytes for serving's parsers: parsed or refused with an error of the caller, at a cost in proportion to the bytes.

fuzz_bodies.py SECONDS SEED CRASH_FILE

Inputs are mutated requests, with pieces repeated up to a million times and compressed at times. The cost of each is
measured: processor time against `MAX_S` and `MAX_S_PER_MIB`, Python's memory against `MAX_BYTES` and `MAX_RATIO`, and,
over the whole run, the memory of the process, which includes protobuf's. A cost above its bound is a failure.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from cloudedge.errors import InputError
from cloudedge.serving.formats import GZIP, PIPELINE_COST, PipelineRequest, json_cost, message_cost
from cloudedge.serving.formats._text_arrays import parse_array
from cloudedge.serving.protocols._general import _read_json, _read_proto, request_cost
from cloudedge.serving.protocols._intake import Intake
from cloudedge.serving.protocols._pipeline import _parse_body, _parse_tensors
from cloudedge.serving.server._routes import _read

MAX_S, MAX_S_PER_MIB = 1.0, 0.5
"""Ten times what a calm machine takes: tracing memory makes everything slower too."""
MAX_BYTES, MAX_RATIO = 64 << 20, 8
MAX_PROCESS = 512 << 20
LONGEST = 4 << 20
NUMBERS = b"\x0a\x14\x12\x08\x00\x00\x80\x3f\x00\x00\x00\x40\x50\x01\x5a\x02\x01\x02\x6a\x01x"
SAMPLES = {
    "json": [
        b'{"inputs":{"x":[[1.0,2.0],[3,4]]},"outputs":["y"]}',
        b'{"tensor":[{"float_data":[0.1,0.2],"elem_type":1,"shape":[1,2],"name":"x"}],"fetch_var_names":["y"],"log_id":7}',
        b'{"key":["x"],"value":["[[0.1, 0.2]]"],"tensors":[{"name":"x","elem_type":0,"shape":[1],"int64_data":[1]}]}',
        b'{"key":["x"],"value":["array([[1., 2.], [3., nan]], dtype=float32)"]}',
    ],
    "proto": [
        NUMBERS + b"\x12\x01y",
        NUMBERS * 2,
        b"\x0a\x04\x08\x01\x08\x02",
        b"\x0a\x01x\x12\x04[1.]\x1a\x02\x08\x01",
    ],
}
TOKENS = [
    b"[",
    b"]",
    b"{}",
    b"[]",
    b",",
    b'"',
    b"1 ",
    b"-.",
    b"1e9",
    b"\x0a\x00",
    b"\x12\x00",
    b"\x4a\x00",
    b"\xf8\x01\x01",
]


def parse_pipeline_message(raw: bytes) -> object:
    """Parse as the gRPC server does."""
    request = PipelineRequest.FromString(raw)
    return [_parse_tensors(request), *(parse_array("x", text) for text in request.value)]


def parse_pipeline_body(raw: bytes) -> object:
    """Parse as the HTTP server does, with the texts of arrays."""
    call = _parse_body({}, raw)
    return None if call is None else [parse_array("x", text) for text in call.values.values()]


PARSERS: dict[str, tuple[str, Callable[[bytes, int], int], Callable[[bytes], Any]]] = {
    "plain": ("json", json_cost, _read),
    "general JSON": ("json", json_cost, _read_json),
    "pipeline": ("json", json_cost, parse_pipeline_body),
    "general": ("proto", request_cost, _read_proto),
    "pipeline message": ("proto", partial(message_cost, fields=PIPELINE_COST), parse_pipeline_message),
}


def mutated(kind: str, draw: random.Random) -> bytes:
    """Return a sample with some changes, among them pieces that are repeated many times."""
    out = bytearray(draw.choice(SAMPLES[kind]))
    for _ in range(draw.randrange(5)):
        at = draw.randrange(len(out) + 1)
        match draw.randrange(5):
            case 0 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case 1:
                del out[at : at + draw.randrange(8)]
            case 2:
                out[at:at] = draw.choice(TOKENS)
            case _:
                piece = bytes(out[at : at + draw.randrange(1, 12)]) or draw.choice(TOKENS)
                out[at:at] = piece * (LONGEST // len(piece) >> draw.randrange(20))
        del out[LONGEST:]
    return bytes(out)


def over_bounds(size: int, taken_s: float, taken_bytes: int) -> str:
    """Return the broken bound, or an empty text."""
    if taken_s > MAX_S + MAX_S_PER_MIB * size / (1 << 20):
        return f"{size} bytes took {taken_s:.2f} s of processor time"
    if taken_bytes > MAX_BYTES + MAX_RATIO * size:
        return f"{size} bytes took {taken_bytes} bytes of memory"
    return ""


def cost_of(name: str, body: bytes, *, zipped: bool) -> str:
    """Parse a body; return the bound that it broke, or an empty text."""
    _, cost, read = PARSERS[name]
    sent = gzip.compress(body, 1) if zipped else body
    tracemalloc.reset_peak()
    before, begun = tracemalloc.get_traced_memory()[0], time.process_time()
    with suppress(InputError, DecodeError, ValueError, TypeError):  # answered as an error of the caller
        asyncio.run(Intake().parse(sent, cost, read, GZIP if zipped else None))
    return over_bounds(len(sent), time.process_time() - begun, tracemalloc.get_traced_memory()[1] - before)


def main(seconds: float, seed: int, crash_file: Path) -> int:
    """Fuzz for some seconds; return the number of inputs."""
    draw = random.Random(seed)
    stop = time.monotonic() + seconds
    count = 0
    process_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tracemalloc.start()
    try:
        while time.monotonic() < stop:
            name = draw.choice(list(PARSERS))
            body, zipped = mutated(PARSERS[name][0], draw), draw.random() < 0.3
            try:
                broken = cost_of(name, body, zipped=zipped)
                assert not broken, broken
                grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - process_bytes
                assert grown <= MAX_PROCESS, f"the process grew by {grown} bytes"
            except BaseException:
                crash_file.write_bytes(body)
                sys.stderr.write(f"{name}{', compressed' * zipped}: the input is in {crash_file}\n")
                raise
            count += 1
    finally:
        tracemalloc.stop()
    return count


if __name__ == "__main__":
    done = main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.write(f"{done} inputs, none of them too costly\n")
