"""The session: what is repeated, what is followed, what each refusal becomes, and what an address may be."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from email.utils import format_datetime
from itertools import pairwise

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import (
    ConfigError,
    Conflict,
    InputError,
    IntegrityError,
    NotFound,
    Rejected,
    StorageError,
    Unavailable,
)
from cloudedge.hub.core._oci import Descriptor
from cloudedge.hub.registry import _session as _registry_http
from cloudedge.hub.registry._registry_hub import RegistryHub, RegistrySettings
from cloudedge.hub.registry._session import is_loopback
from tests.hub.registry.servers import Answer, Server, certificate, free_port, push, registry, times


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def patient(proxy, prefix, clock):
    """A hub behind `proxy` whose waiting takes no time."""
    return RegistryHub(f"oci://{proxy.host}/{prefix}", RegistrySettings("ada", "hush"), clock=clock)


@pytest.mark.parts
def test_nothing_listens(clock):
    host = f"127.0.0.1:{free_port()}"
    hub = RegistryHub(f"oci://{host}/x", clock=clock)  # nobody is asked yet
    with pytest.raises(Unavailable, match=f"connection refused at {host}; is the registry up") as caught:
        hub.tags("ctr")
    assert caught.value.hub == host
    with pytest.raises(Unavailable, match="connection refused"):
        list(hub.read_blob("ctr", Descriptor.of(b"x", "x")))
    assert clock.elapsed == 0


@pytest.mark.rules
def test_no_such_host(monkeypatch):
    def unknown(*args, **more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unavailable, match=r"the host .* does not exist"):
        RegistryHub("oci://no-such-host.invalid/x").tags("ctr")


@pytest.mark.parts
def test_503_twice_then_fine(patient, proxy, clock):
    proxy.rule = times(2, Answer(503))
    manifest = push(patient, "ctr", b"x")
    assert patient.read_manifest("ctr", manifest.digest) == manifest
    assert 0.5 < clock.elapsed < 2


@pytest.mark.parts
def test_503_for_ever(patient, proxy, clock):
    proxy.rule = lambda seen: Answer(503)
    with pytest.raises(Unavailable, match="503") as caught:
        patient.tags("ctr")
    assert caught.value.retry_helps
    assert len(proxy.seen) == _registry_http.ATTEMPTS
    assert clock.elapsed < 10


@pytest.mark.parts
@pytest.mark.parametrize("as_date", [False, True])
def test_429_waits_as_long_as_asked(patient, proxy, clock, as_date):
    later = ManualClock(elapsed=17).now()
    proxy.rule = times(1, Answer(429, {"Retry-After": format_datetime(later, usegmt=True) if as_date else "17"}))
    assert patient.tags("ctr") == []
    assert clock.elapsed == 17


@pytest.mark.parts
def test_429_that_asks_too_much_is_an_error_now(patient, proxy, clock):
    proxy.rule = lambda seen: Answer(429, {"Retry-After": "3600"})
    with pytest.raises(Unavailable, match="429") as caught:
        patient.tags("ctr")
    assert caught.value.retry_after_s == 3600
    assert (clock.elapsed, len(proxy.seen)) == (0, 1)


@pytest.mark.parts
@pytest.mark.parametrize("value", ["soon", "-3", "Mon, 99 Foo", ""])
def test_a_retry_after_that_makes_no_sense(patient, proxy, clock, value):
    proxy.rule = times(1, Answer(503, {"Retry-After": value}))
    assert patient.tags("ctr") == []
    assert 0 < clock.elapsed < 1


@pytest.mark.parts
def test_a_connection_that_is_reset(patient, proxy):
    manifest = push(patient, "ctr", b"x")
    proxy.rule = times(2, Answer(200, {"Content-Length": "500"}, b"not all of it", break_after=3))
    assert patient.read_manifest("ctr", manifest.digest) == manifest


@pytest.mark.parts
def test_a_registry_that_is_silent(prefix, clock):
    with Server(rule=lambda seen: Answer(200, {"Content-Length": "10"}, b"")) as server:
        hub = RegistryHub(f"oci://{server.host}/{prefix}", RegistrySettings(timeout_s=0.05), clock=clock)
        with pytest.raises(Unavailable, match="TimeoutError"):
            hub.tags("ctr")
        assert len(server.seen) == _registry_http.ATTEMPTS


@pytest.mark.parts
def test_a_chunk_is_never_repeated_blindly(patient, proxy):
    proxy.rule = lambda seen: Answer(503) if seen.method == "PATCH" else None
    data = b"x" * 9_000_000
    with pytest.raises(Unavailable):
        patient.write_blob("ctr", Descriptor.of(data, "x"), lambda start: iter([data]), lambda n: None)
    between = [seen.method for seen in proxy.seen]
    assert all(b != "PATCH" for a, b in pairwise(between) if a == "PATCH")


REFUSALS = [
    (400, "", Rejected),
    (400, "DIGEST_INVALID", IntegrityError),
    (400, "SIZE_INVALID", IntegrityError),
    (400, "MANIFEST_BLOB_UNKNOWN", NotFound),
    (404, "MANIFEST_BLOB_UNKNOWN", NotFound),
    (400, "NAME_INVALID", InputError),
    (400, "MANIFEST_INVALID", Rejected),
    (401, "UNAUTHORIZED", Rejected),
    (403, "DENIED", Rejected),
    (404, "NAME_UNKNOWN", NotFound),
    (405, "UNSUPPORTED", Rejected),
    (409, "", Conflict),
    (412, "", Conflict),
    (413, "", InputError),
    (418, "", Rejected),
    (429, "TOOMANYREQUESTS", Unavailable),
    (500, "UNKNOWN", Unavailable),
    (501, "", Rejected),
    (503, "DIGEST_INVALID", Unavailable),
    (507, "", StorageError),
    (599, "", Unavailable),
]


@pytest.mark.parts
@pytest.mark.parametrize(("status", "code", "kind"), REFUSALS)
def test_what_each_refusal_becomes(patient, proxy, status, code, kind):
    body = b'{"errors": [{"code": "%s", "message": "because \\u001b[31m"}]}' % code.encode()
    proxy.rule = lambda seen: Answer(status, {}, body)
    with pytest.raises(kind) as caught:
        patient._session.call(
            "PUT", patient._session.url("x"), what="trying", scope="s", accept=(200,), data=b"", repeat=True
        )
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code, caught.value.hub) == (status, code, proxy.host)
    assert str(caught.value).startswith(f"trying at {proxy.host}: {status}")
    assert "because ?[31m" in str(caught.value)


@pytest.mark.parts
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"errors": []}', b'{"errors": [3]}', b"\xff" * 200_000])
def test_a_refusal_in_another_form(patient, proxy, body):
    proxy.rule = lambda seen: Answer(403, {}, body)
    with pytest.raises(Rejected, match="403"):
        patient.tags("ctr")


@pytest.mark.parts
@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"tags": 3}', b'{"tags": [3]}'])
def test_an_answer_that_is_none(patient, proxy, body):
    proxy.rule = lambda seen: Answer(200, {}, body)
    with pytest.raises(Unavailable):
        patient.tags("ctr")


@pytest.mark.parts
def test_a_redirect_to_another_host_gets_no_credentials(patient, proxy, registry_host):
    data = b"y" * 3_000_000
    push(patient, "ctr", data)
    blob = Descriptor.of(data, "x")
    proxy.rule = lambda seen: None if seen.headers.get("Authorization") else Answer(401, {"WWW-Authenticate": "Basic"})
    patient.has_blob("ctr", blob)
    with Server(registry_host) as store:
        proxy.rule = lambda seen: Answer(307, {"Location": f"http://{store.host}{seen.path}?signed=yes"})
        proxy.seen.clear()
        assert b"".join(patient.read_blob("ctr", blob, 1_000_000)) == data[1_000_000:]
        assert patient.has_blob("ctr", blob)
        assert all("Authorization" in seen.headers for seen in proxy.seen)
        assert [("Authorization" in seen.headers, seen.headers.get("Range")) for seen in store.seen] == [
            (False, "bytes=1000000-"),
            (False, None),
        ]


@pytest.mark.parts
def test_a_redirect_on_the_same_host_keeps_them(patient, proxy):
    proxy.rule = lambda seen: (
        Answer(401, {"WWW-Authenticate": "Basic"})
        if "Authorization" not in seen.headers
        else Answer(302, {"Location": "/v2/moved/"})
        if "moved" not in seen.path
        else Answer(200, {}, b'{"tags": []}')
    )
    assert patient.tags("ctr") == []
    assert "Authorization" in proxy.seen[-1].headers


@pytest.mark.parts
def test_redirects_that_do_not_end(patient, proxy):
    proxy.rule = lambda seen: Answer(302, {"Location": seen.path})
    with pytest.raises(Unavailable, match="redirected more than"):
        patient.tags("ctr")


@pytest.mark.parts
def test_netrc_is_left_alone(patient, proxy, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("default login eve password evil\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    patient.tags("ctr")
    assert all("Authorization" not in seen.headers for seen in proxy.seen)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A registry behind TLS, and its certificate."""
    root = tmp_path_factory.mktemp("tls")
    _, cert, key = certificate()
    (root / "cert.pem").write_bytes(cert)
    (root / "key.pem").write_bytes(key)
    files = {"certificate": str(root / "cert.pem"), "key": str(root / "key.pem")}
    with registry(root, http={"tls": files}) as host:
        yield host, root / "cert.pem"


