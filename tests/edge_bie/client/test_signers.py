"""bce-auth-v1: the published vector, a second implementation, and every try signed anew."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudedge.clock import ManualClock, rfc3339
from cloudedge.edge_bie.client import Bie
from cloudedge.edge_bie.client._auth import authorization
from cloudedge.errors import ConfigError
from tests.edge_bie.client.scripted_server import Scripted, failing, json_answer
from tests.hub.objects.bos_double import authorization as other_implementation

AT = datetime(2024, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
KEYS = ("AKEXAMPLE", "SKEXAMPLE")


@pytest.mark.rules
def test_the_vector():
    signed = authorization(
        KEYS,
        "PUT",
        "/v1/configs/paddle-yolov3-model",
        [("pageNo", "1"), ("name", "中 a/b"), ("empty", "")],
        {"Host": "iotedge.bj.baidubce.com", "x-bce-date": "2024-01-02T03:04:05Z"},
        signed=["host", "x-bce-date"],
        at=AT,
    )
    assert signed == (
        "bce-auth-v1/AKEXAMPLE/2024-01-02T03:04:05Z/1800/host;x-bce-date/"
        "1668f069e32c72d2938612df8b257c41cbfdf887feaabd3537acbd92e8b6eaba"
    )


@pytest.mark.rules
@given(
    st.sampled_from(["GET", "PUT", "DELETE", "POST"]),
    st.lists(st.tuples(st.text(min_size=1), st.text()), max_size=4),
    st.dictionaries(st.sampled_from(["x-bce-date", "X-Bce-Request-Id", "x-bce-security-token"]), st.text(max_size=9)),
)
def test_it_agrees_with_a_second_implementation(method, query, headers):
    everything = {"host": "h.example:9004", **headers}
    names = sorted(name.lower() for name in everything)
    mine = authorization(KEYS, method, "/v1/nodes/n1", query, everything, signed=names, at=AT)
    theirs = other_implementation(
        KEYS, method, "/v1/nodes/n1", query, everything, signed=names, at="2024-01-02T03:04:05Z"
    )
    assert mine == theirs


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("BIE_SK", "SKEXAMPLE")
    monkeypatch.setenv("BIE_TOKEN", "t0ken")
    return {"signer": "bce-auth-v1", "access_key": "AKEXAMPLE", "secret_key": "env:BIE_SK"}


@pytest.mark.parts
def test_every_try_is_signed_anew(keys):
    clock = ManualClock()
    with Scripted([failing(503)] * 4 + [json_answer({"items": [], "total": 0})]) as server:
        with Bie.from_url(server.url, clock=clock, session_token="env:BIE_TOKEN", **keys) as bie:
            bie.configs(selector="a in (x, y)")
        first, *_, second = server.requests
    assert first.headers["Authorization"] != second.headers["Authorization"]
    for request in (first, second):
        path, _, _ = request.path.partition("?")
        names = request.headers["Authorization"].split("/")[4].split(";")
        assert {"host", "x-bce-date", "x-bce-request-id", "x-bce-security-token"} <= set(names)
        lower = {name.lower(): value for name, value in request.headers.items()}
        expected = other_implementation(
            KEYS, "GET", path, request.query, lower, signed=names, at=request.headers["x-bce-date"]
        )
        assert request.headers["Authorization"] == expected
    assert second.headers["x-bce-date"] <= rfc3339(clock.now())


@pytest.mark.parts
def test_a_header_of_ones_own(monkeypatch):
    monkeypatch.setenv("GATE", "open sesame")
    settings = {"signer": "header", "auth_header": "X-Gate", "auth_value": "env:GATE", "namespace": "ours"}
    with Scripted([json_answer({"name": "n1", "namespace": "ours"})]) as server:
        with Bie.from_url(server.url, prefix="/gate/{namespace}", headers={"X-Ns": "{namespace}"}, **settings) as bie:
            assert bie.node("n1").name == "n1"
        (request,) = server.requests
    assert request.path == "/gate/ours/v1/nodes/n1"
    assert (request.headers["X-Gate"], request.headers["X-Ns"]) == ("open sesame", "ours")
    assert "Authorization" not in request.headers


@pytest.mark.parts
def test_nothing_is_signed_by_default_and_netrc_is_not_read(monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login someone password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with Scripted([json_answer({"name": "n1"})]) as server:
        with Bie.from_url(server.url) as bie:
            bie.node("n1")
        assert "Authorization" not in server.requests[0].headers


@pytest.mark.rules
@pytest.mark.parametrize("settings", [{"signer": "bce-auth-v1"}, {"signer": "header"}], ids=lambda s: s["signer"])
def test_a_signer_without_its_keys_is_refused(settings):
    with pytest.raises(ConfigError, match="needs"):
        Bie.from_url("http://127.0.0.1:1", **settings)
