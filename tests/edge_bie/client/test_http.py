"""Calls: what is repeated and what is not, what errors say, and what is never said."""

from __future__ import annotations

import pytest

from cloudedge import errors
from cloudedge.clock import ManualClock
from cloudedge.config import CloudConfig
from cloudedge.edge_bie.client import App, Bie, Config, Registry, Secret, Text, Write
from tests.edge_bie.client.scripted_server import HANG_UP, Answered, Scripted, failing, json_answer

pytestmark = pytest.mark.parts

NOT_THERE = failing(404, "ErrResourceNotFound", "The (config) resource (x) is not found.")
CONFIG = {"name": "greeting", "version": "1", "data": [{"key": "a", "value": {"type": "kv", "value": "1"}}]}
GREETING = Config("greeting", {"a": Text("1")})


def opened(server, **settings):
    return Bie(CloudConfig(url=server.url, **settings), clock=ManualClock())


@pytest.mark.parametrize("trouble", [HANG_UP, failing(500, "UnknownError"), failing(503), failing(429)], ids=str)
def test_a_read_is_repeated(trouble):
    with Scripted([trouble, trouble, json_answer(CONFIG)]) as server, opened(server) as bie:
        assert bie.config("greeting").version == "1"
        assert len({r.headers["x-bce-request-id"] for r in server.requests}) == 1, "one call, one name"
        assert len(server.requests) == 3


def test_a_read_is_not_repeated_for_ever():
    with Scripted([failing(503, message="too much")]) as server, opened(server) as bie:
        with pytest.raises(errors.Unavailable, match="too much"):
            bie.config("greeting")
        assert len(server.requests) == 5


def test_a_call_ends_at_its_deadline():
    with Scripted([failing(503)]) as server, opened(server, deadline="1s") as bie:
        with pytest.raises(errors.DeadlineExceeded, match="no good answer within 1 s"):
            bie.config("greeting")
        assert 1 < len(server.requests) < 5


def test_a_create_whose_answer_was_lost_is_found_and_not_repeated():
    script = [NOT_THERE, HANG_UP, json_answer(CONFIG)]
    with Scripted(script) as server, opened(server) as bie:
        assert bie.put_config(GREETING).version == "1"
        assert [r.method for r in server.requests] == ["GET", "POST", "GET", "GET"]


def test_a_create_that_was_not_made_is_made_again():
    script = [NOT_THERE, HANG_UP, NOT_THERE, json_answer(CONFIG), json_answer(CONFIG)]
    with Scripted(script) as server, opened(server) as bie:
        assert bie.put_config(GREETING).version == "1"
        assert [r.method for r in server.requests] == ["GET", "POST", "GET", "POST", "GET"]


def test_a_create_that_is_refused_is_not_made_again():
    script = [NOT_THERE, failing(400, "ErrRequestParamInvalid", "bad"), NOT_THERE]
    with Scripted(script) as server, opened(server) as bie:
        with pytest.raises(errors.InputError, match="bad"):
            bie.put_config(GREETING)
        assert [r.method for r in server.requests] == ["GET", "POST", "GET"]


def test_a_create_that_a_proxy_sent_twice_is_made():
    script = [NOT_THERE, failing(400, "ErrRequestParamInvalid", "this name is already in use"), json_answer(CONFIG)]
    with Scripted(script) as server, opened(server) as bie:
        assert bie.put_config(GREETING).version == "1"


def test_a_name_that_somebody_else_took_meanwhile_is_a_conflict():
    theirs = json_answer({**CONFIG, "data": []})
    script = [NOT_THERE, failing(400, "ErrRequestParamInvalid", "this name is already in use"), theirs]
    with Scripted(script) as server, opened(server) as bie, pytest.raises(errors.Conflict, match=r"data\.a is None"):
        bie.put_config(GREETING)


def test_a_dropped_item_is_noticed():
    dropped = {**CONFIG, "data": []}
    script = [NOT_THERE, json_answer(dropped), json_answer(dropped)]
    wrong = r"the object read back differs from the one written: data.a is None"
    with Scripted(script) as server, opened(server) as bie, pytest.raises(errors.Conflict, match=wrong):
        bie.put_config(GREETING)


