"""The real baetyl-cloud with Debian's MariaDB, both in a temporary folder and on loopback."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests import ROOT

TOOLS = Path(os.environ.get("CLOUDEDGE_TEST_TOOLS", ROOT / ".peers"))
PROGRAM = TOOLS / "baetyl-cloud"
SHARED = TOOLS / "baetyl-cloud.d"
_START_S = 60.0
_TABLES = (Path(__file__).parent / "missing_tables.sql").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Cloud:
    admin_url: str
    sync_url: str
    folder: Path
    namespace: str = "baetyl-cloud"


def missing() -> str:
    """Return which program is not here."""
    if not PROGRAM.exists():
        return "baetyl-cloud (make peers builds it with Go)"
    for program in ("mariadbd", "mariadb-install-db", "mariadb"):
        if not find(program):
            return f"{program} (Debian: mariadb-server)"
    return ""


def find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/bin")


@contextmanager
def real_cloud(folder: Path, *, tls: bool = False) -> Iterator[Cloud]:
    """Run both until the block ends; with TLS nodes show who they are by certificate, as real ones do."""
    if what := missing():
        pytest.skip(f"not here: {what}")
    with _database(folder / "db") as sock:
        _certificate(folder, "ca", authority=True)
        _certificate(folder, "server")
        pair = f', ca: "{folder}/ca.crt", cert: "{folder}/server.crt", key: "{folder}/server.key"' if tls else ""
        admin, sync, init = free_ports(3)
        config = folder / "conf.yml"
        config.write_text(
            f"""
adminServer: {{port: "127.0.0.1:{admin}"}}
initServer: {{port: "127.0.0.1:{init}"}}
httplink: {{port: "127.0.0.1:{sync}"{pair}}}
database: {{type: mysql, url: "root@unix({sock})/baetyl_cloud?charset=utf8&parseTime=true"}}
defaultpki: {{rootCAFile: "{folder}/ca.crt", rootCAKeyFile: "{folder}/ca.key", persistent: database}}
template: {{path: "{SHARED}/templates"}}
logger: {{level: error}}
""",
            encoding="utf-8",
        )
        with (folder / "cloud.log").open("wb") as log:
            process = subprocess.Popen([PROGRAM, "-c", str(config)], cwd=folder, stdout=log, stderr=log)
        try:
            cloud = Cloud(f"http://127.0.0.1:{admin}", f"http{'s' if tls else ''}://127.0.0.1:{sync}", folder)
            asked = (cloud.admin_url,) if tls else (cloud.admin_url, cloud.sync_url)
            _wait(lambda: all(_is_up(url) for url in asked), process, folder / "cloud.log")
            yield cloud
        finally:
            process.kill()
            process.wait()


@contextmanager
def _database(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True)
    # A socket's path has to be short.
    sock = Path(f"/tmp/cloudedge-db-{os.getpid()}-{os.urandom(3).hex()}.sock")
    user = "--user=root" if os.getuid() == 0 else "--skip-name-resolve"
    common = ["--no-defaults", user, f"--datadir={folder}/data", "--innodb-log-file-size=8M"]
    with (folder / "log").open("wb") as log:
        subprocess.run(
            [find("mariadb-install-db"), *common, "--skip-test-db", "--auth-root-authentication-method=normal"],
            check=True, stdout=log, stderr=log, timeout=_START_S,
        )  # fmt: skip
        process = subprocess.Popen(
            [find("mariadbd"), *common, f"--socket={sock}", "--skip-networking", "--default-time-zone=+00:00",
             f"--pid-file={folder}/pid", "--sql-mode=STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION",
             "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        client = [find("mariadb"), "--no-defaults", "-u", "root", f"--socket={sock}"]
        _wait(
            lambda: subprocess.run([*client, "-e", "SELECT 1"], capture_output=True, check=False).returncode == 0,
            process, folder / "log",
        )  # fmt: skip
        sql = (SHARED / "tables.sql").read_text(encoding="utf-8") + _TABLES
        sql += (SHARED / "data.sql").read_text(encoding="utf-8")
        subprocess.run(client, input=sql.encode(), check=True, timeout=_START_S)
        yield sock
    finally:
        process.kill()
        process.wait()
        sock.unlink(missing_ok=True)


def _wait(ready, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"it did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def _is_up(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", headers={"common-name": "a.b"}, timeout=2).ok
    except requests.RequestException:
        return False


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def _certificate(folder: Path, name: str, *, authority: bool = False) -> None:
    """Make a certificate that signs itself; keys have to be in the older of the two formats."""
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
