"""`POST /GeneralModelService/inference`: JSON and protobuf, gzipped or not, and LoD."""

import base64
import gzip
import json

import numpy as np
import pytest

from cloudedge.bundle import Signature
from cloudedge.errors import DeadlineExceeded, Overloaded, Unavailable
from cloudedge.serving.formats._body_cost import BodyLimits
from cloudedge.serving.formats._messages import GeneralRequest, GeneralResponse
from cloudedge.serving.protocols._general import general_http
from cloudedge.serving.protocols._intake import Intake
from tests.serving.protocols.engine import PIN, TinyEngine, post, run
from tests.serving.protocols.plain_frames import chunk, request, tensor

pytestmark = pytest.mark.rules

PATH = "/GeneralModelService/inference"


def ask(body, engine=None, path=PATH, **headers):
    body = body if isinstance(body, (bytes, str)) else json.dumps(body)
    options = {"intake": headers.pop("intake")} if "intake" in headers else {}
    return run(general_http(engine or TinyEngine(), post(path, body, **headers), **options))


def failure(answer, status):
    assert answer.status == status
    told = json.loads(answer.body)
    assert told["outputs"] == []
    assert told["err_no"] != 0
    return told["err_msg"]


def one(dtype="float32", shape=(2,), lookups=()):
    return Signature.model_validate(
        {
            "feed": [{"name": "x", "dtype": dtype, "shape": list(shape)}],
            "fetch": [{"name": "y"}],
            "lookups": list(lookups),
        }
    )


# The request and the answer of the description, with numbers that floats hold exactly.
BODY = (
    b'{"tensor":[{"float_data":[0.5,18.25],"elem_type":1,"shape":[1,2],"name":"x","alias_name":"x"}],'
    b'"fetch_var_names":["price"],"log_id":7}'
)
ANSWER = (
    b'{"outputs":[{"tensor":[{"float_data":[18.75],"elem_type":1,"shape":[1,1],"name":"fc_0.tmp_1",'
    b'"alias_name":"price"}],"engine_name":"GeneralInferOp_0"}]}'
)


def test_json_byte_for_byte():
    engine = TinyEngine()
    answer = ask(BODY, engine)
    assert (answer.status, answer.content_type, answer.headers) == (200, "application/json", {"X-Cloudedge-Pin": PIN})
    assert answer.body == ANSWER
    assert engine.calls[0].log_id == 7
    assert list(engine.calls[0].fetch) == ["price"]


def test_the_body_http_client_sends():
    body = {
        "fetch_var_names": ["price"], "log_id": 7,
        "tensor": [{"float_data": [0.5, 18.25], "shape": [1, 2], "elem_type": 1, "name": "x", "alias_name": "x"}],
    }  # fmt: skip
    assert ask(body).body == ANSWER


def test_binary_byte_for_byte():
    answer = ask(request(), content_type="application/proto")
    assert answer.content_type == "application/proto"
    price = tensor([0.75], [1, 1], b"price").replace(chunk(13, b"price"), chunk(13, b"fc_0.tmp_1"))
    assert answer.body == chunk(1, chunk(1, price) + chunk(2, b"GeneralInferOp_0"))


def test_no_names_means_all_outputs_in_order():
    told = json.loads(ask(BODY.replace(b'["price"]', b"[]")).body)
    assert [t["alias_name"] for t in told["outputs"][0]["tensor"]] == ["price", "rank"]
    assert told["outputs"][0]["tensor"][1]["int64_data"] == [0]


def test_an_output_goes_by_its_own_name_too():
    assert ask(BODY.replace(b'"price"', b'"fc_0.tmp_1"')).body == ANSWER


def test_an_unknown_output_is_an_error():
    assert "'prise'" in failure(ask(BODY.replace(b"price", b"prise")), 400)


def test_an_unknown_type_is_an_error_and_not_skipped():
    for elem_type in (10, 11, 12, 13, 99):
        assert "'x'" in failure(ask(BODY.replace(b'"elem_type":1', b'"elem_type":%d' % elem_type)), 400)


def test_a_tensor_without_a_name():
    failure(ask(BODY.replace(b'"x"', b'""')), 400)


def test_one_feed_sent_twice():
    twice = {"tensor": [{"float_data": [v, 1], "elem_type": 1, "shape": [1, 2], "name": "x"} for v in (1, 2)]}
    assert "twice" in failure(ask(twice), 400)


