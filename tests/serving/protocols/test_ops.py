"""Hooks: upstream's names, return values and error codes."""

import json
import re
import threading

import numpy as np
import pytest

from cloudedge.bundle import Signature
from cloudedge.errors import ConfigError, Overloaded
from cloudedge.serving import Op, RequestOp, WebService, load_ops
from cloudedge.serving.formats._messages import PipelineRequest
from cloudedge.serving.protocols._ops import Ops
from cloudedge.serving.protocols._pipeline import pipeline_http, pipeline_message
from tests import ROOT
from tests.serving.protocols.engine import PIN, TinyEngine, post, run

pytestmark = pytest.mark.rules


def ask(last, body=None, engine=None):
    body = body or {"key": ["x"], "value": ["0.5;0.25"], "logid": 9}
    call = post("/uci/prediction", json.dumps(body))
    answer = run(
        pipeline_http(engine or TinyEngine(), call, service="uci", ops=last if isinstance(last, Ops) else Ops(last))
    )
    return answer, json.loads(answer.body)


class UciOp(Op):
    """As an upstream web_service.py has it."""

    def init_op(self):
        self.separator = ";"
        self.seen = []

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        self.seen.append((data_id, log_id))
        return {"x": np.array([float(v) for v in inputs["x"].split(self.separator)]).reshape(1, 2)}, False, None, ""

    def postprocess(self, input_data, fetch_data, data_id, log_id):
        return {"price": str(fetch_data["price"][0, 0])}, None, ""


def test_an_op_as_upstream_has_it():
    op, engine = UciOp("uci", [RequestOp()]), TinyEngine()
    ops = Ops(op)
    answer, told = ask(ops, engine=engine)
    assert told == {"err_no": 0, "err_msg": "", "key": ["price"], "value": ["0.75"], "tensors": []}
    assert answer.headers["X-Cloudedge-Pin"] == PIN
    assert engine.calls[0].feed["x"].dtype == np.float32  # cast to what the model takes
    ask(ops)
    assert [log_id for _, log_id in op.seen] == [9, 9]
    assert op.seen[0][0] != op.seen[1][0]


def test_arrays_are_answered_as_numpy_prints_them():
    class Plain(UciOp):
        def postprocess(self, input_data, fetch_data, data_id, log_id):
            return {"price": np.repeat(fetch_data["price"], 2000, 0)}, None, ""

    _, told = ask(Plain())
    assert told["value"][0].startswith("array([[0.75],\n")
    assert "..." not in told["value"][0]
    assert told["value"][0].endswith("dtype=float32)")


def test_without_hooks_arrays_come_from_tensors():
    body = {"tensors": [{"name": "x", "elem_type": 1, "shape": [1, 2], "float_data": [0.5, 0.25]}]}
    _, told = ask(Op("op"), body)
    assert told["value"] == ["array([[0.75]], dtype=float32)", "array([0])"]


def hooks(pre=None, post=None):
    class Made(UciOp):
        if pre:

            def preprocess(self, input_dicts, data_id, log_id):
                return pre(input_dicts)

        if post:

            def postprocess(self, input_data, fetch_data, data_id, log_id):
                return post(fetch_data)

    return Made()


X = np.zeros((1, 2))


def fails(_):
    raise RuntimeError("secret path /srv/model")


@pytest.mark.parametrize(
    ("op", "err_no", "says"),
    [
        (hooks(pre=fails), 10000, "Made failed in preprocess"),
        (hooks(post=fails), 10000, "Made failed in postprocess"),
        (hooks(pre=lambda d: ({"x": X, "y": X}, False, None, "")), 5000, "invalid arg list"),
        (hooks(pre=lambda d: ({}, False, None, "")), 5000, "invalid arg list"),
        (hooks(pre=lambda d: ({"x": [1, 2]}, False, None, "")), 7000, "feed_batch must be npdata"),
        (hooks(pre=lambda d: ([X], False, None, "")), 7000, "dict"),
        (hooks(pre=lambda d: ({"x": np.zeros((1, 3))}, False, None, "")), 5000, "'x'"),
        (hooks(pre=lambda d: ({"x": X}, False, 51, "no such user")), 51, "no such user"),
        (hooks(post=lambda d: ({}, 52, "not today")), 52, "not today"),
        (hooks(post=lambda d: ({"a": 1.5}, None, "")), 7000, "fetch var type must be str"),
        (hooks(post=lambda d: ({"a": "text", "b": X}, None, "")), 7000, "fetch var type must be str"),
        (hooks(post=lambda d: (["a"], None, "")), 7000, "dict"),
        (hooks(post=lambda d: None), 10000, "Made failed"),
    ],
)
def test_err_no(op, err_no, says):
    answer, told = ask(op)
    assert answer.status == 200
    assert told["err_no"] == err_no
    assert says in told["err_msg"]
    assert "secret" not in told["err_msg"]


def test_a_product_code_that_is_no_number():
    answer, told = ask(hooks(pre=lambda d: ({}, False, "fifty", "")))
    assert (answer.status, told["err_no"]) == (200, 10000)


