"""`POST /{service}/{method}`: every row of the error table, every tensor type, and both spellings of an array."""

import base64
import io
import json
import pickle

import numpy as np
import pytest

from cloudedge.bundle import Signature
from cloudedge.errors import DeadlineExceeded, IntegrityError, Overloaded, Unavailable
from cloudedge.serving.protocols._pipeline import pipeline_http
from tests.serving.protocols.engine import PIN, PRICE, TinyEngine, post, run

pytestmark = pytest.mark.rules


def ask(body, engine=None, path="/uci/prediction", ops=None, **headers):
    body = body if isinstance(body, (bytes, str)) else json.dumps(body)
    return run(pipeline_http(engine or TinyEngine(), post(path, body, **headers), service="uci", ops=ops))


def told(answer):
    return json.loads(answer.body)


def error(answer):
    assert set(told(answer)) == {"err_no", "err_msg", "key", "value", "tensors"}
    return answer.status, told(answer)["err_no"], told(answer)["err_msg"]


def identity(dtype, shape):
    """A model that answers what it is fed."""
    return TinyEngine(
        Signature.model_validate({"feed": [{"name": "x", "dtype": dtype, "shape": shape}], "fetch": [{"name": "y"}]})
    )


def test_the_answer_is_exactly_upstreams():
    engine = identity("float32", [1])
    answer = ask('{"key":["x"],"value":["[[0.1895]]"]}', engine)
    assert answer.status == 200
    assert answer.content_type == "application/json"
    assert answer.body == b'{"err_no":0,"err_msg":"","key":["y"],"value":["[[0.1895]]"],"tensors":[]}'
    assert answer.headers == {"Grpc-Metadata-Content-Type": "application/grpc", "X-Cloudedge-Pin": PIN}


def test_the_request_of_the_specification():
    body = '{"key": ["x"], "value": ["[[0.1, 0.2]]"], "tensors": [], "logid": 10001, "clientip": "10.0.0.8"}'
    engine = TinyEngine()
    answer = told(ask(body, engine))
    assert answer["err_no"] == 0
    assert answer["key"] == ["price", "rank"]
    assert json.loads(answer["value"][0]) == [[pytest.approx(0.3)]]
    assert answer["value"][1] == "[0]"
    assert engine.calls[0].log_id == 10001
    assert engine.calls[0].feed["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("logid", "expected"),
    [(7, 7), ("7", 7), ("-3", -3), (None, 0), (2**63 - 1, 2**63 - 1), (str(2**63 - 1), 2**63 - 1)],
)
def test_logid_is_a_number_or_digits(logid, expected):
    engine = TinyEngine()
    assert told(ask({"key": ["x"], "value": ["[1,2]"], "logid": logid}, engine))["err_no"] == 0
    assert engine.calls[0].log_id == expected


def test_unknown_fields_and_the_names_in_the_body_are_ignored():
    body = {"key": ["x"], "value": ["[1,2]"], "name": "other", "method": 5, "future": {"a": [1]}}
    assert told(ask(body))["err_no"] == 0


def test_any_method_name_will_do_and_a_query_is_ignored():
    assert told(ask({"key": ["x"], "value": ["[1,2]"]}, path="/uci/anything?x=1"))["err_no"] == 0


# -- the table of errors, row by row ---------------------------------------------------------------------------------

GOOD = {"key": ["x"], "value": ["[[1,2]]"]}


def test_wrong_service_name():
    status, err_no, text = error(ask(GOOD, path="/other/prediction"))
    assert (status, err_no) == (200, 3002)
    assert "other" in text


@pytest.mark.parametrize(
    "body",
    [
        {"key": ["x", "y"], "value": ["[1]"]},
        {"tensors": [{"name": "x", "elem_type": 77, "shape": [1, 2], "float_data": [1, 2]}]},
        {"tensors": [{"name": "x", "elem_type": 10, "shape": [1, 1], "complex64_data": [1, 2]}]},
        {"tensors": [{"name": "x", "elem_type": 11, "shape": [1, 1], "complex128_data": [1, 2]}]},
        {"tensors": [{"name": "x", "elem_type": 20, "shape": [1], "str_data": ["a"]}]},
        {"tensors": [{"name": "x", "elem_type": 1, "shape": [1, 3], "float_data": [1, 2]}]},
        {"tensors": [{"name": "x", "elem_type": 1, "shape": [-1, 2], "float_data": [1, 2]}]},
        {"tensors": [{"name": "x", "elem_type": 1, "shape": [1, 2], "float_data": [1, 2], "lod": [0, 1, 2]}]},
        {"tensors": [{"name": "x", "elem_type": 1, "shape": [2**31 - 1] * 40, "float_data": [1, 2]}]},
    ],
    ids=["keys", "elem_type", "complex64", "complex128", "string 20", "shape", "negative", "odd lod", "dimensions"],
)
def test_package_errors(body):
    status, err_no, text = error(ask(body))
    assert (status, err_no) == (200, 8000)
    assert text.startswith("rpc package error: ")
    if "tensors" in body:
        assert "'x'" in text


