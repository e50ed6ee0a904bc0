"""What the control side concludes from a node's server: of servers that answer, refuse, hang, hang up, or load."""

import contextlib
import http.server
import json
import socket
import threading
import time

import pytest

from cloudedge.bundle import ProbeRequest, Probes, Signature, Variable
from cloudedge.edge_bie.client import Node, Report
from cloudedge.edge_bie.fleet._probe import HttpProbe

pytestmark = pytest.mark.parts

PROBES = Probes(requests=[ProbeRequest(feed={"x": [[2.0]]}, expect={"fetch_0": [[4.0, 0.5]]}, tolerance=1e-3)])
SIGNATURE = Signature(
    feed=[Variable(name="x", dtype="float32", shape=(1,))], fetch=[Variable(name="fetch_0", alias="y", shape=(2,))]
)


@contextlib.contextmanager
def serving(answers, address="127.0.0.1", port=0):
    """Serve answers by path, each a status and a body; yield the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = answers.get(self.path, (404, "no such page"))
            if found == "hang":
                time.sleep(1)
            if found in ("hang", "hang up"):
                self.close_connection = True
                return
            status, body = found
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST  # noqa: N815 - what http.server wants

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer((address, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def a_node(*hosts):
    return Node("n", ready="online", report=Report("1", hosts={str(n): host for n, host in enumerate(hosts)}))


def ask(port, *hosts, probes=PROBES, signature=SIGNATURE):
    node = a_node(*(hosts or [{"address": "127.0.0.1"}]))
    return HttpProbe("yolov3", port, probes, signature, connect_s=0.3, answer_s=0.3)(node)


def pipeline(*values, **more):
    return {"/yolov3/prediction": (200, {"err_no": 0, "key": ["y"], "value": list(values), **more})}


PREDICT, PREDICTION = "/v1/predict", "/yolov3/prediction"
ANSWERS = {
    "cloudedge serve, rightly": ({PREDICT: (200, {"outputs": {"y": [[4.0, 0.5]]}})}, "passed", ""),
    "cloudedge serve, wrongly": ({PREDICT: (200, {"outputs": {"y": [[4.1, 0.5]]}})}, "failed", "off by 0.1"),
    "another shape": ({PREDICT: (200, {"outputs": {"y": [4.0, 0.5]}})}, "failed", "shape"),
    "nothing of what is wanted": ({PREDICT: (200, {"outputs": {"z": [1]}})}, "failed", "not among"),
    "a refusal": ({PREDICT: (400, {"error": "no x"})}, "failed", "refuses"),
    "Paddle Serving, a list": (pipeline("[[4.0, 0.5]]"), "passed", ""),
    "Paddle Serving, as Python writes arrays": (pipeline("array([[4. , 0.5]], dtype=float32)"), "passed", ""),
    "Paddle Serving, wrongly": (pipeline("array([[4. , 0.6]], dtype=float32)"), "failed", "off by"),
    "Paddle Serving, no number": (pipeline("array([[nan, 0.5]], dtype=float32)"), "failed", "no array"),
    "Paddle Serving, an error": (pipeline(err_no=5000, err_msg="no memory"), "failed", "no memory"),
    "still loading": ({PREDICT: (503, "loading")}, "starting", "503"),
    "a gateway before a server that is not there yet": ({PREDICTION: (503, "")}, "starting", "503"),
    "a server that breaks": ({PREDICTION: (500, "")}, "starting", "500"),
    "one that never answers": ({PREDICT: "hang"}, "starting", "Timeout"),
    "one that hangs up": ({PREDICT: "hang up"}, "starting", "ConnectionError"),
}


@pytest.mark.parametrize(("answers", "state", "why"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_has_to_be_the_recorded_one(answers, state, why):
    with serving(answers) as port:
        found = ask(port)
    assert found.state == state
    assert why in found.why


def test_an_empty_array_has_its_shape():
    recorded = Probes(requests=[ProbeRequest(feed={"x": [[2.0]]}, expect={"fetch_0": []})])
    with serving(pipeline("array([], shape=(0, 6), dtype=float32)")) as port:
        assert "has shape [0, 6]" in ask(port, probes=recorded).why


def test_who_refuses_a_connection_is_starting_and_who_is_not_there_unreachable():
    with serving({}) as port:
        pass  # now nobody listens there
    refused = ask(port)
    assert refused.state == "starting"
    assert f"nothing listens on 127.0.0.1:{port} yet" in refused.why
    assert ask(port, {}).state == "unreachable"
    with silent("127.0.0.1") as full:
        assert ask(full).state == "unreachable"
    assert HttpProbe("yolov3", port, PROBES)(Node("n")).state == "unreachable"  # it never reported


def test_where_the_cloud_saw_a_node_come_from_is_tried_when_its_own_address_leads_nowhere():
    answers = {PREDICT: (200, {"outputs": {"y": [[4.0, 0.5]]}})}
    with serving(answers) as port, silent("127.0.0.2", port):
        assert ask(port, {"address": "127.0.0.2"}).state == "unreachable"
        assert ask(port, {"address": "127.0.0.2", "clientIP": "127.0.0.1"}).state == "passed"
        # Of the hosts of a cluster, one has the pod.
        assert ask(port, {"address": "127.0.0.3"}, {"address": "127.0.0.1"}).state == "passed"


def test_without_recorded_probes_an_answer_is_only_an_answer():
    with serving({}) as port:
        found = ask(port, probes=Probes())
        assert (found.state, found.why) == ("answers", "none is recorded")
        assert "pull the bundle" in ask(port, probes=None, signature=None).why
    with serving({"/readyz": (503, "")}) as port:
        assert ask(port, probes=None, signature=None).state == "starting"


def test_a_proxy_is_not_asked(monkeypatch):
    with serving({}) as nobody:
        pass
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{nobody}")
    with serving({PREDICT: (200, {"outputs": {"y": [[4.0, 0.5]]}})}) as port:
        assert ask(port).state == "passed"


@contextlib.contextmanager
def silent(address, port=0):
    """Listen and accept nobody: once the queue is full, connecting takes for ever, as behind a firewall."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        time.sleep(0.05)
        yield listener.getsockname()[1]
