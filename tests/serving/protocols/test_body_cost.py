"""What a request becomes is estimated from its bytes, and bounded before anything is built."""

import asyncio
import gzip
import time
import tracemalloc
import zlib

import numpy as np
import pytest

from cloudedge.errors import InputError, Overloaded
from cloudedge.http1 import HeldBytes
from cloudedge.serving.formats._body_cost import (
    FIELD,
    FIXED32,
    GENERAL_ANSWER,
    GENERAL_COST,
    JSON_PART,
    PIPELINE_COST,
    TENSOR,
    VARINT,
    BodyLimits,
    TooLarge,
    json_cost,
    message_cost,
)
from cloudedge.serving.formats._gzip import GZIP, ZLIB, inflate
from cloudedge.serving.formats._messages import GeneralRequest, GeneralResponse, PipelineRequest
from cloudedge.serving.formats._text_arrays import MAX_PRINTED, parse_array
from cloudedge.serving.protocols._general import add_tensor, request_cost
from cloudedge.serving.protocols._intake import Intake
from tests.fuzz.serving.fuzz_bodies import main as fuzz
from tests.fuzz.serving.fuzz_bodies import over_bounds
from tests.hostile.attacks import delimited

pytestmark = pytest.mark.rules

LIMIT = 32 << 20


def cost(body, fields=GENERAL_COST):
    return message_cost(body, LIMIT, fields=fields)


def test_genuine_messages_cost_what_their_numbers_do():
    request = GeneralRequest()
    add_tensor(request.tensor, "x", "x", np.ones((100, 20), np.float32))
    assert 0 <= cost(request.SerializeToString()) - TENSOR - 2000 * FIXED32 < 10 * FIELD
    response = GeneralResponse()
    add_tensor(response.outputs.add().tensor, "y", "y", np.ones(1000, np.int64))
    assert 0 <= cost(response.SerializeToString(), GENERAL_ANSWER) - 2 * TENSOR - 1000 * VARINT < 10 * FIELD
    texts = PipelineRequest(key=["x"], value=["[" + "1," * 999 + "1]"])
    assert cost(texts.SerializeToString(), PIPELINE_COST) == 2 * FIELD + 1000 * JSON_PART


@pytest.mark.parametrize(
    ("field", "each", "count"),
    [(b"\x15\x00\x00\x80\x3f", FIXED32, 20_000), (b"\x08\x80\x01", VARINT, 20_000), (b"\x08\x01", VARINT, 20_001)],
)
def test_numbers_with_a_tag_each_are_counted_in_one_go(field, each, count):
    body = delimited(b"\x0a", field * count + b"\x6a\x01x")
    request = GeneralRequest.FromString(body)
    assert len(request.tensor[0].float_data or request.tensor[0].int64_data) == count
    assert 0 <= cost(body) - TENSOR - count * each < 20 * FIELD + 8192


@pytest.mark.parametrize(
    "body", [b"", b"\xff" * 20, b"\x0a\x7f", b"\x0b\x0b", b"\x08", b"\x0d\x00", b"\x0a\xff\xff\xff\xff\x7f"]
)
def test_bytes_that_are_no_message_cost_little(body):
    assert cost(body) <= FIELD


MANY = {
    "messages": lambda: b"\x0a\x00" * 4_000_000,
    "names": lambda: b"\x12\x00" * 4_000_000,
    "unknown fields": lambda: b"\xf8\x01\x01" * 4_000_000,
    "texts": lambda: delimited(b"\x0a", b"\x4a\x00" * 4_000_000),
    "mixed numbers": lambda: delimited(b"\x0a", (b"\x08\x01" * 10 + b"\x15\x00\x00\x00\x00") * 200_000),
    "packed numbers": lambda: delimited(b"\x0a", delimited(b"\x0a", bytes(8 << 20))),
}


@pytest.mark.parametrize("make", MANY.values(), ids=MANY)
def test_millions_of_anything_are_refused_before_they_are_built(make):
    body = make()
    tracemalloc.start()
    begun = time.thread_time()
    try:
        with pytest.raises(TooLarge, match="--max-parsed-mb"):
            cost(body)
        assert time.thread_time() - begun < 5  # 0.05 s on a calm machine, without tracing
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_json_is_counted_before_it_is_parsed():
    assert json_cost(b'{"a":[1,2]}', LIMIT) == 11 * JSON_PART  # short: as if every byte began a value
    assert json_cost(b'{"a":[1,2]}' * 100, LIMIT) == 600 * JSON_PART
    with pytest.raises(TooLarge, match="--max-parsed-mb"):
        json_cost(b"[" + b"[]," * 600_000, LIMIT)


@pytest.mark.parametrize(("wrapper", "pack"), [(GZIP, gzip.compress), (ZLIB, zlib.compress)], ids=["gzip", "zlib"])
def test_a_compressed_body_has_an_absolute_limit_and_one_by_its_size(wrapper, pack):
    noise = np.random.default_rng(1).bytes(3 << 20)
    assert inflate(pack(noise), BodyLimits(), wrapper) == noise
    assert inflate(pack(bytes(1 << 20)), BodyLimits(), wrapper) == bytes(1 << 20)  # small: any ratio
    zeros, packed = pack(bytes(12 << 20)), pack(noise)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="--max-inflate-ratio"):
            inflate(zeros, BodyLimits(), wrapper)
        with pytest.raises(TooLarge, match="--max-inflated-mb"):
            inflate(packed, BodyLimits(max_inflated_bytes=2 << 20), wrapper)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    for broken in (pack(noise)[:-1], pack(noise) + b"x", b"", b"nothing"):
        with pytest.raises(InputError):
            inflate(broken, BodyLimits(), wrapper)


def test_memory_is_charged_until_it_is_given_back():
    held = HeldBytes(30_000)
    intake = Intake(BodyLimits(), held)
    body = b"\x12\x01y" + b"\x6a\x01x" * 2 + delimited(b"\x7a", bytes(8000))

    async def parse():
        return await intake.parse(body, request_cost, len)

    read, charge = asyncio.run(parse())
    assert (read, held.count) == (len(body), charge)
    assert charge >= len(body) + FIELD
    intake.give(charge)
    held.take(25_000)
    with pytest.raises(Overloaded, match="--max-held-mb"):
        asyncio.run(parse())

    async def fail():
        return await intake.parse(body, request_cost, int)

    held.give(25_000)
    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(fail())
    assert held.count == 0


def test_a_printed_array_is_bounded():
    for text in ("[" + "1 " * (MAX_PRINTED + 2) + "]", "[" + "-." * (MAX_PRINTED + 2) + "]"):
        with pytest.raises(InputError, match="printed numbers"):
            parse_array("x", text)
    assert len(parse_array("x", "[" + "1., " * 999 + "nan]")) == 1000


def test_the_fuzzer_finds_nothing_and_notices_costs(tmp_path):
    assert fuzz(1, 1, tmp_path / "crash")
    assert "processor time" in over_bounds(8000, 51.0, 0)
    assert "memory" in over_bounds(8000, 0.1, 4 << 30)