def test_a_stale_read_is_waited_for():
    old = {**CONFIG, "data": []}
    nobody = json_answer({"items": []})
    script = [json_answer(old), json_answer(CONFIG), json_answer(old), json_answer(old), json_answer(CONFIG), nobody]
    with Scripted(script) as server, opened(server) as bie:
        assert bie.put_config(GREETING).items == GREETING.items
        assert [r.method for r in server.requests] == ["GET", "PUT", "GET", "GET", "GET", "GET"]


TABLE = {
    (401, "ErrRequestAccessDenied"): errors.Rejected,
    (403, "ErrResourceHasBeenUsed"): errors.Conflict,
    (403, ""): errors.Rejected,
    (404, "ErrRequestMethodNotFound"): errors.ConfigError,
    (404, ""): errors.ConfigError,
    (400, "ErrRequestParamInvalid"): errors.InputError,
    (400, "ErrAppNameConflict"): errors.Conflict,
    (400, "ErrVolumeNotFoundWhenMount"): errors.InputError,
    (400, "ErrAppReferencedByNode"): errors.Conflict,
    (400, "ErrVolumeType"): errors.InputError,
    (400, "ErrNodeNotReady"): errors.Unavailable,
    (400, "ErrInvalidToken"): errors.Rejected,
    (400, "ErrDataTooLarge"): errors.InputError,
    (400, "ErrDatabase"): errors.Unavailable,
    (400, "ErrK8S"): errors.Unavailable,
    (400, "ErrTemplate"): errors.InputError,
    (400, "ErrObjectOperationException"): errors.Unavailable,
    (400, "ErrResourceInvisible"): errors.Rejected,
    (400, "ErrConvertConflict"): errors.Conflict,
    (400, "ErrNodeNumMaxLimit"): errors.Rejected,
    (400, "ErrLicenseExpired"): errors.Rejected,
    (400, "nonBaetyl"): errors.InputError,
    (400, "SomethingNew"): errors.InputError,
    (403, "SignatureDoesNotMatch"): errors.Rejected,
    (400, "RequestExpired"): errors.Rejected,
    (429, ""): errors.Overloaded,
    (500, "UnknownError"): errors.Unavailable,
    (502, ""): errors.Unavailable,
    (302, ""): errors.ConfigError,
    (418, ""): errors.Rejected,
}


@pytest.mark.parametrize(("answer", "kind"), TABLE.items(), ids=str)
def test_what_refusals_mean(answer, kind):
    with Scripted([failing(*answer, message="because")]) as server, opened(server) as bie:
        with pytest.raises(errors.CloudEdgeError) as caught:
            bie.nodes()
        sent = server.requests[0].headers["x-bce-request-id"]
    assert type(caught.value) is kind
    assert caught.value.request_id == sent
    assert sent in str(caught.value)
    assert "because" in str(caught.value)
    assert "坏" not in str(caught.value)
    assert (caught.value.status, caught.value.code) == answer


def test_not_found_is_none():
    with Scripted([NOT_THERE]) as server, opened(server) as bie:
        assert bie.config("greeting") is None


def test_redirects_are_not_followed():
    answer = Answered(307, b"", (("Location", "http://127.0.0.1:1/"),))
    with Scripted([answer]) as server, opened(server) as bie:
        with pytest.raises(errors.ConfigError, match="redirects elsewhere"):
            bie.nodes()
        assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 100_000], ids=["html", "nothing", "deep"])
def test_what_is_not_json(body):
    bad = pytest.raises(errors.Unavailable, match="did not answer with JSON")
    with Scripted([Answered(200, body)]) as server, opened(server) as bie, bad:
        bie.nodes()


def test_nobody_there():
    bad = pytest.raises(errors.Unavailable, match="did not answer")
    with Bie.from_url("http://127.0.0.1:1", clock=ManualClock()) as bie, bad:
        bie.nodes()


def test_another_namespace_is_refused():
    theirs = json_answer({**CONFIG, "namespace": "theirs"})
    bad = pytest.raises(errors.ConfigError, match="namespace theirs, not for this cloud's ours")
    with Scripted([theirs]) as server, opened(server, namespace="ours") as bie, bad:
        bie.config("greeting")


