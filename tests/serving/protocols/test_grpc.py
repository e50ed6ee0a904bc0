"""Both services over a real gRPC channel."""

import asyncio
import time

import grpc
import numpy as np
import pytest

from cloudedge.errors import DeadlineExceeded, Overloaded, Unavailable
from cloudedge.serving.formats._messages import PipelineRequest, PipelineResponse
from cloudedge.serving.formats._tensors import ELEM_TYPES
from cloudedge.serving.protocols._auth import DataPortAuth
from cloudedge.serving.protocols._grpc import serve_grpc
from tests.serving.protocols.engine import PIN, TinyEngine
from tests.serving.protocols.event_loop import loop_in_thread
from tests.serving.protocols.plain_frames import chunk, request, tensor

pytestmark = pytest.mark.parts

PIPELINE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
GENERAL = "/baidu.paddle_serving.predictor.general_model.GeneralModelService/inference"


class Waits(TinyEngine):
    async def predict(self, call):
        self.left = call.deadline and call.deadline - time.monotonic()
        return await super().predict(call)


@pytest.fixture
def served():
    engine = Waits()
    with loop_in_thread() as call:
        server = call(serve_grpc(DataPortAuth(engine), service="uci", max_message_bytes=1 << 20))
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield engine, channel
        call(server.stop(0))


def ask(channel, method, body, timeout=10, metadata=()):
    call = channel.unary_unary(method)
    answer, info = call.with_call(body, timeout=timeout, metadata=metadata)
    return answer, dict(info.trailing_metadata())


def pipeline(channel, message, **options):
    answer, trailing = ask(channel, PIPELINE, message.SerializeToString(), **options)
    return PipelineResponse.FromString(answer), trailing


def test_pipeline(served):
    answer, trailing = pipeline(served[1], PipelineRequest(key=["x"], value=["[[0.5,0.25]]"], name="uci", logid=9))
    assert (answer.err_no, list(answer.key), list(answer.value)) == (0, ["price", "rank"], ["[[0.75]]", "[0]"])
    assert len(answer.tensors) == 0
    assert trailing["x-cloudedge-pin"] == PIN
    assert served[0].calls[0].log_id == 9


def test_pipeline_as_pipeline_client_packs_it(served):
    array = np.array([[0.5, 0.25], [1, 2]], np.float32)
    answer, _ = pipeline(served[1], PipelineRequest(key=["x"], value=[repr(array)]))
    assert answer.value[0] == "[[0.75],[3.0]]"


def test_pipeline_tensors_both_ways(served):
    message = PipelineRequest()
    message.tensors.add(name="x", elem_type=1, shape=[1, 2], float_data=[0.5, 0.25])
    answer, _ = pipeline(served[1], message, metadata=[("x-cloudedge-answer", "tensors")])
    price, rank = answer.tensors
    assert (price.name, price.elem_type, list(price.shape), list(price.float_data)) == ("price", 1, [1, 1], [0.75])
    assert (rank.name, rank.elem_type, list(rank.int64_data)) == ("rank", 0, [0])


@pytest.mark.parametrize("elem_type", [*ELEM_TYPES, 10, 11, 12, 13, 14])
def test_pipeline_types(served, elem_type):
    message = PipelineRequest()
    sent = message.tensors.add(name="x", elem_type=elem_type, shape=[1, 2], str_data=["[[1,", "1]]"])
    if elem_type in ELEM_TYPES:
        getattr(sent, ELEM_TYPES[elem_type][1]).extend([1, 1])
    answer, _ = pipeline(served[1], message)
    assert answer.err_no == (0 if elem_type in {*ELEM_TYPES, 12} else 8000)


def test_a_wrong_name_is_refused_and_no_name_taken(served):
    assert pipeline(served[1], PipelineRequest(name="other"))[0].err_no == 3002
    assert pipeline(served[1], PipelineRequest(key=["a", "b"], value=["1"]))[0].err_no == 8000
    assert pipeline(served[1], PipelineRequest(key=["x"], value=["[1,2]"], name=""))[0].err_no == 0


@pytest.mark.parametrize(
    ("fault", "err_no"), [(Overloaded("full"), 6000), (Unavailable("s"), 9000), (OSError(), 10000)]
)
def test_pipeline_says_everything_by_err_no(served, fault, err_no):
    served[0].fail = fault
    assert pipeline(served[1], PipelineRequest(key=["x"], value=["[1,2]"]))[0].err_no == err_no


def test_general(served):
    answer, trailing = ask(served[1], GENERAL, request())
    price = tensor([0.75], [1, 1], b"price").replace(chunk(13, b"price"), chunk(13, b"fc_0.tmp_1"))
    assert answer == chunk(1, chunk(1, price) + chunk(2, b"GeneralInferOp_0"))
    assert trailing["x-cloudedge-pin"] == PIN


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Overloaded("full"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (DeadlineExceeded("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (Unavailable("shard 1"), grpc.StatusCode.UNAVAILABLE),
        (OSError("secret"), grpc.StatusCode.INTERNAL),
    ],
)
def test_general_says_it_by_status(served, fault, status):
    served[0].fail = fault
    with pytest.raises(grpc.RpcError) as raised:
        ask(served[1], GENERAL, request())
    assert raised.value.code() == status
    assert "secret" not in raised.value.details()


@pytest.mark.parametrize(
    ("method", "body"),
    [
        (PIPELINE, b"\xff\xff"),
        (GENERAL, b"\xff\xff"),
        (GENERAL, request(fetch=[b"prise"])),
        (GENERAL, request(shape=(3, 1))),
    ],
)
def test_bad_requests(served, method, body):
    with pytest.raises(grpc.RpcError) as raised:
        ask(served[1], method, body)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_the_callers_deadline_reaches_the_engine(served):
    ask(served[1], GENERAL, request(), timeout=5)
    assert 0 < served[0].left < 6  # gRPC rounds
    ask(served[1], GENERAL, request(), timeout=None)
    assert served[0].left is None


def test_a_variant(served):
    assert ask(served[1], GENERAL, request(), metadata=[("x-cloudedge-tag", "a")])[1]["x-cloudedge-tag"] == "a"
    with pytest.raises(grpc.RpcError) as raised:
        ask(served[1], GENERAL, request(), metadata=[("x-cloudedge-tag", "b")])
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_messages_are_bounded(served):
    with pytest.raises(grpc.RpcError) as raised:
        ask(served[1], GENERAL, bytes(2 << 20))
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_token_is_asked_for():
    with loop_in_thread() as call:
        server = call(serve_grpc(DataPortAuth(TinyEngine(), token="open sesame"), service="uci"))
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for metadata in ((), [("authorization", "Bearer open")], [("authorization", "Bearer ")]):
                with pytest.raises(grpc.RpcError) as raised:
                    ask(channel, GENERAL, request(), metadata=metadata)
                assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert ask(channel, GENERAL, request(), metadata=[("authorization", "Bearer open sesame")])[0]
        call(server.stop(0))


def test_a_taken_port_is_an_error():
    async def twice():
        first = await serve_grpc(DataPortAuth(TinyEngine()), service="uci")
        try:
            with pytest.raises(Unavailable):
                await serve_grpc(DataPortAuth(TinyEngine()), service="uci", port=first.port)
        finally:
            await first.stop(0)

    asyncio.run(twice())