@pytest.mark.parts
def test_tls(tls, monkeypatch, clock):
    host, cert = tls
    monkeypatch.setattr(_registry_http, "is_loopback", lambda host: False)
    hub = RegistryHub(f"oci://{host}/x", RegistrySettings(ca_file=cert))
    manifest = push(hub, "ctr", b"x")
    assert hub.read_manifest("ctr", manifest.digest) == manifest
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", ssl.get_default_verify_paths().openssl_cafile)
    assert hub.read_manifest("ctr", manifest.digest) == manifest  # what we were given wins
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(Rejected, match="TLS failed") as caught:
        RegistryHub(f"oci://{host}/x", clock=clock).tags("ctr")
    assert "ca_file" in caught.value.hint
    assert clock.elapsed == 0


@pytest.mark.parts
def test_tls_where_there_is_none(registry_host, monkeypatch):
    monkeypatch.setattr(_registry_http, "is_loopback", lambda host: False)
    with pytest.raises(Rejected, match=r"(?s)TLS failed.*\?insecure"):
        RegistryHub(f"oci://{registry_host}/x").tags("ctr")


@pytest.mark.parts
def test_insecure_speaks_http(registry_host, monkeypatch):
    monkeypatch.setattr(_registry_http, "is_loopback", lambda host: False)
    assert RegistryHub(f"oci://{registry_host}/x?insecure").tags("ctr") == []
    assert RegistryHub(f"oci://{registry_host}/x", RegistrySettings(insecure=True)).tags("ctr") == []