def test_what_is_no_list():
    for body in ([], {"items": [1]}, {"items": {"a": 1}}, {"items": [{"name": 1}]}, {"items": [], "total": "x"}):
        bad = pytest.raises(errors.Unavailable, match="not a list of named objects")
        with Scripted([json_answer(body)]) as server, opened(server) as bie, bad:
            bie.nodes()


def test_an_address_that_cannot_be():
    for url in ("ftp://x", "http://user:s3cret@host", "http://host/path"):
        with pytest.raises(errors.ConfigError, match="url") as caught:
            Bie.from_url(url, timeout="5s")
        assert "url: String should match" in str(caught.value)


def test_pages_that_shift_are_read_again():
    def page(names, total):
        return json_answer({"items": [{"name": n} for n in names], "total": total})

    script = [page("ab", 4), page("bc", 4), page("ab", 4), page("cd", 4)]
    with Scripted(script) as server, opened(server) as bie:
        assert {node.name for node in bie.nodes(page_size=2)} == set("abcd")


def refusing(request):
    return NOT_THERE if request.method == "GET" else failing(400, "ErrRequestParamInvalid", "bad")


def audited(server, put, thing):
    """Return what is noted and what is raised when something is refused."""
    lines: list[Write] = []
    with Bie(CloudConfig(url=server.url), clock=ManualClock(), audit=lines.append) as bie:
        with pytest.raises(errors.InputError) as caught:
            getattr(bie, put)(thing)
        return lines, f"{caught.value} {caught.value.facts} {bie!r} {bie.settings!r} {lines}"


def test_secrets_are_in_no_error_and_no_audit():
    secret, registry = Secret("s-s", {"k": "s3cret"}), Registry("r-r", "a", "u", password="s3cret")
    with Scripted([refusing]) as server:
        for put, thing in (("put_secret", secret), ("put_registry", registry)):
            lines, said = audited(server, put, thing)
            assert "s3cret" not in said
            assert [line.outcome for line in lines] == ["InputError: ErrRequestParamInvalid"]


def test_the_audit_digest_does_not_depend_on_the_secret():
    with Scripted([refusing]) as server:
        notes = [audited(server, "put_secret", Secret("s-s", {"k": word}))[0] for word in ("one", "two")]
    assert notes[0][0].body_sha256 == notes[1][0].body_sha256


class Node1:
    """A node whose first writes are answered and lost."""

    def __init__(self, lost):
        self.value = {"name": "n1", "version": "1", "labels": {"a": "1"}, "sysApps": ["x"], "accelerator": "nvidia"}
        self.lost = lost

    def __call__(self, request):
        if request.method == "PUT" and self.lost:
            self.lost -= 1
        elif request.method == "PUT":
            self.value = request.body
        return json_answer(self.value)


def test_a_label_that_was_lost_is_written_again_with_everything_else():
    with Scripted([Node1(lost=2)]) as server, opened(server) as bie:
        assert bie.set_labels("n1", {"b": "2"}).labels == {"a": "1", "b": "2"}
        writes = [request.body for request in server.requests if request.method == "PUT"]
    assert len(writes) == 3
    assert writes[-1]["sysApps"] == ["x"], "left out, they would be uninstalled"
    assert writes[-1]["accelerator"] == "nvidia"


def test_a_label_that_is_lost_every_time_is_a_conflict():
    with Scripted([Node1(lost=99)]) as server, opened(server) as bie, pytest.raises(errors.Conflict, match="lost each"):
        bie.set_labels("n1", {"b": "2"})


def test_an_update_of_an_app_is_built_from_what_was_read():
    stored = {"name": "hello", "version": "7", "replica": 1, "selector": "", "cronStatus": 2, "autoScaleCfg": {}}

    def answer(request):
        if request.method == "PUT":
            stored.update(request.body)
        return json_answer(stored)

    with Scripted([answer]) as server, opened(server) as bie:
        bie.put_app(App("hello", selector="a=b"))
        (body,) = [request.body for request in server.requests if request.method == "PUT"]
    assert (body["autoScaleCfg"], body["cronStatus"], body["replica"], body["selector"]) == ({}, 2, 1, "a=b")