@pytest.mark.parametrize(
    "body",
    [
        {"key": [], "value": []},
        b"",
        {"key": ["x", "z"], "value": ["[1,2]", "[1,2]"]},
        {"key": ["x"], "value": ["not an array"]},
        {"key": ["x"], "value": ["[[1,2],[3]]"]},
        {"key": ["x"], "value": ["[[1,null]]"]},
        {"key": ["x"], "value": ['[[1,"2"]]']},
        {"key": ["x"], "value": ['{"a":1}']},
        {"key": ["x"], "value": ["[[1e300,1]]"]},
        {"key": ["x"], "value": ["[1,2,3]"]},
        {"key": ["x"], "value": ["__import__('os').system('true')"]},
    ],
    ids=["missing", "nothing", "extra", "text", "ragged", "null", "mixed", "object", "too large", "shape", "code"],
)
def test_input_errors(body):
    status, err_no, text = error(ask(body))
    assert (status, err_no) == (200, 5000)
    assert "x" in text


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"3",
        b'{"key":"x","value":["1"]}',
        b'{"key":["x"],"value":[1]}',
        b'{"key":["x"],"value":["1"],"logid":"ten"}',
        b'{"key":["x"],"value":["1"],"logid":1.5}',
        b'{"key":["x"],"value":["1"],"logid":true}',
        b'{"key":["x"],"value":["1"],"logid":9223372036854775808}',
        b'{"tensors":{}}',
        b'{"tensors":[1]}',
        b'{"tensors":[{"name":1}]}',
        b'{"tensors":[{"name":"x","elem_type":"1"}]}',
        b'{"tensors":[{"name":"x","elem_type":1,"float_data":[null]}]}',
        b'{"tensors":[{"name":"x","elem_type":1,"float_data":["wide"]}]}',
        b'{"tensors":[{"name":"x","elem_type":0,"int64_data":[1.5]}]}',
        b'{"tensors":[{"name":"x","elem_type":9,"bool_data":[1]}]}',
        b'{"tensors":[{"name":"x","elem_type":2,"int_data":[4294967296]}]}',
        b"\xff\xfe",
        b"[" * 100000,
    ],
)
def test_malformed_json(body):
    answer = ask(body)
    assert answer.status == 400
    assert set(told(answer)) == {"error", "code", "message", "details"}
    assert told(answer)["code"] == 3
    assert told(answer)["details"] == []
    assert told(answer)["error"] == told(answer)["message"] != ""


@pytest.mark.parametrize("path", ["/uci", "/uci/a/b", "/", "//prediction", "/uci/", "uci/prediction"])
def test_not_two_segments(path):
    answer = ask(GOOD, path=path)
    assert (answer.status, answer.body) == (404, b"Not Found\n")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_other_methods(method):
    call = post("/uci/prediction", "{}")
    call = type(call)(method, call.path, call.headers, call.body)
    answer = run(pipeline_http(TinyEngine(), call, service="uci"))
    assert (answer.status, answer.body) == (405, b"Method Not Allowed\n")


@pytest.mark.parametrize(
    ("fault", "status", "err_no"),
    [
        (Overloaded("queue full"), 429, 6000),
        (DeadlineExceeded("too late"), 504, 6000),
        (Unavailable("shard 10.1.2.3:8027 secret"), 503, 9000),
        (IntegrityError("blob secret"), 500, 10000),
        (RuntimeError("C++ secret at 0xdead"), 500, 10000),
    ],
)
def test_calls_that_could_not_be_carried_out_have_a_status_too(fault, status, err_no, caplog):
    answer = ask(GOOD, TinyEngine(fail=fault))
    assert error(answer)[:2] == (status, err_no)
    assert b"secret" not in answer.body
    if "secret" in str(fault):
        assert "secret" in caplog.text


def test_large_answers_are_answered():
    engine = identity("float32", [-1])
    answer = ask({"key": ["x"], "value": [json.dumps([[0.123456] * 700_000])]}, engine)
    assert answer.status == 200
    assert len(answer.body) > 4 << 20


def test_the_callers_deadline_reaches_the_engine():
    assert error(ask(GOOD, grpc_timeout="0m"))[:2] == (504, 6000)
    assert ask(GOOD, grpc_timeout="10S").status == 200
    assert ask(GOOD, grpc_timeout="soon").status == 400


