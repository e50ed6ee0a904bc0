"""A loopback stand-in for BOS: the object calls that are used, over a directory, with failures on demand.

It checks the signature of every request with an implementation of its own (`authorization`), checks
Content-MD5, and keeps to what clients have to cope with: whole-second times, listings in pages, ETags that
are no MD5 after a multipart upload. Told to, it answers 503, drops connections, loses answers or sends half.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote

if TYPE_CHECKING:
    from pathlib import Path

_DEFAULT_SIGNED = {"host", "content-md5", "content-length", "content-type"}


def authorization(keys, method, path, query, headers, *, signed=(), at, expires_s=1800):
    """Sign a request the bce-auth-v1 way. `query` is pairs, `headers` a mapping, `signed` header names."""
    access_key, secret_key = keys

    def enc(text, safe=""):
        return quote(text, safe=safe + "-_.~")

    def is_signed(name):
        return name in signed if signed else name in _DEFAULT_SIGNED or name.startswith("x-bce-")

    prefix = f"bce-auth-v1/{access_key}/{at}/{expires_s}"
    signing_key = hmac.new(secret_key.encode(), prefix.encode(), hashlib.sha256).hexdigest()
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    request = "\n".join(
        [
            method,
            enc(path, "/"),
            "&".join(sorted(f"{enc(k)}={enc(v)}" for k, v in query if k.lower() != "authorization")),
            "\n".join(sorted(f"{enc(k)}:{enc(v)}" for k, v in lower.items() if v and is_signed(k))),
        ]
    )
    signature = hmac.new(signing_key.encode(), request.encode(), hashlib.sha256).hexdigest()
    return f"{prefix}/{';'.join(signed)}/{signature}"


@dataclass
class Stored:
    path: Path
    size: int
    etag: str
    written: float


@dataclass
class Upload:
    key: str
    initiated: float
    parts: dict[int, Stored] = field(default_factory=dict)


@dataclass
class BosDouble:
    root: Path
    keys: tuple[str, str] = ("AKEXAMPLE", "SKEXAMPLE")
    bucket: str = "hub"
    page_size: int = 1000
    lock: threading.Lock = field(default_factory=threading.Lock)
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    received: Counter = field(default_factory=Counter)
    """Bytes of bodies that arrived whole, by ``put`` and ``part``."""
    refused: list[str] = field(default_factory=list)
    """Codes of the errors that were answered."""
    faults: list[tuple[str, str]] = field(default_factory=list)
    """What to do to the next requests that match: (method or ``*``, what)."""
    endpoint: str = ""

    def fail(self, what, times=1, method="*"):
        """Answer 503 (`busy`) or not at all (`drop`), do it and not say so (`lose`), send half (`cut`)."""
        with self.lock:
            self.faults += [(method, what)] * times

    def fault(self, method):
        with self.lock:
            for fault in self.faults:
                if fault[0] in ("*", method):
                    self.faults.remove(fault)
                    return fault[1]
        return None

    @contextmanager
    def running(self):
        handler = type("Handler", (_Handler,), {"double": self})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            self.endpoint = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


class _RefusedError(Exception):
    def __init__(self, status, code):
        super().__init__(code)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    double: BosDouble

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        with suppress(ConnectionError):
            super().handle_one_request()

    def _serve(self):
        self.close_connection = True
        path, _, query = self.path.partition("?")
        self.query = parse_qsl(query, keep_blank_values=True)
        self.args = dict(self.query)
        self.fault = self.double.fault(self.command)
        if self.fault == "drop":
            return
        spooled = self._spool()
        if spooled is None:
            return
        self.body, self.body_md5 = spooled
        try:
            self._check(unquote(path))
            with self.double.lock:
                status, headers, content = self._dispatch()
        except _RefusedError as refused:
            self.double.refused.append(refused.code)
            about = {"code": refused.code, "message": refused.code, "requestId": "1"}
            status, headers, content = refused.status, {}, json.dumps(about).encode()
        finally:
            self.body.unlink(missing_ok=True)
        content = content if isinstance(content, tuple) else (io.BytesIO(content), len(content))
        with content[0] as file:
            if self.fault != "lose":
                self._answer(status, headers, file, content[1])

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - http.server's names

    def _check(self, path):
        if self.fault == "busy":
            raise _RefusedError(503, "ServiceUnavailable")
        self._authenticate(path)
        bucket, _, self.key = path.lstrip("/").partition("/")
        if bucket != self.double.bucket:
            raise _RefusedError(404, "NoSuchBucket")
        declared = self.headers.get("Content-MD5")
        if declared and base64.b64decode(declared) != self.body_md5:
            raise _RefusedError(400, "BadDigest")

    def _spool(self):
        """Receive the body into a file, never into memory: memory is what some tests measure."""
        length, md5 = int(self.headers.get("Content-Length") or 0), hashlib.md5()
        path = self.double.root / f"body-{uuid.uuid4().hex}"
        with path.open("wb") as file:
            while length:
                chunk = self.rfile.read(min(length, 1 << 16))
                if not chunk:
                    path.unlink()
                    return None
                file.write(chunk)
                md5.update(chunk)
                length -= len(chunk)
        return path, md5.digest()

    def _authenticate(self, path):
        given = self.headers.get("Authorization", "")
        parts = given.split("/")
        if len(parts) != 6 or parts[0] != "bce-auth-v1":
            raise _RefusedError(403, "AccessDenied")
        _, access_key, at, expires_s, signed, _ = parts
        if access_key != self.double.keys[0]:
            raise _RefusedError(403, "InvalidAccessKeyId")
        age_s = time.time() - datetime.strptime(at, "%Y-%m-%dT%H:%M:%S%z").timestamp()
        if not -60 < age_s < int(expires_s):
            raise _RefusedError(403, "RequestExpired")
        wanted = authorization(
            self.double.keys,
            self.command,
            path,
            self.query,
            dict(self.headers),
            signed=tuple(filter(None, signed.split(";"))),
            at=at,
            expires_s=int(expires_s),
        )
        if not hmac.compare_digest(given, wanted):
            raise _RefusedError(403, "SignatureDoesNotMatch")

    def _dispatch(self):
        if not self.key:
            return self._list_uploads() if "uploads" in self.args else self._list()
        call = {
            "HEAD": self._get,
            "GET": self._list_parts if "uploadId" in self.args else self._get,
            "PUT": self._put_part if "uploadId" in self.args else self._put,
            "POST": self._begin if "uploads" in self.args else self._complete,
            "DELETE": self._abort if "uploadId" in self.args else self._delete,
        }[self.command]
        return call()

    def _keep(self, kind):
        size = self.body.stat().st_size
        self.double.received[kind] += size
        kept = self.body.rename(self.double.root / f"{kind}-{uuid.uuid4().hex}")
        return Stored(kept, size, self.body_md5.hex(), time.time())

    def _put(self):
        new = self._keep("put")
        self._replace(new)
        return 200, {"ETag": f'"{new.etag}"'}, b""

    def _replace(self, new):
        old, self.double.objects[self.key] = self.double.objects.get(self.key), new
        if old:
            old.path.unlink()

    def _get(self):
        there = self.double.objects.get(self.key)
        if there is None:
            raise _RefusedError(404, "NoSuchKey")
        headers = {"ETag": f'"{there.etag}"', "Last-Modified": formatdate(there.written, usegmt=True)}
        wanted = self.headers.get("Range")
        if wanted is None:
            return 200, headers, (there.path.open("rb"), there.size)
        first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
        if first >= there.size:
            raise _RefusedError(416, "InvalidRange")
        last = min(last, there.size - 1)
        file = there.path.open("rb")
        file.seek(first)
        return (
            206,
            headers | {"Content-Range": f"bytes {first}-{last}/{there.size}"},
            (file, last - first + 1),
        )

    def _delete(self):
        there = self.double.objects.pop(self.key, None)
        if there is None:
            raise _RefusedError(404, "NoSuchKey")
        there.path.unlink()
        return 204, {}, b""

    def _list(self):
        after, prefix = self.args.get("marker", ""), self.args.get("prefix", "")
        limit = min(int(self.args.get("maxKeys", 1000)), self.double.page_size)
        names = sorted(k for k in self.double.objects if k.startswith(prefix) and k > after)
        contents = [
            {"key": k, "size": o.size, "eTag": o.etag, "lastModified": _iso(o.written)}
            for k, o in ((k, self.double.objects[k]) for k in names[:limit])
        ]
        page = {"contents": contents, "isTruncated": len(names) > limit}
        return (
            200,
            {},
            json.dumps(page | ({"nextMarker": names[limit - 1]} if len(names) > limit else {})).encode(),
        )

    def _list_uploads(self):
        prefix = self.args.get("prefix", "")
        found = sorted((u.key, u.initiated, i) for i, u in self.double.uploads.items() if u.key.startswith(prefix))
        uploads = [{"key": k, "uploadId": i, "initiated": _iso(at)} for k, at, i in found]
        return 200, {}, json.dumps({"uploads": uploads, "isTruncated": False}).encode()

    def _upload(self):
        upload = self.double.uploads.get(self.args["uploadId"])
        if upload is None or upload.key != self.key:
            raise _RefusedError(404, "NoSuchUpload")
        return upload

    def _begin(self):
        upload_id = uuid.uuid4().hex
        self.double.uploads[upload_id] = Upload(self.key, time.time())
        return (
            200,
            {},
            json.dumps({"bucket": self.double.bucket, "key": self.key, "uploadId": upload_id}).encode(),
        )

    def _put_part(self):
        upload = self._upload()
        part = upload.parts[int(self.args["partNumber"])] = self._keep("part")
        return 200, {"ETag": f'"{part.etag}"'}, b""

    def _list_parts(self):
        upload, after = self._upload(), int(self.args.get("partNumberMarker", 0))
        numbers = sorted(n for n in upload.parts if n > after)
        shown = numbers[: self.double.page_size]
        parts = [{"partNumber": n, "eTag": upload.parts[n].etag, "size": upload.parts[n].size} for n in shown]
        more = {"nextPartNumberMarker": shown[-1]} if shown else {}
        return (
            200,
            {},
            json.dumps({"parts": parts, "isTruncated": len(numbers) > len(shown), **more}).encode(),
        )

    def _complete(self):
        upload = self._upload()
        wanted = [(p["partNumber"], p["eTag"]) for p in json.loads(self.body.read_bytes())["parts"]]
        if any(n not in upload.parts or upload.parts[n].etag != etag for n, etag in wanted):
            raise _RefusedError(400, "InvalidPart")
        target = self.double.root / f"whole-{uuid.uuid4().hex}"
        with target.open("wb") as whole:
            for number, _ in wanted:
                with upload.parts[number].path.open("rb") as part:
                    while chunk := part.read(1 << 16):
                        whole.write(chunk)
        etag = "-" + hashlib.md5("".join(etag for _, etag in wanted).encode()).hexdigest()
        self._replace(Stored(target, target.stat().st_size, etag, time.time()))
        self._forget()
        return 200, {}, json.dumps({"key": self.key, "eTag": etag}).encode()

    def _abort(self):
        self._upload()
        self._forget()
        return 204, {}, b""

    def _forget(self):
        for part in self.double.uploads.pop(self.args["uploadId"]).parts.values():
            part.path.unlink(missing_ok=True)

    def _answer(self, status, headers, file, size):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.send_header("Content-Length", str(size))
        self.end_headers()
        left = 0 if self.command == "HEAD" else size // 2 if self.fault == "cut" else size
        while left:
            chunk = file.read(min(left, 1 << 16))
            self.wfile.write(chunk)
            left -= len(chunk)


def _iso(moment):
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
