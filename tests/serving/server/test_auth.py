"""Who may choose a version, over HTTP and gRPC alike."""

import grpc
import numpy as np
import pytest

from cloudedge.errors import ConfigError
from cloudedge.serving import Server, ServerConfig
from cloudedge.serving.formats._messages import (
    GENERAL_SERVICE,
    PIPELINE_SERVICE,
    GeneralRequest,
    PipelineRequest,
    PipelineResponse,
)
from cloudedge.serving.protocols._general import add_tensor
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

X = [[1.0, 2.0]]


def ask(server, service, **metadata):
    """Ask over gRPC; returns the pin that answered, or the status."""
    if service == PIPELINE_SERVICE:
        message = PipelineRequest(key=["x"], value=[str(X)])
    else:
        message = GeneralRequest()
        add_tensor(message.tensor, "x", "x", np.array(X, np.float32))
    headers = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary(f"/{service}/inference")
        try:
            answer, info = call.with_call(message.SerializeToString(), timeout=20, metadata=headers)
        except grpc.RpcError as error:
            return error.code().name
    if service == PIPELINE_SERVICE:
        err_no = PipelineResponse.FromString(answer).err_no
        if err_no:
            return err_no
    return dict(info.trailing_metadata())["x-cloudedge-pin"]


@pytest.fixture
def pins(marked, models):
    marked.load(models.ref(models.marked[1]))
    return models.marked[0].pin, models.marked[1].pin


@pytest.mark.parametrize("service", [GENERAL_SERVICE, PIPELINE_SERVICE])
def test_metadata_chooses_as_headers_do(marked, pins, service):
    zero, one = pins
    with Server(marked, ServerConfig(port=0, grpc_port=0, admin_token="admin")) as server:
        assert ask(server, service) == zero
        assert ask(server, service, x_cloudedge_pin=one) == "PERMISSION_DENIED"
        assert ask(server, service, x_cloudedge_pin=one, authorization="Bearer other") == "PERMISSION_DENIED"
        assert ask(server, service, x_cloudedge_pin=one, authorization="Bearer admin") == one
        missing = 3002 if service == PIPELINE_SERVICE else "NOT_FOUND"
        assert ask(server, service, x_cloudedge_pin="none", authorization="Bearer admin") == missing


def test_the_admin_token_does_for_the_other_over_grpc_too(marked, pins):
    with Server(marked, ServerConfig(port=0, grpc_port=0, token="data", admin_token="admin")) as server:
        assert ask(server, GENERAL_SERVICE) == "UNAUTHENTICATED"
        assert ask(server, GENERAL_SERVICE, authorization="Bearer data") == pins[0]
        assert ask(server, GENERAL_SERVICE, authorization="Bearer admin") == pins[0]
        assert ask(server, GENERAL_SERVICE, authorization="Bearer data", x_cloudedge_pin=pins[1]) == "PERMISSION_DENIED"


@pytest.mark.parametrize(("host", "may"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_without_an_admin_token_only_this_machine_chooses(marked, pins, host, may):
    config = ServerConfig(host=host, port=0, grpc_port=0, is_open=True)
    with Server(marked, config) as server, Http(server.port) as http:
        reply = http.predict(X, X_Cloudedge_Pin=pins[1])
        assert reply.status == (200 if may else 403)
        assert ask(server, GENERAL_SERVICE, x_cloudedge_pin=pins[1]) == (pins[1] if may else "PERMISSION_DENIED")
        assert http.predict(X).json()["pin"] == pins[0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_beyond_loopback_a_token_is_needed_unless_it_is_said_that_none_is(host):
    with pytest.raises(ConfigError, match="without a token") as refused:
        ServerConfig(host=host)
    assert "--open" in refused.value.hint
    ServerConfig(host=host, token="data")
    ServerConfig(host=host, is_open=True)