@pytest.mark.parts
@pytest.mark.parametrize("where", ["Location", "realm"])
def test_from_https_to_http_goes_nothing(tls, where, monkeypatch):
    host, cert = tls
    monkeypatch.setattr(_registry_http, "is_loopback", lambda host: False)
    hub = RegistryHub(f"oci://{host}/x", RegistrySettings("u", "hush", ca_file=cert))
    with Server() as plain:
        if where == "realm":
            answer = Answer(401, {"WWW-Authenticate": f'Bearer realm="http://{plain.host}/t"'})
        else:
            answer = Answer(307, {"Location": f"http://{plain.host}/"})
        send = hub._session._session.send

        def meddle(request, **more):
            response = send(request, **more)
            response.status_code = answer.status
            response.headers.update(answer.headers)
            return response

        monkeypatch.setattr(hub._session._session, "send", meddle)
        with pytest.raises(Rejected, match="unencrypted" if where == "realm" else "redirected from https to http"):
            hub.tags("ctr")
        assert plain.seen == []


@pytest.mark.rules
@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("x.localhost:5", True),
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("[::1]:5000", True),
        ("10.0.0.1:5000", False),
        ("registry.example:5000", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
    ],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected
    assert RegistryHub(f"oci://{host}/x")._session.url("").startswith("http://" if expected else "https://")


@pytest.mark.rules
@pytest.mark.parametrize(
    ("url", "base", "repository"),
    [
        ("oci://r.example/team/models", "https://r.example/v2/", "team/models/ctr"),
        ("oci://r.example:5000", "https://r.example:5000/v2/", "ctr"),
        ("oci://r.example/", "https://r.example/v2/", "ctr"),
        ("oci://r.example/a/?insecure", "http://r.example/v2/", "a/ctr"),
        ("oci://[::1]:5000/a", "http://[::1]:5000/v2/", "a/ctr"),
    ],
)
def test_addresses(url, base, repository):
    hub = RegistryHub(url)
    assert hub._session.url("") == base
    assert hub._repository("ctr").path == repository


@pytest.mark.rules
@pytest.mark.parametrize(
    "url",
    [
        "http://r.example/x",
        "oci:///x",
        "oci://r.example/UPPER",
        "oci://r.example/a//b",
        "oci://r.example/a?what",
        "oci://r.example/a#b",
        "oci://r.example:port/a",
        "oci://r.example:99999/a",
        "oci://user:hush@r.example/a",
        "r.example/a",
    ],
)
def test_not_addresses(url):
    with pytest.raises(ConfigError, match="oci://host") as caught:
        RegistryHub(url)
    assert "hush" not in str(caught.value)


@pytest.mark.parts
@pytest.mark.parametrize("name", ["", "UPPER", "a/../b", "a b", "x" * 201])
def test_names_registries_do_not_take(hub, name):
    with pytest.raises(InputError, match="not a bundle name"):
        hub.tags(name)


@pytest.mark.parts
def test_importing_the_protocol_does_not_bring_requests():
    code = "import sys, cloudedge.hub.core._protocol, cloudedge.hub.core._tags; sys.exit('requests' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
