"""Real HTTP around the codecs, for clients to talk to."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from cloudedge.serving.engine import Call, HttpAnswer, HttpCall
from cloudedge.serving.protocols._general import general_http
from cloudedge.serving.protocols._pipeline import pipeline_http


async def plain(engine, call):
    """`/v1/predict`, as little of it as a client needs."""
    asked = json.loads(call.body)
    feed = {name: np.array(value, np.float32) for name, value in asked["inputs"].items()}
    with engine.hold(call.headers.get("x-cloudedge-tag")) as version:
        answer = await version.predict(Call(feed, asked["outputs"]))
    told = {"outputs": {n: a.tolist() for n, a in answer.outputs.items()}, "pin": answer.pin, "tag": answer.tag}
    return HttpAnswer(200, json.dumps(told).encode())


@contextmanager
def http_server(engine, *, ops=None, answer=None):
    """Serve on a free port; `answer` replaces the codecs. Yields (port, requests seen)."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # or headers and body go in two packets, and the second waits for an acknowledgement

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            call = HttpCall("POST", self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            seen.append((call, self.client_address))
            told = answer(call) if answer else asyncio.run(self.route(call))
            if told is None:
                self.close_connection = True
                return
            self.send_response(told.status)
            for name, value in {"content-type": told.content_type, **told.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(told.body)))
            self.end_headers()
            self.wfile.write(told.body)

        async def route(self, call):
            if call.path == "/v1/predict":
                return await plain(engine, call)
            if call.path.startswith("/GeneralModelService"):
                return await general_http(engine, call)
            return await pipeline_http(engine, call, service="uci", ops=ops)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
