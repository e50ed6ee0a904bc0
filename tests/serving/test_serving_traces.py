"""A span per prediction, with OpenTelemetry's own SDK."""

import pytest
from serving_http import Http

from cloudedge.serving import Server, ServerConfig, Traces

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is not installed (extra otel)")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402 - once it is known to be there
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

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
