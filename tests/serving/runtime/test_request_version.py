"""One request, one version, whatever moves meanwhile."""

import asyncio
import json
import threading

import numpy as np
import pytest

from cloudedge.errors import NotFound
from cloudedge.serving import Op, RequestOp, Shadow, Variant
from cloudedge.serving.engine import HttpCall
from cloudedge.serving.protocols._general import general_http
from cloudedge.serving.protocols._ops import Ops
from cloudedge.serving.protocols._pipeline import pipeline_http
from tests.serving.models import pack_pooled

pytestmark = pytest.mark.parts

PAIR = json.dumps({"key": ["x"], "value": ["[[1.0, 2.0]]"]}).encode()
RAGGED = {"int64_data": [1, 2, 3], "elem_type": 0, "shape": [3], "lod": [0, 1, 3], "name": "ids", "alias_name": "ids"}
SUMS = [[1, 1.25, 1.5], [5, 5.5, 6]]


class Twice(Op):
    """Feeds the model what it answered before."""

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        x = inputs["x"] if "x" in inputs else inputs["y"]
        return {"x": np.array(json.loads(x)) if isinstance(x, str) else x}, False, None, ""


def test_ops_of_one_request_are_answered_by_one_version_though_the_pointer_moves_and_it_is_unloaded(marked, models):
    one, two = models.marked[1], models.marked[2]
    for bundle in (one, two):
        marked.load(models.ref(bundle))
    marked.activate(one.pin)
    unloading = threading.Thread(target=marked.unload, args=(one.pin,))

    class Moves(Twice):
        def postprocess(self, input_data, fetch_data, data_id, log_id):
            marked.activate(two.pin)
            unloading.start()
            while one.pin in marked.queues:
                pass
            return fetch_data, None, ""

    ops = Ops(Twice("second", [Moves("first", [RequestOp()])]))
    answer = asyncio.run(pipeline_http(marked, HttpCall("POST", "/m/prediction", {}, PAIR), service="m", ops=ops))
    told = json.loads(answer.body)
    assert told["err_no"] == 0, told
    assert answer.headers["X-Cloudedge-Pin"] == one.pin
    assert told["value"] == [repr(np.array([[3, 4]], np.float32))], "1 was added twice, by version one"
    unloading.join(10)
    with pytest.raises(NotFound):
        marked.version(one.pin)


@pytest.fixture
def padded(runtime, models, tmp_path):
    """Two versions that differ in the id that fills up short rows; the table has both."""
    seven, nine = (pack_pooled(tmp_path / str(i), models.hub, padding_id=i) for i in (7, 9))
    for bundle in (seven, nine):
        runtime.load(models.ref(bundle))
    runtime.activate(seven.pin)
    return runtime, seven.pin, nine.pin


def ask_ragged(runtime, **headers):
    body = json.dumps({"tensor": [RAGGED]}).encode()
    answer = asyncio.run(general_http(runtime, HttpCall("POST", "/GeneralModelService/inference", headers, body)))
    (tensor,) = json.loads(answer.body)["outputs"][0]["tensor"]
    return answer.headers["X-Cloudedge-Pin"], np.reshape(tensor["float_data"], (2, 3)).tolist()


def test_a_request_is_read_as_the_version_that_answers_it_reads(padded):
    runtime, seven, nine = padded
    runtime.set_weights([Variant(seven, 0.5, "a"), Variant(nine, 0.5, "b")])
    assert ask_ragged(runtime, **{"x-cloudedge-tag": "a"}) == (seven, SUMS)
    assert ask_ragged(runtime, **{"x-cloudedge-tag": "b"}) == (nine, SUMS)
    body = json.dumps({"tensors": [RAGGED | {"lod": [0, 1, 3, 3]}]}).encode()  # an even count, as the service wants it
    for tag, pin in (("a", seven), ("b", nine)):
        call = HttpCall("POST", "/m/prediction", {"x-cloudedge-tag": tag}, body)
        answer = asyncio.run(pipeline_http(runtime, call, service="m"))
        assert answer.headers["X-Cloudedge-Pin"] == pin
        assert json.loads(json.loads(answer.body)["value"][0]) == [*SUMS, [0, 0, 0]]


def test_a_shadow_that_would_read_a_request_differently_is_not_asked(padded):
    runtime, _, nine = padded
    runtime.set_shadow(Shadow(nine))
    ask_ragged(runtime)
    metrics = runtime.queues[nine].version.metrics
    assert (metrics.shadow_dropped, metrics.shadow_compared) == (1, 0)
