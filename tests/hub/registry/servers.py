"""Real registries on loopback, and a proxy that counts, delays and lies between us and them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import NameOID

from cloudedge.hub.core._oci import Descriptor, Manifest

PROGRAM = shutil.which("docker-registry", path=f"{os.environ.get('PATH', '')}:/usr/bin")
HERE = Path(__file__).parent

USER, PASSWORD = "ada", "open sesame"
HTPASSWD = "ada:$2b$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy\n"  # bcrypt of the above


def tool(name: str) -> str:
    """Find an outside tool on PATH or in $CLOUDEDGE_TEST_TOOLS, or skip the test."""
    places = [os.environ.get("CLOUDEDGE_TEST_TOOLS", ""), os.environ.get("PATH", "")]
    found = shutil.which(name, path=os.pathsep.join(filter(None, places)))
    if found is None:
        pytest.skip(f"{name} is neither on PATH nor in $CLOUDEDGE_TEST_TOOLS (make peers)")
    return found


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


@contextmanager
def registry(root: Path, *, delete: bool = True, address: str = "127.0.0.1", **more) -> Iterator[str]:
    """Run docker-registry with its data in `root`, or skip the test without one; yields host:port."""
    if PROGRAM is None:
        pytest.skip("docker-registry is not installed (make peers)")
    root.mkdir(parents=True, exist_ok=True)
    host = f"{address}:{free_port(address)}"
    http = {"addr": host, "secret": "for tests", **more.pop("http", {})}
    config = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(root / "data")},
            "delete": {"enabled": delete},
            "maintenance": {"uploadpurging": {"enabled": False}},
        },
        "http": http,
        **more,
    }
    (root / "config.yml").write_text(yaml.safe_dump(config))
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "serve", str(root / "config.yml")], stdout=log, stderr=log, env=environment
        )
        try:
            _wait_for(host, process, root / "log")
            yield host
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _wait_for(host: str, process: subprocess.Popen, log: Path) -> None:
    address, port = host.split(":")
    for _ in range(500):
        if process.poll() is not None:
            raise RuntimeError(f"docker-registry ended: {log.read_text()[-2000:]}")
        try:
            socket.create_connection((address, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"docker-registry does not listen: {log.read_text()[-2000:]}")


@dataclass
class Seen:
    """One request as a server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    received: int
    """Bytes of body that came."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    break_after: int | None = None
    """Close the connection after so many bytes of the body."""


Rule = Callable[[Seen], Answer | None]


class Server:
    """A loopback server that answers by a rule, and what the rule leaves by passing it on to a registry."""

    def __init__(self, upstream: str | None = None, rule: Rule | None = None) -> None:
        self.upstream, self.rule = upstream, rule
        self.after: Callable[[Seen, Answer], Answer] | None = None
        self.seen: list[Seen] = []
        lab = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_any(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                seen = Seen(self.command, self.path, dict(self.headers), body, len(body))
                lab.seen.append(seen)
                if len(body) < length:
                    self.close_connection = True
                    return
                answer = lab.answer(seen)
                self.send_response(answer.status)
                headers = {k.lower(): v for k, v in answer.headers.items()}
                headers.setdefault("content-length", str(len(answer.body)))
                for key, value in headers.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body[: answer.break_after])
                if answer.break_after is not None:
                    self.close_connection = True

            do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_any  # noqa: N815

            def log_message(self, *args) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *args) -> None:
                pass  # clients that go away in the middle are what half of these tests are about

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.host = f"127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})

    def answer(self, seen: Seen) -> Answer:
        answer = self.rule(seen) if self.rule else None
        if answer is None:
            answer = self.pass_on(seen) if self.upstream else Answer(404)
        return self.after(seen, answer) if self.after else answer

    def pass_on(self, seen: Seen) -> Answer:
        """Ask the registry; it sees our address as its own, so its Locations lead back through us."""
        connection = HTTPConnection(self.upstream, timeout=30)
        try:
            connection.request(seen.method, seen.path, body=seen.body or None, headers=seen.headers)
            reply = connection.getresponse()
            body = reply.read()
            headers = {k.lower(): v for k, v in reply.getheaders() if k.lower() != "transfer-encoding"}
            return Answer(reply.status, headers, body)
        finally:
            connection.close()

    def sent(self, method: str) -> int:
        """Return how many body bytes came with a method."""
        return sum(seen.received for seen in self.seen if seen.method == method)

    def count(self, *methods: str) -> int:
        return sum(seen.method in methods for seen in self.seen)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def times(n: int, answer: Answer, when: Callable[[Seen], bool] = lambda seen: True) -> Rule:
    """Answer so the first `n` times."""
    left = [n]

    def rule(seen: Seen) -> Answer | None:
        if left[0] and when(seen):
            left[0] -= 1
            return answer
        return None

    return rule


def certificate() -> tuple[ec.EllipticCurvePrivateKey, bytes, bytes]:
    """Return a key, its self-signed certificate for 127.0.0.1 and the key, both as PEM."""
    import ipaddress  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab")])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key, made.public_bytes(serialization.Encoding.PEM), pem


class TokenServer(Server):
    """Signs the tokens docker-registry accepts, for one user."""

    SERVICE, ISSUER = "lab registry", "lab issuer"

    def __init__(self) -> None:
        super().__init__(rule=self._issue)
        self._key, self.bundle, _ = certificate()
        self.expires_in = 300

    def _issue(self, seen: Seen) -> Answer:
        given = seen.headers.get("Authorization", "")
        known = given == "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if given and not known:
            return Answer(401, {}, b'{"errors":[{"code":"UNAUTHORIZED","message":"who?"}]}')
        query = parse_qs(urlsplit(seen.path).query)
        assert query["service"] == [self.SERVICE]
        access = []
        for scope in query.get("scope", []):
            kind, name, actions = scope.split(":")
            # Strangers may read.
            granted = [a for a in actions.split(",") if known or a == "pull"]
            access.append({"type": kind, "name": name, "actions": granted})
        return Answer(200, {}, json.dumps({"token": self.token(access), "expires_in": self.expires_in}).encode())

    def token(self, access: list) -> str:
        now = int(time.time())
        der = x509.load_pem_x509_certificate(self.bundle).public_bytes(serialization.Encoding.DER)
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(der).decode()]}
        claims = {
            "iss": self.ISSUER,
            "sub": USER,
            "aud": self.SERVICE,
            "exp": now + self.expires_in,
            "nbf": now - 60,
            "iat": now,
            "jti": os.urandom(8).hex(),
            "access": access,
        }
        signed = b".".join(_b64(json.dumps(part).encode()) for part in (header, claims))
        r, s = decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return (signed + b"." + _b64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))).decode()


def _b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def reader(data: bytes, size: int = 1024 * 1024):
    """Return a Reader over bytes at hand."""

    def read(start: int) -> Iterator[bytes]:
        for at in range(start, len(data), size):
            yield data[at : at + size]

    return read


def push(hub, name: str, *contents: bytes, note: str = "") -> Manifest:
    """Push an artifact with these layers (and an empty config) and return its manifest."""
    config = b'{"note": "%s"}' % note.encode()
    layers = [Descriptor.of(data, "application/vnd.cncf.model.weight.v1.raw") for data in contents]
    blobs = [Descriptor.of(config, "application/vnd.cncf.model.config.v1+json"), *layers]
    for blob, data in zip(blobs, [config, *contents], strict=True):
        hub.write_blob(name, blob, reader(data), lambda n: None)
    manifest = Manifest.build(
        artifact_type="application/vnd.cncf.model.manifest.v1+json",
        config=blobs[0],
        layers=layers,
        annotations={"org.opencontainers.image.title": name},
    )
    hub.write_manifest(name, manifest)
    return manifest


AT = "2026-01-0{}T00:00:00Z".format


def move(hub, tag, manifest, n=1, **more):
    target = manifest.descriptor if manifest else None
    return hub.move_tag("ctr", tag, target, by=f"user {n}", at=AT(n), **more)


def pointer(hub, tag):
    """Return where the registry's own tag points, as any other tool sees it."""
    found = hub._repository("ctr").head_manifest(tag)
    return found and found.digest


def foreign_push(hub, tag, manifest):
    hub._repository("ctr").put_manifest(tag, manifest)
