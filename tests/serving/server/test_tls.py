"""The data ports over TLS: every protocol, one certificate."""

import datetime as dt
import ipaddress
import socket
import ssl

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cloudedge.errors import ConfigError, Rejected
from cloudedge.serving import Client, HttpLimits, Server, ServerConfig, Tls
from cloudedge.serving.formats._messages import PIPELINE_SERVICE, PipelineRequest, PipelineResponse
from tests.serving.raw_http import Http

X = {"x": np.array([[1, 2]], np.float32)}


def written(folder, *, password=None):
    """Write a certificate for this machine that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "replica")])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    folder.mkdir(exist_ok=True)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked
    (folder / "key.pem").write_bytes(key.private_bytes(*form))
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return written(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture
def secure(marked, files, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))  # whom clients trust
    config = ServerConfig(
        port=0, grpc_port=0, service="pair", token="data", tls=Tls(*files), limits=HttpLimits(max_body_bytes=100_000)
    )
    with Server(marked, config) as server:
        yield server


@pytest.mark.parts
@pytest.mark.parametrize("way", ["https", "pipeline+https", "general+https"])
def test_our_client_asks_over_tls(secure, models, way):
    path = "/pair" if way.startswith("pipeline") else ""
    with Client(f"{way}://127.0.0.1:{secure.port}{path}", token="data") as client:
        answer = client.predict(X)
        np.testing.assert_array_equal(answer["y"], X["x"])
        assert answer.pin == models.marked[0].pin


@pytest.mark.parts
def test_grpc_over_tls(secure, files):
    trusted = grpc.ssl_channel_credentials(files[0].read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{secure.grpc_port}", trusted) as channel:
        ask = channel.unary_unary(
            f"/{PIPELINE_SERVICE}/inference", PipelineRequest.SerializeToString, PipelineResponse.FromString
        )
        metadata = [("authorization", "Bearer data")]
        assert ask(PipelineRequest(key=["x"], value=["[[1,2]]"]), timeout=20, metadata=metadata).err_no == 0


@pytest.mark.parts
def test_who_does_not_trust_it_or_speaks_in_clear_gets_nothing(secure, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with (
        Client(f"https://127.0.0.1:{secure.port}", token="data", retries=0) as client,
        pytest.raises(Rejected, match="certificate"),
    ):
        client.predict(X)
    with socket.create_connection(("127.0.0.1", secure.port), 20) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in plain.recv(100)


@pytest.mark.parts
def test_a_silent_handshake_and_a_body_too_long_disturb_nobody(secure, files):
    context = ssl.create_default_context(cafile=files[0])
    with socket.create_connection(("127.0.0.1", secure.port), 20), Http(secure.port, tls=context) as http:
        http.send(b"POST /v1/predict HTTP/1.1\r\nAuthorization: Bearer data\r\nContent-Length: 200000\r\n\r\n")
        assert http.reply().status == 413
    with Client(f"https://127.0.0.1:{secure.port}", token="data") as client:
        assert client.predict(X).outputs


@pytest.mark.rules
def test_a_server_with_a_certificate_may_listen_elsewhere(files):
    assert ServerConfig(host="0.0.0.0", tls=Tls(*files)).tls


@pytest.mark.rules
def test_what_is_no_certificate_with_its_key_is_named(files, tmp_path):
    other = written(tmp_path / "other")
    locked = written(tmp_path / "locked", password=b"secret")
    for pair in ((files[0], other[1]), (files[0], files[0]), (tmp_path / "none.pem", files[1]), locked):
        with pytest.raises(ConfigError, match=pair[0].name) as refused:
            Tls(*pair)
        assert "PEM" in refused.value.hint
