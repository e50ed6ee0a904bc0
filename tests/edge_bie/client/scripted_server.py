"""A server that answers from a script, for what no control plane does on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: Mapping[str, str]
    body: object

    @property
    def query(self):
        return parse_qsl(self.path.partition("?")[2], keep_blank_values=True)


@dataclass(frozen=True)
class Answered:
    status: int = 200
    body: bytes = b"{}"
    headers: tuple = ()
    hang_up: bool = False


def json_answer(value, status=200):
    return Answered(status, json.dumps(value).encode())


def failing(status, code="", message="no"):
    return json_answer({"code": code, "message": f"坏\n{message}", "requestId": ""}, status)


HANG_UP = Answered(hang_up=True)


class Scripted:
    """Gives each request the next answer; a callable answer is given the request. The last one is given for ever."""

    def __init__(self, answers):
        self._answers = list(answers)
        self.requests = []

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                seen = Seen(self.command, self.path, dict(self.headers), body)
                outer.requests.append(seen)
                answer = outer._answers[0] if len(outer._answers) == 1 else outer._answers.pop(0)
                answer = answer(seen) if callable(answer) else answer
                if answer.hang_up:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            do_GET = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815 - the library's names

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
