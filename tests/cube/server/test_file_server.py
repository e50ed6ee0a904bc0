"""Files over HTTP: what is served, what is not, and downloads that break."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from cloudedge.clock import ManualClock, SystemClock
from cloudedge.cube.server import FileServer, Throttle, fetch
from cloudedge.cube.server._file_server import parse_range
from cloudedge.errors import ConfigError, DeadlineExceeded, InputError, IntegrityError, NotFound, Rejected, Unavailable

CONTENT = random.Random(1).randbytes(300_000)
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "served"
    (root / "sub").mkdir(parents=True)
    (root / "part.tar").write_bytes(CONTENT)
    (root / "sub" / "a b%c.tar").write_bytes(b"odd name")
    (root / "empty").write_bytes(b"")
    (root / ".hidden").write_bytes(b"no")
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "in").symlink_to("part.tar")
    os.mkfifo(root / "pipe")
    return root


def soon(seconds: float = 20) -> float:
    return time.monotonic() + seconds


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as peer:
        peer.sendall(request)
        out = b""
        while chunk := peer.recv(65536):
            out += chunk
        return out


@pytest.mark.parts
def test_files_below_the_root_are_served(root):
    with FileServer(root) as files:
        assert requests.get(files.url("part.tar"), timeout=5).content == CONTENT
        assert requests.get(files.url(root / "sub" / "a b%c.tar"), timeout=5).content == b"odd name"
        assert requests.get(files.url("in"), timeout=5).content == CONTENT
        assert requests.get(files.url("empty"), timeout=5).content == b""
        head = requests.head(files.url("part.tar"), timeout=5)
        assert head.headers["Content-Length"] == "300000"
        assert head.content == b""
        again = requests.get(files.url("part.tar"), headers={"If-None-Match": head.headers["ETag"]}, timeout=5)
        assert again.status_code == 304
        assert files.bytes_sent("part.tar") == 300_000


@pytest.mark.parts
@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/sub/../../secret",
        "/%2e%2e/secret",
        "/sub/%2e%2e%2f%2e%2e/secret",
        "//etc/passwd",
        "/etc/passwd",
        "/out",
        "/.hidden",
        "/pipe",
        "/sub",
        "/sub/",
        "/",
        "/part.tar/",
        "/part.tar%00",
        "/absent",
        "/%ff",
        "http://elsewhere/../secret",
        "/" + "a" * 5000,
    ],
)
def test_nothing_else_is_served(root, path):
    with FileServer(root) as files:
        answer = raw(files.port, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 404"), answer
        assert b"secret" not in answer


@pytest.mark.rules
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=10-", (10, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-1000", (0, 100)),
        ("bytes=90-1000", (90, 100)),
        ("bytes=0-1,5-6", None),
        ("lines=1-2", None),
        ("bytes=-", None),
        ("", None),
    ],
)
def test_ranges(header, expected):
    assert parse_range(header, 100) == expected


@pytest.mark.rules
@pytest.mark.parametrize("header", ["bytes=100-", "bytes=5-4", "bytes=-0", "bytes=999999999999999999-"])
def test_ranges_outside_the_file_are_refused(header):
    with pytest.raises(InputError):
        parse_range(header, 100)


@pytest.mark.parts
def test_ranges_over_http(root):
    with FileServer(root) as files:
        url = files.url("part.tar")
        some = requests.get(url, headers={"Range": "bytes=100-199"}, timeout=5)
        assert (some.status_code, some.content) == (206, CONTENT[100:200])
        assert some.headers["Content-Range"] == "bytes 100-199/300000"
        etag = some.headers["ETag"]
        kept = requests.get(url, headers={"Range": "bytes=299999-", "If-Range": etag}, timeout=5)
        assert kept.content == CONTENT[-1:]
        other = requests.get(url, headers={"Range": "bytes=5-", "If-Range": '"another"'}, timeout=5)
        assert (other.status_code, len(other.content)) == (200, 300_000)
        beyond = requests.get(url, headers={"Range": "bytes=300000-"}, timeout=5)
        assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, "bytes */300000")


@pytest.mark.parts
def test_a_token_is_asked_for_and_needed_beyond_loopback(root, tmp_path):
    with pytest.raises(ConfigError, match="without a token"):
        FileServer(root, "0.0.0.0")
    with FileServer(root, token="s3cret") as files:
        url = files.url("part.tar")
        assert requests.get(url, timeout=5).status_code == 401
        assert requests.get(url, auth=("x", "wrong"), timeout=5).status_code == 401
        assert requests.get(url, headers={"Authorization": "Basic %%%"}, timeout=5).status_code == 401
        assert requests.get(url, auth=("x", "s3cret"), timeout=5).status_code == 200
        assert (
            fetch(url, tmp_path / "got", sha256=SHA, size=None, token="s3cret", deadline=soon()).size_bytes == 300_000
        )
        with pytest.raises(Rejected, match="401"):
            fetch(url, tmp_path / "not", sha256=SHA, size=None, deadline=soon())


@pytest.mark.parts
@pytest.mark.skipif(not shutil.which("wget"), reason="wget is not installed")
def test_wget_fetches_and_resumes(root, tmp_path):
    with FileServer(root, token="s3cret") as files:
        (tmp_path / "part.tar").write_bytes(CONTENT[:1000])
        url = files.url("part.tar").replace("http://", "http://cloudedge:s3cret@")
        subprocess.run(["wget", "--quiet", "--no-proxy", "-c", "-P", tmp_path, url], check=True, timeout=30)
        assert (tmp_path / "part.tar").read_bytes() == CONTENT
        assert files.bytes_sent("part.tar") == 299_000


@pytest.mark.parts
def test_clients_that_ask_for_nothing_keep_no_other_from_being_served(root):
    with FileServer(root, threads=2) as files, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", files.port)))
        assert requests.get(files.url("part.tar"), timeout=60).content == CONTENT


@pytest.mark.parts
def test_closing_does_not_wait_for_slow_clients(root):
    files = FileServer(root, threads=1)
    with socket.create_connection(("127.0.0.1", files.port)), socket.create_connection(("127.0.0.1", files.port)):
        time.sleep(0.1)
        begun = time.monotonic()
        files.close()
        assert time.monotonic() - begun < 5


@pytest.mark.rules
def test_a_throttle_spreads_bytes_over_time():
    clock = ManualClock()
    throttle = Throttle(1000, clock)
    for _ in range(5):
        throttle.take(500)
    assert clock.monotonic() == pytest.approx(2.0)
    with pytest.raises(ConfigError):
        Throttle(0)


@pytest.mark.parts
def test_the_server_keeps_to_its_limit(root):
    clock = ManualClock()
    with FileServer(root, limit_bytes_per_s=100_000, clock=clock) as files:
        assert requests.get(files.url("part.tar"), timeout=5).content == CONTENT
    assert 2 < clock.monotonic() <= 3


class Breaking:
    """A server that sends a few bytes of what is asked for and closes; `replaced` changes the content half-way."""

    def __init__(self, content: bytes, *, step: int, etag: str = '"1"', ranges: bool = True, shift: int = 0) -> None:
        self.content, self.step, self.etag, self.ranges = content, step, etag, ranges
        self.shift = shift
        """How far its Content-Range is off."""
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/part.tar"

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                asked = b""
                while b"\r\n\r\n" not in asked:
                    asked += peer.recv(65536)
                text = asked.decode().lower()
                self.requests.append(text)
                begin = int(text.split("range: bytes=")[1].split("-")[0]) if "range: bytes=" in text else 0
                if not self.ranges or ("if-range: " in text and f"if-range: {self.etag}" not in text):
                    begin = 0
                rest = self.content[begin:]
                status = "206 Partial Content" if begin else "200 OK"
                whole = len(self.content)
                span = f"Content-Range: bytes {begin + self.shift}-{whole - 1}/{whole}\r\n" if begin else ""
                head = f"HTTP/1.1 {status}\r\nContent-Length: {len(rest)}\r\n{span}ETag: {self.etag}\r\n\r\n"
                peer.sendall(head.encode())
                peer.sendall(rest[: self.step])

    def __enter__(self) -> Breaking:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


class Quick(SystemClock):
    def sleep(self, seconds: float) -> None:
        pass


@pytest.mark.parts
def test_a_broken_download_goes_on_where_it_stopped(tmp_path):
    with Breaking(CONTENT, step=70_000) as server:
        got = fetch(server.url, tmp_path / "a", sha256=SHA, size=len(CONTENT), deadline=soon(), clock=Quick())
        assert (tmp_path / "a").read_bytes() == CONTENT
        assert got.received_bytes == len(CONTENT)
        assert len(server.requests) == 5
        assert list(tmp_path.iterdir()) == [tmp_path / "a"]


@pytest.mark.parts
def test_bytes_from_elsewhere_than_asked_for_are_refused(tmp_path):
    with Breaking(CONTENT, step=70_000, shift=-10) as server:
        with pytest.raises(Unavailable, match="asked for the bytes from 70000 on and sends 'bytes 69990-"):
            fetch(server.url, tmp_path / "a", sha256=SHA, size=len(CONTENT), deadline=soon(), clock=Quick())
        assert (tmp_path / f".a.{SHA[:16]}.part").read_bytes() == CONTENT[:70_000]
        assert not (tmp_path / "a").exists()


@pytest.mark.parts
def test_another_process_continues_what_one_left(tmp_path, root):
    (tmp_path / f".a.{SHA[:16]}.part").write_bytes(CONTENT[:200_000])
    with FileServer(root) as files:
        got = fetch(files.url("part.tar"), tmp_path / "a", sha256=SHA, size=len(CONTENT), deadline=soon())
        assert got.received_bytes == 100_000
        (tmp_path / f".a.{SHA[:16]}.part").write_bytes(CONTENT)
        assert (
            fetch(files.url("part.tar"), tmp_path / "a", sha256=SHA, size=300_000, deadline=soon()).received_bytes == 0
        )


@pytest.mark.parts
def test_a_damaged_remainder_is_fetched_anew(tmp_path, root):
    (tmp_path / f".a.{SHA[:16]}.part").write_bytes(b"x" * 200_000)
    with FileServer(root) as files:
        got = fetch(files.url("part.tar"), tmp_path / "a", sha256=SHA, size=len(CONTENT), deadline=soon())
    assert got.received_bytes == 400_000
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parts
def test_content_that_changes_half_way_is_begun_again(tmp_path):
    with Breaking(CONTENT, step=200_000) as server:
        server.etag = '"2"'
        server.content = CONTENT[::-1]
        (tmp_path / "a").write_bytes(b"old")

        class Replacing(Quick):
            def sleep(self, seconds: float) -> None:
                server.etag, server.content, server.step = '"3"', CONTENT, 1 << 20

        got = fetch(server.url, tmp_path / "a", sha256=None, size=None, deadline=soon(), clock=Replacing())
    assert got.sha256 == SHA
    assert got.etag == '"3"'


@pytest.mark.parts
def test_what_is_not_what_it_should_be_is_thrown_away(tmp_path, root):
    with FileServer(root) as files:
        with pytest.raises(IntegrityError, match="SHA-256"):
            fetch(files.url("part.tar"), tmp_path / "a", sha256="0" * 64, size=None, deadline=soon())
        with pytest.raises(IntegrityError, match="300000 bytes"):
            fetch(files.url("part.tar"), tmp_path / "a", sha256=SHA, size=10, deadline=soon())
        with pytest.raises(IntegrityError):
            fetch(files.url("part.tar"), tmp_path / "a", sha256=None, size=None, max_bytes=1000, deadline=soon())
        with pytest.raises(NotFound):
            fetch(files.url("absent"), tmp_path / "a", sha256=SHA, size=None, deadline=soon())
    assert [p.name for p in tmp_path.iterdir() if "a" in p.name and p.suffix == ""] == []


@pytest.mark.parts
def test_a_server_that_brings_nothing_is_given_up(tmp_path):
    with Breaking(CONTENT, step=0) as server, pytest.raises(Unavailable, match="6 times without a byte"):
        fetch(server.url, tmp_path / "a", sha256=SHA, size=len(CONTENT), deadline=soon(), clock=Quick())


@pytest.mark.parts
def test_the_deadline_holds_and_keeps_what_came(tmp_path, root):
    clock = ManualClock()
    limit = Throttle(100_000, clock)
    with FileServer(root) as files:
        url = files.url("part.tar")
        with pytest.raises(DeadlineExceeded, match="kept"):
            fetch(url, tmp_path / "a", sha256=SHA, size=300_000, limit=limit, deadline=1, clock=clock)
        kept = (tmp_path / f".a.{SHA[:16]}.part").stat().st_size
        got = fetch(url, tmp_path / "a", sha256=SHA, size=300_000, deadline=soon())
    assert 0 < kept < 300_000
    assert got.received_bytes == 300_000 - kept
