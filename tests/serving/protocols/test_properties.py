"""Whatever array goes out comes back, and whatever bytes come in are answered."""

import json
import random
from contextlib import suppress

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cloudedge.bundle import Signature
from cloudedge.serving.formats._messages import GeneralRequest, PipelineRequest
from cloudedge.serving.formats._tensors import Malformed, npy_array, tensor_fields, typed_array
from cloudedge.serving.formats._text_arrays import json_numbers, json_text, nested_array, parse_array
from cloudedge.serving.formats._wire_tensor import GENERAL, PIPELINE, from_json, from_message
from cloudedge.serving.protocols._general import add_tensor, general_http
from cloudedge.serving.protocols._pipeline import pipeline_http
from tests.serving.protocols.engine import TinyEngine, post, run

pytestmark = pytest.mark.rules

DTYPES = ["int64", "int32", "int16", "int8", "uint8", "float64", "float32", "float16", "bool"]
ANY = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))
)


@given(ANY)
def test_pipeline_tensors(array):
    elem_type, field, data = tensor_fields(array)
    message = PipelineRequest().tensors.add(name="x", elem_type=elem_type, shape=array.shape)
    getattr(message, field).extend(data.tolist())
    np.testing.assert_array_equal(from_message(message, PIPELINE).array(), array, strict=True)
    raw = {"name": "x", "elem_type": elem_type, "shape": list(array.shape), field: json.loads(json_numbers(data))}
    np.testing.assert_array_equal(from_json(raw, PIPELINE).array(), array, strict=True)


@given(ANY)
def test_general_tensors(array):
    tensors = GeneralRequest().tensor
    add_tensor(tensors, "x", "", array)
    np.testing.assert_array_equal(from_message(tensors[0], GENERAL).array(), array, strict=True)


@given(ANY)
def test_json_text(array):
    read = parse_array("x", json_text(array).decode())
    if array.size:
        np.testing.assert_array_equal(read.astype(array.dtype), array, strict=True)


@given(ANY)
def test_what_numpy_prints(array):
    # All digits, as numpy itself rounds to eight.
    with np.printoptions(threshold=1 << 30, precision=None, floatmode="unique"):
        read = parse_array("x", repr(array))
    np.testing.assert_array_equal(read, array, strict=True)


@given(st.sampled_from([*range(-2, 25), 2**31 - 1]), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), ANY)
def test_no_shape_and_type_make_anything_but_an_array_or_an_error(elem_type, shape, array):
    try:
        made = typed_array("x", elem_type, shape, array.reshape(-1))
    except Malformed:
        return
    assert list(made.shape) == shape


@given(st.binary(max_size=300))
def test_bytes_that_claim_to_be_numpys(raw):
    for start in (b"", b"\x93NUMPY\x01\x00"):
        try:
            npy_array("x", start + raw)
        except Malformed:
            continue


@given(st.text(max_size=200) | st.text("[]0123456789.,eE+-nai \n()ardty=", max_size=60))
def test_texts_that_claim_to_be_arrays(text):
    with suppress(Malformed):
        assert parse_array("x", text).dtype.kind in "biufU"


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
)


@given(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner)))
def test_json_means_the_same_whichever_way_it_is_read(value):
    """What numpy reads by itself, for speed, is what reading level by level makes of it."""
    text = json.dumps(value)
    found = []
    for read in (lambda: parse_array("x", text), lambda: nested_array("x", orjson.loads(text))):
        try:
            found.append(read())
        except Malformed:
            found.append(None)
    quick, slow = found
    assert (quick is None) == (slow is None)
    if quick is not None:
        np.testing.assert_array_equal(quick, slow, strict=True)


BODIES = [
    b'{"key": ["x"], "value": ["[[0.1, 0.2]]"], "tensors": [], "logid": 10001, "clientip": "10.0.0.8"}',
    b'{"tensors":[{"name":"x","elem_type":1,"shape":[1,2],"float_data":[1,2],"lod":[0,1]}]}',
    b'{"tensors":[{"name":"x","elem_type":13,"byte_data":"k05VTVBZAQB2AHs="}],"logid":"7"}',
    b'{"key": ["x"], "value": ["array([[1., 2.]], dtype=float32)"]}',
    b'{"tensor":[{"float_data":[0.1,0.2],"elem_type":1,"shape":[1,2],"name":"x"}],"fetch_var_names":["price"],"log_id":7}',
    b'{"tensor":[{"int64_data":["1","2"],"elem_type":0,"shape":[2],"lod":[0,2],"name":"x"}]}',
]
WORDS = [
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e999",
    b"99999999999999999999",
    b'"',
    b"[[[",
    b"true",
    b"NaN",
    b"\\u0000",
    b"0",
]


def mutated(rng):
    body = bytearray(rng.choice(BODIES))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(4):
            case 0:
                body[at : at + 1] = rng.randbytes(1)
            case 1:
                del body[at : at + rng.randint(1, 6)]
            case 2:
                body[at:at] = rng.choice(WORDS)
            case 3:
                body[at : at + rng.randint(1, 4)] = rng.choice(WORDS)
    return bytes(body)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_json_is_answered_with_a_status_of_the_caller(seed):
    rng = random.Random(seed)
    engine = TinyEngine()
    # One look-up, so that LoD is looked at too.
    ids = TinyEngine(
        Signature.model_validate(
            {
                "feed": [{"name": "x", "dtype": "int64", "shape": [-1]}],
                "fetch": [{"name": "y"}],
                "lookups": [{"feed": "x", "input": "rows", "table": "t", "padding_id": 0}],
            }
        )
    )

    async def every():
        seen = set()
        for _ in range(1500):
            body = mutated(rng)
            for one in (engine, ids):
                answer = await pipeline_http(one, post("/uci/p", body), service="uci")
                told = json.loads(answer.body)
                seen.add((answer.status, told.get("err_no", "")))
                answer = await general_http(one, post("/GeneralModelService/inference", body))
                json.loads(answer.body)
                seen.add(answer.status)
        return seen

    seen = run(every())
    assert seen <= {(200, 0), (200, 5000), (200, 8000), (400, ""), 200, 400}, seen
    assert {(200, 0), (200, 5000), (200, 8000), (400, ""), 200, 400} <= seen