@pytest.mark.parametrize(
    ("fault", "status"),
    [(Overloaded("full"), 429), (DeadlineExceeded("late"), 504), (Unavailable("10.0.0.1"), 503), (OSError("x"), 500)],
)
def test_every_failure_has_a_status(fault, status):
    failure(ask(BODY, TinyEngine(fail=fault)), status)
    answer = ask(request(), TinyEngine(fail=fault), content_type="application/proto")
    assert answer.status == status
    assert GeneralResponse.FromString(answer.body).err_no != 0


def test_paths_and_methods():
    full = "/baidu.paddle_serving.predictor.general_model.GeneralModelService/inference"
    assert ask(BODY, path=full).status == 200
    assert ask(BODY, path="/GeneralModelService/debug").status == 200
    assert ask(BODY, path="/GeneralModelService/other").status == 404
    assert run(general_http(TinyEngine(), type(post("", ""))("GET", PATH, {}, b""))).status == 405


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"tensor":1}', b'{"tensor":[],"fetch_var_names":[1]}', b'{"log_id":-1}', b'{"log_id":1.5}'],
)
def test_bodies_that_are_no_requests(body):
    failure(ask(body), 400)
    if body:
        assert ask(b"\xff" + body, content_type="application/proto").status == 400


# -- gzip ------------------------------------------------------------------------------------------------------------


def test_gzip_both_ways():
    many = TinyEngine(one(shape=[-1]))
    body = json.dumps({"tensor": [{"float_data": [0.5] * 2000, "elem_type": 1, "shape": [1, 2000], "name": "x"}]})
    plain = ask(body, many)
    packed = ask(gzip.compress(body.encode()), many, content_encoding="gzip", accept_encoding="deflate, gzip")
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body


def test_small_answers_stay_as_they_are():
    assert ask(BODY, accept_encoding="gzip").body == ANSWER


def test_a_small_body_cannot_become_a_large_one():
    bomb = gzip.compress(b'{"tensor":[' + b" " * 50_000_000 + b"]}")
    assert len(bomb) < 60_000
    assert "more than" in failure(ask(bomb, content_encoding="gzip", intake=Intake(BodyLimits(1 << 20))), 413)


@pytest.mark.parametrize("body", [b"plain", gzip.compress(BODY)[:-5], gzip.compress(BODY) + b"x", b""])
def test_broken_gzip(body):
    failure(ask(body, content_encoding="gzip"), 400)


def test_unknown_encodings():
    failure(ask(BODY, content_encoding="br"), 400)


# -- types -----------------------------------------------------------------------------------------------------------

NUMBERS = [(0, "int64", "int64_data"), (1, "float32", "float_data"), (2, "int32", "int_data"),
           (3, "float64", "float64_data"), (4, "int16", "int_data"), (9, "bool", "bool_data")]  # fmt: skip
RAW = [(5, "float16"), (7, "uint8"), (8, "int8")]


@pytest.mark.parametrize(("elem_type", "dtype", "field"), NUMBERS, ids=[n[1] for n in NUMBERS])
def test_types_that_travel_as_numbers(elem_type, dtype, field):
    values = [True, False] if dtype == "bool" else [1, 2]
    sent = {field: values, "elem_type": elem_type, "shape": [1, 2], "name": "x", "alias_name": "x"}
    (got,) = json.loads(ask({"tensor": [sent]}, TinyEngine(one(dtype))).body)["outputs"][0]["tensor"]
    assert got == sent | {"name": "y", "alias_name": "y"}


@pytest.mark.parametrize(("elem_type", "dtype"), RAW, ids=[r[1] for r in RAW])
def test_types_that_travel_as_bytes(elem_type, dtype):
    raw = np.array([[1, 2]], dtype).tobytes()
    message = GeneralRequest()
    message.tensor.add(elem_type=elem_type, shape=[1, 2], name="x", tensor_content=raw)
    answer = ask(message.SerializeToString(), TinyEngine(one(dtype)), content_type="application/proto")
    (got,) = GeneralResponse.FromString(answer.body).outputs[0].tensor
    assert (got.tensor_content, got.elem_type, list(got.shape)) == (raw, elem_type, [1, 2])
    sent = {"tensor_content": base64.b64encode(raw).decode(), "elem_type": elem_type, "shape": [1, 2], "name": "x"}
    (got,) = json.loads(ask({"tensor": [sent]}, TinyEngine(one(dtype))).body)["outputs"][0]["tensor"]
    assert base64.b64decode(got["tensor_content"]) == raw


