"""Promises under load, on real sockets: versions change, too much is asked, and nobody gets another's answer."""

import asyncio
import json
import threading
import time

import numpy as np
import pytest

from cloudedge.errors import CloudEdgeError
from cloudedge.serving import Call, Runtime, RuntimeConfig, Server, ServerConfig
from cloudedge.serving.model._inputs import FeedCheck
from cloudedge.serving.model._metrics import resident_bytes
from tests.serving.models import ctr_feed, pack_rows

pytestmark = pytest.mark.parts

CONNECTIONS = 32


class Outcome:
    def __init__(self):
        self.answered = 0
        self.statuses = {}
        self.wrong = []


async def _client(port, number, outcome, is_over, marks):
    """Ask and compare: the answer has to be of its request and of the version it names."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    i = 0
    while not is_over():
        i += 1
        x = [[number * 1000 + i % 1000, i % 7]]
        body = json.dumps({"inputs": {"x": x}}).encode()
        writer.write(b"POST /v1/predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        found = json.loads(await reader.readexactly(length))
        outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
        if status != 200:
            continue
        mark = marks[found["pin"]]
        if found["outputs"]["y"] != [[x[0][0] + mark, x[0][1] + mark]] or found["pin"].encode() not in head:
            outcome.wrong.append((x, found))
        outcome.answered += 1
    writer.close()


def drive(port, connections, is_over, marks):
    outcome = Outcome()

    async def everybody():
        await asyncio.gather(*(_client(port, number, outcome, is_over, marks) for number in range(connections)))

    thread = threading.Thread(target=lambda: asyncio.run(everybody()))
    thread.start()
    return thread, outcome


@pytest.mark.parametrize("calls", [10_000])
def test_looked_up_answers_over_http_belong_to_their_requests(models, tmp_path, calls):
    """Every request has ids of its own, and the answer is their rows."""
    clients = 16
    keys = np.arange(2 * calls, dtype=np.uint64)
    table = {"keys": keys, "values": (keys[:, None] + np.array([0, 0.25, 0.5])).astype(np.float32)}
    bundle = pack_rows(tmp_path / "rows", models.hub, table)
    wrong = []

    async def client(port, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for key in range(number, calls, clients):
            body = b'{"key":["ids","more"],"value":["[[%d]]","[[%d]]"]}' % (key, calls + key)
            writer.write(b"POST /rows/prediction HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            found = json.loads(await reader.readexactly(length))
            row = [key, key + 0.25, key + 0.5]
            if found["err_no"] or json.loads(found["value"][0]) != [row + [calls + each for each in row]]:
                wrong.append((key, found))
        writer.close()

    async def everybody(port):
        await asyncio.gather(*(client(port, number) for number in range(clients)))

    with Runtime(RuntimeConfig(workers=2, inline_below_s=1e-9), hub=models.hub) as runtime:
        pin = runtime.load(models.ref(bundle)).pin
        runtime.activate(pin)
        with Server(runtime, ServerConfig(port=0, service="rows")) as server:
            asyncio.run(everybody(server.port))
        metrics = runtime.queues[pin].version.metrics
    assert not wrong
    assert (metrics.succeeded, metrics.failed) == (calls, 0)
    assert metrics.runs < calls, "nothing was ever batched"


@pytest.mark.parametrize(
    ("name", "inline_below_s"), [("tiny", 1.0), ("tiny", 1e-9), ("ctr", 1e-9)], ids=["tiny-inline", "tiny", "ctr"]
)
@pytest.mark.parametrize("calls", [10_000])
def test_every_answer_of_a_real_network_belongs_to_its_request(models, name, inline_below_s, calls):
    clients, wrong = 16, []
    feed = ctr_feed(calls) if name == "ctr" else {"x": np.random.default_rng(0).random((calls, 13), np.float32)}

    async def client(runtime, number, expected):
        for i in range(number, calls, clients):
            answer = await runtime.predict(Call({each: array[i : i + 1] for each, array in feed.items()}))
            (found,) = answer.outputs.values()
            if not np.allclose(found[0], expected[i], rtol=0, atol=2e-6):
                wrong.append((i, found, expected[i]))

    async def everybody(runtime, expected):
        runtime.reader_loop = asyncio.get_running_loop()
        await asyncio.gather(*(client(runtime, number, expected) for number in range(clients)))

    with Runtime(RuntimeConfig(workers=2, inline_below_s=inline_below_s, max_wait_s=60), hub=models.hub) as runtime:
        pin = runtime.load(models.ref(getattr(models, name))).pin
        runtime.activate(pin)
        version = runtime.queues[pin].version
        arrays, _, _ = FeedCheck(version.signature, max_rows=calls, max_bytes=1 << 30).check(feed)
        (expected,), _ = version.execute(arrays, version.inline_predictor)
        assert len(np.unique(expected)) > calls * 0.9, "whose answer it is could not be told"
        asyncio.run(everybody(runtime, expected))
        assert (version.metrics.succeeded, version.metrics.failed) == (calls, 0)
        assert version.metrics.runs < calls, "nothing was ever batched"
    assert not wrong


@pytest.mark.parametrize("changes", [40])
@pytest.mark.parametrize("inline_below_s", [1.0, 1e-9], ids=["inline", "threads"])
def test_versions_change_under_load_and_nobody_notices(models, changes, inline_below_s):
    marks = {bundle.pin: float(i) for i, bundle in enumerate(models.marked)}
    over = threading.Event()
    config = RuntimeConfig(workers=2, inline_below_s=inline_below_s)
    with Runtime(config, hub=models.hub) as runtime, Server(runtime, ServerConfig(port=0)) as server:
        runtime.load(models.ref(models.marked[0]))
        runtime.activate(models.marked[0].pin)
        thread, outcome = drive(server.port, CONNECTIONS, over.is_set, marks)
        try:
            resident = []
            for i in range(changes):
                before, after = models.marked[i % 2], models.marked[(i + 1) % 2]
                runtime.load(models.ref(after))
                runtime.activate(after.pin)
                runtime.unload(before.pin)
                resident.append(resident_bytes())
        finally:
            over.set()
            thread.join(60)
        assert outcome.statuses.keys() == {200}
        assert not outcome.wrong
        assert outcome.answered > changes
        # Half of the changes are for warming up; afterwards what comes goes again.
        assert resident[-1] - resident[changes // 2] < 48 * 2**20


@pytest.mark.parametrize("inline_below_s", [1.0, 1e-9], ids=["inline", "threads"])
def test_too_much_is_refused_and_the_rest_is_answered(models, inline_below_s):
    """Three times what the queue takes: what is answered is right, and afterwards everything is as before."""
    marks = {models.marked[0].pin: 0.0}
    config = RuntimeConfig(workers=1, max_queue_rows=CONNECTIONS // 3, max_batch_rows=2, inline_below_s=inline_below_s)
    with Runtime(config, hub=models.hub) as runtime, Server(runtime, ServerConfig(port=0)) as server:
        runtime.load(models.ref(models.marked[0]))
        runtime.activate(models.marked[0].pin)

        def run(connections):
            end = time.monotonic() + 1.5
            thread, outcome = drive(server.port, connections, lambda: time.monotonic() > end, marks)
            thread.join(60)
            assert not outcome.wrong
            return outcome

        first = run(2)
        before = resident_bytes()
        flood = run(3 * CONNECTIONS)
        assert flood.statuses.keys() <= {200, 429}
        assert flood.answered > 0
        queue = runtime.queues[models.marked[0].pin]
        assert queue.queued_rows == 0
        assert resident_bytes() - before < 64 * 2**20
        last = run(2)
        assert last.statuses.keys() == {200}
        # What was refused cost no run: all of the model's time went into answers that somebody got.
        metrics = queue.version.metrics
        assert metrics.batch_rows.total == metrics.succeeded == first.answered + flood.answered + last.answered


def test_unloading_waits_for_the_last_request(models):
    with Runtime(RuntimeConfig(workers=1, inline_below_s=1e-9), hub=models.hub) as runtime:
        for bundle in models.marked[:2]:
            runtime.load(models.ref(bundle))
        pin = models.marked[0].pin
        runtime.activate(pin)
        stop, failures = threading.Event(), []

        def ask():
            while not stop.is_set():
                try:
                    runtime.ask({"x": np.ones((1, 2), np.float32)})
                except CloudEdgeError as error:
                    failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        runtime.activate(models.marked[1].pin)
        runtime.unload(pin)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert pin not in runtime.queues