def test_text_that_no_protocol_can_carry():
    op = hooks(post=lambda d: ({"a": "half a character: \ud800"}, None, ""))
    answer, told = ask(op)
    assert (answer.status, told["err_no"]) == (500, 10000)
    request = PipelineRequest(key=["x"], value=["1;2"])
    response, _ = run(pipeline_message(TinyEngine(), request, service="uci", ops=Ops(op)))
    assert response.err_no == 10000


def test_the_web_service_of_the_documentation(tmp_path):
    page = (ROOT / "docs/serving-migration.md").read_text()
    before = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0].splitlines()
    assert before[0] == "from paddle_serving_server.web_service import WebService, Op"
    after = tmp_path / "wire_documented_service.py"
    after.write_text("\n".join(["from cloudedge.serving import Op, WebService", *before[1:-2]]))
    ops, name = load_ops(f"{after}:service")
    assert name == "uci"
    signature = Signature.model_validate(
        {"feed": [{"name": "x", "shape": [13]}], "fetch": [{"name": "price", "shape": [13]}]}
    )
    body = {"key": ["x"], "value": [",".join(["0.5"] * 13)]}
    assert ask(ops, body, TinyEngine(signature))[1]["value"] == ["0.5"]


def test_transport_faults_keep_their_status():
    answer, told = ask(UciOp(), engine=TinyEngine(fail=Overloaded("full")))
    assert (answer.status, told["err_no"]) == (429, 6000)


def test_lod_is_handed_on_in_two_rows():
    seen = {}

    def pre(inputs):
        seen.update(inputs["@DAGExecutor"])
        return {"x": X}, False, None, ""

    tensor = {"name": "x", "elem_type": 1, "shape": [4], "float_data": [1, 2, 3, 4], "lod": [0, 1, 0, 4]}
    ask(hooks(pre=pre), {"tensors": [tensor]})
    assert seen["x.lod"].tolist() == [[0, 1], [0, 4]]
    assert seen["x"].tolist() == [1, 2, 3, 4]


def test_skipping_the_model():
    engine = TinyEngine()
    _, told = ask(
        hooks(pre=lambda d: ({"y": "cached"}, True, None, ""), post=lambda got: (got, None, "")), engine=engine
    )
    assert told["value"] == ["cached"]
    assert engine.calls == []


def test_ops_in_a_graph():
    class Scale(Op):
        with_serving = False

        def preprocess(self, input_dicts, data_id, log_id):
            (inputs,) = input_dicts.values()
            return {"x": ";".join(str(float(v) * 2) for v in inputs["x"].split(";"))}, False, None, ""

    class Join(Op):
        with_serving = False

        def preprocess(self, input_dicts, data_id, log_id):
            return {"both": f"{input_dicts['uci']['price']} from {input_dicts['scale']['x']}"}, False, None, ""

    read = RequestOp()
    scale = Scale("scale", [read])
    uci = UciOp("uci", [scale])
    assert ask(Join("join", [uci, scale]))[1]["value"] == ["1.5 from 1.0;0.5"]


def test_graphs_that_cannot_be():
    read = RequestOp()
    with pytest.raises(ConfigError, match="same name"):
        Ops(Op("c", [Op("a", [read]), Op("a", [read])]))
    first = Op("first")
    first.input_ops = [Op("second", [first])]
    with pytest.raises(ConfigError, match="circle"):
        Ops(first)
    with pytest.raises(ConfigError, match="takes the results of") as refused:
        Ops(Op("join", [UciOp("a", [read]), UciOp("b", [read])]))
    assert "preprocess" in refused.value.hint


def test_threads_only_where_asked_for():
    threads = set()

    class Slow(UciOp):
        threaded = True

        def preprocess(self, *arguments):
            threads.add(threading.current_thread())
            return super().preprocess(*arguments)

    assert ask(Slow())[1]["err_no"] == 0
    assert threading.main_thread() not in threads


SERVICE = """
import numpy as np
from cloudedge.serving import Op, WebService

class UciOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (_, inputs), = input_dicts.items()
        return {"x": np.array([[float(v) for v in inputs["x"].split(";")]])}, False, None, ""

class UciService(WebService):
    def get_pipeline_response(self, read_op):
        return UciOp(name="uci", input_ops=[read_op])

service = UciService(name="uci")
number = 5
"""


def test_hooks_are_loaded_from_a_file_or_a_module(tmp_path, monkeypatch):
    file = tmp_path / "wire_hooks_of_a_user.py"
    file.write_text(SERVICE)
    for reference, name in (("service", "uci"), ("UciService", "default_service"), ("UciOp", None)):
        ops, service = load_ops(f"{file}:{reference}")
        assert [op.name for op in ops.order if not isinstance(op, RequestOp)] == ["uci" if name else "UciOp"]
        assert service == name
    monkeypatch.syspath_prepend(tmp_path)
    assert load_ops("wire_hooks_of_a_user:service")[1] == "uci"
    for wrong in ("nothing", "no.such.module:Op", f"{file}:Missing", f"{file}:number", "missing.py:Op", ":", "a:"):
        with pytest.raises(ConfigError):
            load_ops(wrong)


def test_a_service_without_a_graph_of_its_own():
    last = WebService("uci").get_pipeline_response(RequestOp())
    assert [op.name for op in Ops(last).order] == ["@DAGExecutor", "op"]
