"""A server of files that hangs up in the middle, and remembers every byte it sent."""

from __future__ import annotations

import http.server
import random
import re
import threading


class CuttingServer(http.server.ThreadingHTTPServer):
    """Serves bytes by path; cuts `cuts` answers at random places, `tags` says whether it knows entity tags."""

    daemon_threads = True

    def __init__(self, files, *, cuts=0, seed=0, tags=True, ranges=True, lengths=True):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.cuts, self.tags, self.ranges = dict(files), cuts, tags, ranges
        self.lengths = lengths
        """Whether it says how long a body is; else that comes in chunks."""
        self.rng = random.Random(seed)
        self.sent = {}
        self.cut = 0
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, *_):
        """Say nothing: clients hang up too."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        data = server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        tag = f'"{hash(data) & 0xFFFFFFFF:x}"'
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        server.requests.append((self.path, self.headers.get("Range"), self.headers.get("If-Range")))
        if asked and server.ranges and self.headers.get("If-Range", tag) == tag:
            start = int(asked[1])
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        if server.tags:
            self.send_header("ETag", tag)
        if server.lengths:
            self.send_header("Content-Length", str(len(data) - start))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = len(data)
        with server.lock:
            if server.cut < server.cuts:
                server.cut += 1
                end = start + server.rng.randrange(0, len(data) - start)
        body = data[start:end]
        if not server.lengths:
            body = b"%x\r\n%s" % (len(data) - start, body) + (b"\r\n0\r\n\r\n" if end == len(data) else b"")
        self.wfile.write(body)
        self.wfile.flush()
        with server.lock:
            server.sent.setdefault(self.path, []).append((start, end))
        if end < len(data):
            self.close_connection = True

    def log_message(self, *_):
        pass
