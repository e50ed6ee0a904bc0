"""Every way a server or a network says no: which error it becomes, and what is sent again."""

import socket
import ssl
import threading

import pytest
import yaml

from cloudedge import errors
from cloudedge.kube import Cluster, Kind
from cloudedge.kube.api._session import ATTEMPTS, LONGEST_WAIT_S
from tests.kube.fault_proxy import hang, reset, says, status

pytestmark = pytest.mark.parts

VERSION = {"gitVersion": "v1.29.3", "major": "1", "minor": "29+"}
RESOURCES = {"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]}
OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
FOUND = OBJECT | {"metadata": {"name": "a", "namespace": "default", "uid": "1", "resourceVersion": "1"}}

REFUSALS = {
    "bad request": (status(400, "BadRequest"), errors.InputError, False),
    "not logged in": (status(401, "Unauthorized"), errors.Rejected, False),
    "not allowed": (status(403, "Forbidden"), errors.Rejected, False),
    "namespace going": (
        status(403, "Forbidden", causes=[{"reason": "NamespaceTerminating"}]),
        errors.Conflict,
        False,
    ),
    "exists": (status(409, "AlreadyExists"), errors.Conflict, False),
    "changed meanwhile": (status(409, "Conflict"), errors.Conflict, False),
    "somebody's field": (
        status(409, "Conflict", causes=[{"reason": "FieldManagerConflict", "field": ".data.x"}]),
        errors.Conflict,
        False,
    ),
    "expired": (status(410, "Expired"), errors.Unavailable, False),
    "too large": (status(413), errors.InputError, False),
    "wrong patch": (status(415, "UnsupportedMediaType"), errors.InputError, False),
    "invalid": (status(422, "Invalid", causes=[{"field": "spec.x", "reason": "Required"}]), errors.InputError, False),
    "busy": (status(429, "TooManyRequests"), errors.Overloaded, True),
    "failed": (status(500, "InternalError"), errors.Unavailable, True),
    "unknown field before 1.21": (
        status(500, "", "failed to create typed patch object: .spec.x: field not declared in schema"),
        errors.InputError,
        False,
    ),
    "bad gateway": (status(502), errors.Unavailable, True),
    "away": (status(503, "ServiceUnavailable"), errors.Unavailable, True),
    "timed out there": (status(504, "Timeout"), errors.Unavailable, True),
    "unheard of": (status(599), errors.Unavailable, False),
    "teapot": (status(418), errors.Rejected, False),
    "reset": (reset, errors.Unavailable, True),
}


def warm(client, faulty, version=VERSION):
    """Have version and kinds known, so that what follows is the request in question alone."""
    faulty.choose = lambda _, path: {"/version": says(version), "/api/v1": says(RESOURCES)}.get(path)
    client.capabilities()
    client.kind_of(OBJECT)
    faulty.seen.clear()


@pytest.mark.parametrize("name", REFUSALS)
def test_a_read_is_sent_again_where_that_may_help(name, client, faulty, clock):
    action, kind, passes = REFUSALS[name]
    faulty.otherwise = action
    with pytest.raises(errors.CloudEdgeError) as caught:
        client.get(Kind.POD, "a")
    assert type(caught.value) is kind
    assert "reading Pod default/a" in caught.value.message
    assert len(faulty.seen) == (ATTEMPTS if passes else 1)
    assert (clock.elapsed > 0) == passes
    assert clock.elapsed < ATTEMPTS * LONGEST_WAIT_S
    assert "a-secret-token" not in str(caught.value)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_create_is_sent_again_only_if_it_certainly_did_nothing(name, client, faulty):
    action, kind, _ = REFUSALS[name]
    warm(client, faulty)
    faulty.otherwise = action
    with pytest.raises(errors.CloudEdgeError) as caught:
        client.create(OBJECT)
    assert type(caught.value) is kind
    assert len(faulty.seen) == (ATTEMPTS if name == "busy" else 1)


@pytest.mark.parametrize("name", ["busy", "failed", "bad gateway", "away", "timed out there", "reset"])
def test_an_apply_gets_through_once_it_passes(name, client, faulty):
    warm(client, faulty)
    faulty.script = [REFUSALS[name][0], REFUSALS[name][0], says(FOUND)]
    assert client.apply(OBJECT) == FOUND
    assert [method for method, _ in faulty.seen] == ["PATCH"] * 3


OLD = {"gitVersion": "v1.24.0", "major": "1", "minor": "24"}


def test_servers_that_check_themselves_are_left_to_it(client, faulty):
    warm(client, faulty)
    faulty.otherwise = status(
        400, "BadRequest", 'strict decoding error: unknown field "spec.cleanPolicy", unknown field "spec.x"'
    )
    with pytest.raises(errors.InputError) as caught:
        client.apply(OBJECT)
    assert caught.value.fields == ["spec.cleanPolicy", "spec.x"]
    assert len(faulty.seen) == 1
    assert "fieldValidation=Strict" in faulty.seen[0][1]
    assert "dryRun" not in faulty.seen[0][1]


def test_a_webhook_that_cannot_pretend(client, faulty):
    warm(client, faulty, OLD)
    refused = status(400, "BadRequest", 'admission webhook "a.b" does not support dry run')
    faulty.script = [refused, says(FOUND)]
    assert client.apply(OBJECT) == FOUND
    faulty.script = [refused, says(FOUND)]
    with pytest.raises(errors.InputError, match="the rest is written") as caught:
        client.apply(OBJECT | {"data": {"x": "1"}})
    assert caught.value.fields == ["data"]
    faulty.script = [refused]
    with pytest.raises(errors.InputError, match="dry run"):
        client.apply(OBJECT, dry_run=True)


def test_what_was_invalid_is_named(client, faulty):
    faulty.otherwise = REFUSALS["invalid"][0]
    with pytest.raises(errors.InputError) as caught:
        client.get(Kind.POD, "a")
    assert caught.value.fields == ["spec.x"]


def test_a_server_that_asks_for_time_gets_it(client, faulty, clock):
    faulty.script = [status(429, headers={"Retry-After": "7"}), says(FOUND)]
    assert client.get(Kind.CONFIG_MAP, "a") == FOUND
    assert clock.elapsed >= 7


def test_a_server_that_asks_for_too_much_time_gets_an_error(client, faulty, clock):
    faulty.otherwise = status(429, headers={"Retry-After": "3600"})
    with pytest.raises(errors.Overloaded) as caught:
        client.get(Kind.POD, "a")
    assert caught.value.retry_after_s == 3600
    assert (len(faulty.seen), clock.elapsed) == (1, 0)


def test_a_server_that_says_nothing_is_not_waited_for(client, faulty):
    faulty.script = [hang, says(FOUND)]
    assert client.get(Kind.CONFIG_MAP, "a") == FOUND
    warm(client, faulty)
    faulty.otherwise = hang
    with pytest.raises(errors.Unavailable, match="no answer in time"):
        client.create(OBJECT)
    assert len(faulty.seen) == 1


def test_nobody_there_is_tried_even_by_a_create(tmp_path, faulty, clock):
    config = faulty.kubeconfig(tmp_path / "config")
    with Cluster.connect(kubeconfig=config, clock=clock) as client:
        warm(client, faulty)
        faulty.shutdown()
        faulty.server_close()
        faulty.cut()
        client._session._pool.clear()
        with pytest.raises(errors.Unavailable, match="refuses the connection"):
            client.create(OBJECT)
        assert clock.elapsed > 0


def test_something_else_than_an_api_server(client, faulty):
    faulty.otherwise = lambda handler: handler.answer(200, b"<html>welcome", {})
    with pytest.raises(errors.Unavailable, match="other than JSON"):
        client.get(Kind.POD, "a")


def test_a_proxys_refusal_is_not_in_the_servers_form(client, faulty):
    faulty.otherwise = lambda handler: handler.answer(403, b"<html>\x1b[31mblocked", {})
    with pytest.raises(errors.Rejected) as caught:
        client.get(Kind.POD, "a")
    assert "\x1b" not in str(caught.value)


def test_a_host_that_does_not_exist(tmp_path, faulty, clock):
    path = faulty.kubeconfig(tmp_path / "config")
    path.write_text(path.read_text().replace("127.0.0.1", "nobody.invalid"))
    with (
        Cluster.connect(kubeconfig=path, clock=clock) as client,
        pytest.raises(errors.Unavailable, match="does not exist"),
    ):
        client.get(Kind.POD, "a")


def test_a_certificate_that_nobody_vouches_for(tmp_path, faulty, clock):
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - only here

    certificate = _certificate(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            try:
                with context.wrap_socket(listener.accept()[0], server_side=True):
                    pass
            except OSError:
                pass

        threading.Thread(target=serve, daemon=True).start()
        path = faulty.kubeconfig(tmp_path / "config")
        config = yaml.safe_load(path.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{listener.getsockname()[1]}"
        path.write_text(yaml.safe_dump(config))
        with Cluster.connect(kubeconfig=path, clock=clock) as client, pytest.raises(errors.Rejected, match="TLS"):
            client.get(Kind.POD, "a")
        assert clock.elapsed == 0


def _certificate(folder, key):
    from datetime import datetime, timedelta, timezone  # noqa: PLC0415

    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(timezone.utc)
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1)).sign(
        key, hashes.SHA256()
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