def test_a_variant_is_chosen_by_header():
    answer = ask(GOOD, x_cloudedge_tag="a")
    assert answer.headers["X-Cloudedge-Tag"] == "a"
    assert error(ask(GOOD, x_cloudedge_tag="b"))[:2] == (200, 3002)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[[1.5, -2.0]]",
        "[1.5,-2]",
        "array([[ 1.5, -2. ]], dtype=float32)",
        "array([[ 1.5, -2. ]])",
        "array([ 1.5, -2. ], dtype=float32)",
        "array([[1.5e+00,\n        -2.e+00]], dtype='<f4')",
        " [[1.50, -2.]] ",
    ],
)
def test_an_array_in_every_spelling(text):
    engine = TinyEngine()
    assert told(ask({"key": ["x"], "value": [text]}, engine))["err_msg"] == ""
    np.testing.assert_array_equal(engine.calls[0].feed["x"], np.array([[1.5, -2]], np.float32))


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "float64", "float32", "float16", "bool"])
@pytest.mark.parametrize("shape", [(3, 2), (1, 2), (3, 2, 2), (0, 2)])
def test_what_numpy_prints_is_read_back(dtype, shape):
    array = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
    if dtype.startswith("float"):
        array = array / np.array(3, dtype)
    engine = identity(dtype, [-1] * (len(shape) - 1))
    answer = told(ask({"key": ["x"], "value": [repr(array)]}, engine))
    assert answer["err_no"] == 0
    np.testing.assert_allclose(engine.calls[0].feed["x"].astype(float), array.astype(float), rtol=1e-3)
    assert engine.calls[0].feed["x"].dtype == dtype


def test_a_shortened_array_is_told_apart_from_a_wrong_one():
    assert "shortened" in error(ask({"key": ["x"], "value": [repr(np.zeros((3000, 2)))]}))[2]


@pytest.mark.parametrize(
    ("dtype", "text"), [("int64", "[[1.5]]"), ("int32", "[[4294967296]]"), ("uint8", "[[-1]]"), ("int64", "[[NaN]]")]
)
def test_no_value_is_changed_silently(dtype, text):
    assert error(ask({"key": ["x"], "value": [text]}, identity(dtype, [1])))[:2] == (200, 5000)


def test_numbers_that_fit_are_cast():
    engine = identity("int64", [1])
    assert told(ask({"key": ["x"], "value": ["[[3.0]]"]}, engine))["value"] == ["[[3]]"]


def test_what_is_not_finite_is_written_and_read():
    engine = identity("float32", [2])
    assert told(ask({"key": ["x"], "value": ["[[NaN, Infinity]]"]}, engine))["value"] == ["[[NaN,Infinity]]"]


@pytest.mark.parametrize(
    ("shape", "text", "fed"),
    [
        ([], "5", (1,)),
        ([], "[5,6]", (2,)),
        ([2], "[5,6]", (1, 2)),
        ([2], "[[5,6],[7,8]]", (2, 2)),
        ([-1], "[5,6,7]", (1, 3)),
        ([1, 2], "[[5,6]]", (1, 1, 2)),
        ([1, 2], "[[[5,6]]]", (1, 1, 2)),
    ],
)
def test_the_batch_dimension_is_added_where_one_row_comes_alone(shape, text, fed):
    engine = identity("float32", shape)
    assert told(ask({"key": ["x"], "value": [text]}, engine))["err_msg"] == ""
    assert engine.calls[0].feed["x"].shape == fed


@pytest.mark.parametrize(("shape", "text"), [([1], "[5,6]"), ([3], "[5,6]"), ([2, 2], "[[5,6]]")])
def test_it_is_not_added_by_guessing(shape, text):
    assert error(ask({"key": ["x"], "value": [text]}, identity("float32", shape)))[:2] == (200, 5000)


@pytest.mark.parametrize("text", ["hello", '["hello"]'])
def test_text_is_fed_as_it_is(text):
    engine = identity("string", [])
    answer = told(ask({"key": ["x"], "value": [text]}, engine))
    assert engine.calls[0].feed["x"].tolist() == ["hello"]
    assert answer["value"] == ['["hello"]']


def test_one_long_text_does_not_widen_a_million():
    body = {"key": ["x"], "value": [json.dumps(["a" * 100_000, *[""] * 100_000])]}
    assert error(ask(body, identity("string", [])))[:2] == (200, 5000)


def test_a_variable_goes_by_alias_or_name():
    signature = Signature.model_validate(
        {"feed": [{"name": "v0", "alias": "x", "shape": [1]}], "fetch": [{"name": "y"}]}
    )
    for name in ("v0", "x"):
        engine = TinyEngine(signature)
        assert told(ask({"key": [name], "value": ["[1]"]}, engine))["err_no"] == 0
        assert list(engine.calls[0].feed) == ["x"]


