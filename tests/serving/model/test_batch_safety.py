"""Requests share a run only where no answer depends on the rows beside it."""

import asyncio

import numpy as np
import pytest

from cloudedge.bundle import Bundle, Signature, Variable
from cloudedge.serving import Call, Runtime, RuntimeConfig, Server, ServerConfig
from tests.serving.models import PAIR, _save
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts


def pair(p):
    return p.static.data("x", [-1, 2], "float32")


def whole(p):
    ids = p.static.data("x", [-1, 1], "int64")
    table = p.create_parameter([5, 2], "float32", name="t")
    return ids, p.nn.functional.embedding(ids, table)[:, 0]


ACROSS = {
    "sum along the batch": lambda p: ([x := pair(p)], [p.cumsum(x, axis=0)]),
    "softmax along the batch": lambda p: ([x := pair(p)], [p.nn.functional.softmax(x, axis=0)]),
    "mean of the batch": lambda p: ([x := pair(p)], [x - p.mean(x, axis=0, keepdim=True)]),
    "looked up, and summed": lambda p: ([(found := whole(p))[0]], [p.cumsum(found[1], axis=0)]),
}
SHAPES = {
    "two rows for any": lambda p: ([x := pair(p)], [p.concat([p.sum(x, axis=0, keepdim=True)] * 2)]),
    "five rows for any": lambda p: ([x := pair(p)], [p.concat([p.sum(x, axis=0, keepdim=True)] * 5)]),
    "one number": lambda p: ([x := pair(p)], [p.sum(x)]),
    "twice as many rows": lambda p: ([x := pair(p)], [p.concat([x, x])]),
}
ALONE = {
    "sum along the row": lambda p: ([x := pair(p)], [p.cumsum(x, axis=1)]),
    "softmax along the row": lambda p: ([x := pair(p)], [p.nn.functional.softmax(x, axis=1)]),
    "a constant": lambda p: ([x := pair(p)], [x * 0.0 + 3.0]),
    "looked up": lambda p: ([(found := whole(p))[0]], [found[1]]),
}


def load(runtime, models, folder, build):
    _save(folder, build, 1)
    feed = PAIR.feed
    if "looked" in folder.name:
        feed = (Variable(name="x", dtype="int64", shape=(1,)),)
    signature = Signature(feed=feed, fetch=PAIR.fetch)
    bundle = Bundle.pack(folder, name="model", signature=signature, hub=models.hub)
    runtime.activate(runtime.load(models.ref(bundle)).pin)
    return runtime.queues[bundle.pin].version


@pytest.mark.parametrize(("name", "build"), (ACROSS | SHAPES).items(), ids=ACROSS | SHAPES)
def test_what_depends_on_other_rows_is_run_by_itself(runtime, models, tmp_path, caplog, name, build):  # noqa: PLR0917
    version = load(runtime, models, tmp_path / name, build)
    assert not version.tuning.is_batched
    assert version.tuning.max_batch_rows == 1
    assert version.tuning.why_alone.startswith("output 0 ")
    assert f"version {version.pin}: every request runs alone" in caplog.text
    with Server(runtime, ServerConfig(port=0)) as server, Http(server.port) as http:
        told = http.ask("GET", "/stats").json()["versions"][version.pin]["tuning"]
        assert told["why_alone"] == version.tuning.why_alone


@pytest.mark.parametrize(("name", "build"), ALONE.items(), ids=ALONE)
def test_what_does_not_shares_runs(runtime, models, tmp_path, name, build):
    tuning = load(runtime, models, tmp_path / name, build).tuning
    assert (tuning.is_batched, tuning.why_alone) == (True, "")
    assert tuning.max_batch_rows > 1


@pytest.mark.parametrize(
    ("took_s", "rows"),
    [
        ([0.001, 0.005, 0.019, 0.021], 4),  # what fits into 20 ms
        ([0.030, 0.031, 0.035, 0.044, 0.060], 8),  # one row takes longer than that: others cost little beside it
        ([0.030, 0.059], 1),
        ([0.015, 0.021, 0.022, 0.030], 4),
    ],
)
def test_as_many_rows_share_a_run_as_are_worth_it(models, tmp_path, monkeypatch, took_s, rows):
    measured = iter(took_s)
    monkeypatch.setattr("cloudedge.serving.model._version._shortest_time", lambda *_: next(measured))
    with Runtime(RuntimeConfig(workers=1), hub=models.hub) as runtime:
        assert load(runtime, models, tmp_path / "model", ALONE["sum along the row"]).tuning.max_batch_rows == rows
    assert not list(measured)


def test_what_waits_is_counted_in_runs(models, tmp_path, monkeypatch):
    """A row of this takes 90 ms and eight take 100: 32 clients wait less than half a second, and nobody is refused."""
    measured = iter([0.09, 0.093, 0.096, 0.1, 0.2])
    monkeypatch.setattr("cloudedge.serving.model._version._shortest_time", lambda *_: next(measured))
    with Runtime(RuntimeConfig(workers=1), hub=models.hub) as runtime:
        tuning = load(runtime, models, tmp_path / "model", ALONE["sum along the row"]).tuning
    assert [tuning.estimate_s(rows) for rows in (1, 8, 32, 33)] == pytest.approx([0.09, 0.1, 0.4, 0.49])


@pytest.mark.parametrize("inline_below_s", [1.0, 1e-9], ids=["inline", "threads"])
def test_nobody_is_answered_by_a_neighbour(models, tmp_path, inline_below_s):
    async def client(runtime, number):
        for i in range(50):
            x = np.full((1 + i % 2, 2), number * 100 + i, np.float32)
            answer = await runtime.predict(Call({"x": x}))
            np.testing.assert_array_equal(answer.outputs["y"], np.cumsum(x, axis=0))

    async def everybody(runtime):
        runtime.reader_loop = asyncio.get_running_loop()
        await asyncio.gather(*(client(runtime, number) for number in range(16)))

    with Runtime(RuntimeConfig(workers=2, inline_below_s=inline_below_s), hub=models.hub) as runtime:
        version = load(runtime, models, tmp_path / "across", ACROSS["sum along the batch"])
        asyncio.run(everybody(runtime))
        assert version.metrics.runs == version.metrics.succeeded == 16 * 50


def test_a_program_that_takes_one_row_is_served(runtime, models, tmp_path):
    def build(p):
        x = pair(p)
        return [x], [p.reshape(x, [1, 2]) * 2.0]

    version = load(runtime, models, tmp_path / "one", build)
    assert version.tuning.why_alone == "2 rows together are refused by the program"
    assert runtime.ask({"x": np.ones((1, 2), np.float32)}).outputs["y"].tolist() == [[2, 2]]
