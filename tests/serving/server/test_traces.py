"""A span per prediction, with OpenTelemetry's own SDK."""

import json

import numpy as np
import pytest

from cloudedge.errors import InputError
from cloudedge.serving import Client, Server, ServerConfig, Traces
from tests.serving.raw_http import Http

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is not installed (extra otel)")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402 - once it is known to be there
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

pytestmark = pytest.mark.parts

RPC = {"grpc": ("OK", "INVALID_ARGUMENT"), "brpc": (0, -5100)}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_span_belongs_to_the_callers_and_says_which_version_answered(marked, models):
    spans, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    traces = Traces("pair", provider)
    with Server(marked, ServerConfig(port=0, service="pair"), traces=traces) as server, Http(server.port) as http:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        body = {"inputs": {"x": [[1.0, 2.0]]}}
        assert http.ask("POST", "/v1/predict", body, headers=headers).status == 200
        assert http.ask("POST", "/v1/predict", {"inputs": {}}).status == 400
        assert http.ask("GET", "/healthz").status == 200  # looking after it is not a prediction
    traces.close()
    first, second = spans.get_finished_spans()
    assert format(first.context.trace_id, "032x") == TRACE
    assert format(first.parent.span_id, "016x") == PARENT
    assert first.attributes["cloudedge.pin"] == models.marked[0].pin
    assert first.attributes["http.response.status_code"] == 200
    assert (second.parent, second.attributes["http.response.status_code"]) == (None, 400)


@pytest.mark.parametrize("scheme", RPC)
def test_calls_over_grpc_and_baidu_std_have_spans_and_log_lines_too(marked, models, caplog, scheme):
    well, refused = RPC[scheme]
    spans, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    traces = Traces("pair", provider)
    config = ServerConfig(port=0, grpc_port=0, service="pair", access_log=1.0)
    with caplog.at_level("INFO", "cloudedge.serving.access"), Server(marked, config, traces=traces) as server:
        port = server.port if scheme == "brpc" else server.grpc_port
        with Client(f"{scheme}://127.0.0.1:{port}", timeout_s=10, retries=0) as client:
            client.predict({"x": np.ones((1, 2), np.float32)})
            with pytest.raises(InputError):
                client.predict({"x": np.ones((1, 3), np.float32)})
    traces.close()
    lines = [json.loads(record.message) for record in caplog.records]
    assert [line["status"] for line in lines] == [well, refused]
    assert [line["pin"] for line in lines] == [models.marked[0].pin, ""]
    assert all(line["path"].endswith("/inference") and line["received"] > 0 for line in lines)
    found = [span.attributes for span in spans.get_finished_spans()]
    assert [each["rpc.system"] for each in found] == [scheme] * 2
    assert [each["rpc.response.status_code"] for each in found] == [well, refused]
    assert found[0]["cloudedge.pin"] == models.marked[0].pin