def test_the_profile_key_of_pipeline_client_is_no_feed():
    assert told(ask({"key": ["x", "pipeline.profile"], "value": ["[1,2]", "1"]}))["err_no"] == 0


# -- tensors ---------------------------------------------------------------------------------------------------------

TYPES = [
    (0, "int64", "int64_data", [1, -2]),
    (1, "float32", "float_data", [1.5, -2]),
    (2, "int32", "int_data", [1, -2]),
    (3, "float64", "float64_data", [1.5, -2]),
    (4, "int16", "int_data", [1, -2]),
    (5, "float16", "float_data", [1.5, -2]),
    (7, "uint8", "uint32_data", [1, 255]),
    (8, "int8", "int_data", [1, -2]),
    (9, "bool", "bool_data", [True, False]),
]


@pytest.mark.parametrize(("elem_type", "dtype", "field", "data"), TYPES, ids=[t[1] for t in TYPES])
def test_every_type_of_tensor(elem_type, dtype, field, data):
    engine = identity(dtype, [2])
    tensor = {"name": "x", "elem_type": elem_type, "shape": [1, 2], field: data}
    answer = told(ask({"tensors": [tensor]}, engine))
    assert answer["err_msg"] == ""
    assert answer["tensors"] == []
    assert json.loads(answer["value"][0]) == [data]
    assert engine.calls[0].feed["x"].dtype == dtype
    answer = told(ask({"tensors": [tensor]}, engine, x_cloudedge_answer="tensors"))
    assert answer["tensors"] == [tensor | {"name": "y"}]
    assert (answer["key"], answer["value"]) == ([], [])


def test_bfloat16_keeps_its_value():
    engine = identity("float32", [2])
    bits = [0x3FC0, 0xC000]  # 1.5, -2.0
    ask({"tensors": [{"name": "x", "elem_type": 6, "shape": [1, 2], "uint32_data": bits}]}, engine)
    assert engine.calls[0].feed["x"].tolist() == [[1.5, -2.0]]


def test_parts_of_a_string_are_joined():
    engine = identity("string", [])
    ask({"tensors": [{"name": "x", "elem_type": 12, "shape": [1], "str_data": ["he", "llo"]}]}, engine)
    assert engine.calls[0].feed["x"].tolist() == ["hello"]


def saved(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def npy(raw):
    return {"tensors": [{"name": "x", "elem_type": 13, "byte_data": base64.b64encode(raw).decode()}]}


@pytest.mark.parametrize("order", ["C", "F"])
def test_bytes_of_numpy_save(order):
    engine = identity("float32", [3])
    array = np.asarray([[1, 2, 3], [4, 5, 6]], np.float32, order=order)
    assert told(ask(npy(saved(array)), engine))["err_no"] == 0
    np.testing.assert_array_equal(engine.calls[0].feed["x"], array)


class Exploit:
    ran = False

    def __reduce__(self):
        return setattr, (Exploit, "ran", True)


@pytest.mark.parametrize(
    "raw",
    [
        saved(np.array([Exploit()], object), allow_pickle=True),
        pickle.dumps(Exploit()),
        saved(np.zeros(2, [("a", "f4")])),
        saved(np.array(["text"])),
        saved(np.zeros((2, 2)))[:-1],
        saved(np.zeros((2, 2))) + b"\0",
        saved(np.zeros((2, 2)))[:20],
        b"",
        b"\x93NUMPY\x01\x00\x60\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 9), }".ljust(95)
        + b"\n",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"(" * 100000,
    ],
    ids=["object", "pickle", "struct", "text", "short", "long", "cut", "empty", "huge", "header"],
)
def test_bytes_that_need_pickle_or_lie_are_refused(raw):
    assert error(ask(npy(raw)))[:2] == (200, 8000)
    assert not Exploit.ran


def test_numbers_as_json_made_from_protobuf_spells_them():
    engine = identity("int64", [1])
    big = 2**53 + 1
    body = {"tensors": [{"name": "x", "elemType": 0, "shape": [1, 1], "int64Data": [str(big)]}]}
    assert told(ask(body, engine))["value"] == [f"[[{big}]]"]


def test_the_signature_object_is_what_plans_are_kept_by():
    first, second = TinyEngine(), identity("int64", [1])
    assert told(ask(GOOD, first))["err_no"] == 0
    assert told(ask({"key": ["x"], "value": ["[[5]]"]}, second))["value"] == ["[[5]]"]
    assert first.signature is PRICE