def test_strings():
    sent = {"data": ["a", "NaN", "b"], "elem_type": 20, "shape": [3], "name": "x"}
    (got,) = json.loads(ask({"tensor": [sent]}, TinyEngine(one("string", []))).body)["outputs"][0]["tensor"]
    assert (got["data"], got["elem_type"]) == (["a", "NaN", "b"], 20)


def test_what_is_not_finite_is_put_in_quotes_as_protobuf_does():
    sent = {"float_data": ["NaN", "-Infinity"], "elem_type": 1, "shape": [1, 2], "name": "x"}
    (got,) = json.loads(ask({"tensor": [sent]}, TinyEngine(one())).body)["outputs"][0]["tensor"]
    assert got["float_data"] == ["NaN", "-Infinity"]


@pytest.mark.parametrize("content", [b"\0" * 3, b"\0" * 4, b"\0" * 12])
def test_bytes_that_do_not_fit_the_shape(content):
    message = GeneralRequest()
    message.tensor.add(elem_type=1, shape=[1, 2], name="x", tensor_content=content)
    assert ask(message.SerializeToString(), content_type="application/proto").status == 400


# -- LoD -------------------------------------------------------------------------------------------------------------

TABLE = {"feed": "x", "input": "emb_x", "table": "ctr"}


def ids(values, lod, name="x", shape=None):
    return {
        "tensor": [{"int64_data": values, "elem_type": 0, "shape": shape or [len(values), 1], "lod": lod, "name": name}]
    }


@pytest.mark.parametrize("name", ["x", "emb_x"])
@pytest.mark.parametrize("shape", [[5], [5, 1]])
def test_ids_are_cut_into_rows_and_filled_up(name, shape):
    engine = TinyEngine(one("int64", [-1], [TABLE | {"padding_id": 0}]))
    assert ask(ids([1, 2, 3, 4, 5], [0, 2, 5], name, shape), engine).status == 200
    assert engine.calls[0].feed["x"].tolist() == [[1, 2, 0], [3, 4, 5]]


def test_an_empty_row_is_all_padding():
    engine = TinyEngine(one("int64", [-1], [TABLE | {"padding_id": 9}]))
    ask(ids([1, 2], [0, 0, 2]), engine)
    assert engine.calls[0].feed["x"].tolist() == [[9, 9], [1, 2]]


def test_rows_of_one_length_need_no_padding():
    engine = TinyEngine(one("int64", [1], [TABLE]))
    assert ask(ids([7, 8], [0, 1, 2]), engine).status == 200
    assert engine.calls[0].feed["x"].tolist() == [[7], [8]]


def test_ids_that_two_tables_share_come_twice():
    engine = TinyEngine(one("int64", [-1], [TABLE, TABLE | {"input": "emb2_x", "table": "wide"}]))
    body = {"tensor": [*ids([7, 8], [0, 2], "emb_x")["tensor"], *ids([7, 8], [0, 2], "emb2_x")["tensor"]]}
    assert ask(body, engine).status == 200
    assert engine.calls[0].feed["x"].tolist() == [[7, 8]]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (ids([1, 2, 3], [0, 1, 3]), "padding"),
        (ids([1, 2, 3], [0, 2]), "LoD"),
        (ids([1, 2, 3], [0, 4]), "LoD"),
        (ids([1, 2, 3], [1, 3]), "LoD"),
        (ids([1, 2, 3], [0, 2, 0, 1, 3]), "LoD"),
        (ids([1, 2, 3], [0]), "LoD"),
        (ids([1, 2, 3], [0, -1, 3]), "LoD"),
        (ids([1, 2, 3], [], "emb_x"), "LoD"),
    ],
)
def test_lod_that_cannot_be_right(body, says):
    engine = TinyEngine(one("int64", [-1], [TABLE]))
    text = failure(ask(body, engine), 400)
    assert says in text
    assert "x'" in text


def test_filling_up_is_bounded():
    engine = TinyEngine(one("int64", [-1], [TABLE | {"padding_id": 0}]))
    count = 20_000
    lod = [0, count, *range(count + 1, 2 * count + 1)]
    assert "too much" in failure(ask(ids([1] * (2 * count), lod), engine), 400)
