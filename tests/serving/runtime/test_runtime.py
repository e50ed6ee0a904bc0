"""The runtime without a socket: batches, rows, inputs, versions."""

import asyncio
import threading
import time
from collections import deque

import numpy as np
import pytest

from cloudedge.bundle import Bundle, Outline, Probes
from cloudedge.errors import Conflict, DeadlineExceeded, InputError, NotFound, Overloaded
from cloudedge.serving import Call, Routing, Runtime, RuntimeConfig, Shadow, Variant
from cloudedge.serving.engine import NoneActive
from cloudedge.serving.model._batching import QueuedRequest, VersionQueue, next_batch
from cloudedge.serving.model._predictor import Predictor
from cloudedge.serving.model._version import Version
from tests.serving.models import PAIR, ROWS, ctr_feed, pack_pooled, pack_rows, row_table, save_marked, save_rows
from tests.serving.models import _save as save_model

pytestmark = pytest.mark.parts

INLINE, THREADS = 1.0, 1e-9
ONE = np.ones((1, 2), np.float32)


def load(runtime, models, bundle, *, activate=True):
    runtime.load(models.ref(bundle))
    if activate:
        runtime.activate(bundle.pin)
    return bundle.pin


@pytest.mark.parametrize("inline_below_s", [INLINE, THREADS], ids=["inline", "threads"])
@pytest.mark.parametrize("calls", [10_000])
def test_every_answer_belongs_to_its_request(models, inline_below_s, calls):
    clients = 16

    async def client(runtime, number):
        for i in range(calls // clients):
            rows = 1 + (number + i) % 3
            x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + np.float32(number * 100_000 + i * 10)
            answer = await runtime.predict(Call({"x": x}))
            np.testing.assert_array_equal(answer.outputs["y"], x)

    async def everybody(runtime):
        runtime.reader_loop = asyncio.get_running_loop()
        await asyncio.gather(*(client(runtime, number) for number in range(clients)))

    with Runtime(RuntimeConfig(workers=2, inline_below_s=inline_below_s), hub=models.hub) as runtime:
        pin = load(runtime, models, models.marked[0])
        assert runtime.version(pin).inline is (inline_below_s == INLINE)
        asyncio.run(everybody(runtime))
        metrics = runtime.queues[pin].version.metrics
        assert metrics.succeeded == calls // clients * clients
        assert metrics.runs < metrics.succeeded, "nothing was ever batched"


def test_every_predictor_that_answers_was_run_before(runtime, models, monkeypatch):
    ran, run = [], Predictor.run

    def counted(self, feed):
        ran.append(self)
        return run(self, feed)

    monkeypatch.setattr(Predictor, "run", counted)
    pin = load(runtime, models, models.ctr)
    version = runtime.queues[pin].version
    assert len(version.predictors) == 2
    for predictor in (*version.predictors, version.inline_predictor):
        assert any(each is predictor for each in ran)


@pytest.mark.parametrize("width", [1, 2])
def test_no_more_batches_run_at_once_than_there_are_cores_for(models, monkeypatch, width):
    running, most, execute = [], [], Version.execute

    def slow(self, *args, **more):
        running.append(None)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return execute(self, *args, **more)

    config = RuntimeConfig(workers=2, inline_below_s=THREADS, max_batch_rows=1)
    with Runtime(config, hub=models.hub) as runtime:
        pin = load(runtime, models, models.marked[0])
        version = runtime.queues[pin].version
        monkeypatch.setattr(Version, "execute", slow)
        queue = VersionQueue(
            version, runtime._pool, max_queue_rows=99, max_queue_bytes=1 << 20, max_wait_s=9, width=width
        )
        arrays, rows, key = version.feeds.check({"x": np.ones((1, 2), np.float32)})
        items = [QueuedRequest(arrays, rows, key, version.fetch(())) for _ in range(8)]
        for item in items:
            queue.put(item)
        for item in items:
            item.future.result(10)
        assert queue.close(10)
    assert (max(most), len(most)) == (width, 8)


def test_callers_without_a_loop_share_batches_too(marked):
    wrong = []

    def client(number):
        for i in range(100):
            x = np.full((1, 2), number * 1000 + i, np.float32)
            if not np.array_equal(marked.ask({"x": x}).outputs["y"], x):
                wrong.append((number, i))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def item(rows=1, key=(), deadline=None):
    return QueuedRequest([], rows, key, [], deadline=deadline)


def test_a_batch_is_a_run_of_requests_of_one_shape_that_fit():
    queue = deque([item(2), item(1), item(3), item(1, ((4,),)), item(1)])
    sizes = []
    while queue:
        batch, expired = next_batch(queue, lambda _: 4, now=0.0)
        assert not expired
        sizes.append([each.rows for each in batch])
    assert sizes == [[2, 1], [3], [1], [1]]


def test_a_request_larger_than_a_batch_runs_alone():
    batch, _ = next_batch(deque([item(9), item(1)]), lambda _: 4, now=0.0)
    assert [each.rows for each in batch] == [9]


def test_what_is_too_late_is_not_run():
    queue = deque([item(deadline=1.0), item(deadline=3.0), item(deadline=2.0)])
    batch, expired = next_batch(queue, lambda _: 4, now=2.0)
    assert (len(batch), len(expired)) == (1, 2)


def test_what_would_take_too_much_memory_once_looked_up_is_refused_by_name(models, tmp_path):
    bundle = pack_pooled(tmp_path / "pooled", models.hub)
    row = 8 + 3 * 4  # an id, and its row of three numbers
    with Runtime(RuntimeConfig(workers=1, max_input_bytes=100 * row), hub=models.hub) as runtime:
        pin = load(runtime, models, bundle)
        assert runtime.ask({"ids": np.zeros((4, 25), np.int64)}).outputs["sum"].shape == (4, 3)
        with pytest.raises(InputError, match=r"feed 'ids' has shape \[4, 26\].* 2080 bytes") as refused:
            runtime.ask({"ids": np.zeros((4, 26), np.int64)})
        assert refused.value.facts["variable"] == "ids"
        version = runtime.queues[pin].version
        assert version.max_rows_of(((50,),)) == 2, "and no batch is larger"
        assert version.max_rows_of(((1000,),)) == 1
    with Runtime(RuntimeConfig(workers=1, max_input_bytes=2 * 2 * row), hub=models.hub) as runtime:
        load(runtime, models, models.rows)
        runtime.ask({"ids": np.zeros((2, 1), np.int64), "more": np.zeros((2, 1), np.int64)})
        with pytest.raises(InputError, match="feed 'ids' has shape"):
            runtime.ask({"ids": np.zeros((3, 1), np.int64), "more": np.zeros((3, 1), np.int64)})


def test_rows_of_ids_reach_the_program(runtime, models):
    pin = load(runtime, models, models.rows)
    feed = {"ids": np.array([[4], [5], [38]]), "more": np.array([[2], [7], [-1]])}
    rows = runtime.ask(feed).outputs["rows"]
    np.testing.assert_array_equal(rows[:, :3], [[4, 4.25, 4.5], [0, 0, 0], [38, 38.25, 38.5]])
    np.testing.assert_array_equal(rows[:, 3:], [[2, 2.25, 2.5], [0, 0, 0], [0, 0, 0]])
    metrics = runtime.queues[pin].version.metrics
    assert (metrics.keys, metrics.missing_keys) == (6, 3)  # 5, 7 and -1


def test_look_ups_nobody_asked_for_are_not_counted(runtime, models, tmp_path):
    """Measuring looks up tens of thousands of ids: counted, they would hide what requests miss."""
    probe = {"feed": {"ids": [[5]], "more": [[7]]}, "expect": {"rows": [[0.0] * 6]}}
    bundle = Bundle.pack(
        save_rows(tmp_path / "rows"), name="rows", signature=ROWS, sparse={"t": row_table()},
        probes=Probes.model_validate({"requests": [probe]}), hub=models.hub,
    )  # fmt: skip
    pin = load(runtime, models, bundle)
    assert runtime.probe(pin).passed
    metrics = runtime.queues[pin].version.metrics
    assert (metrics.keys, metrics.missing_keys) == (0, 0)
    runtime.ask({"ids": np.array([[4]]), "more": np.array([[5]])})
    assert (metrics.keys, metrics.missing_keys) == (2, 1)


def test_the_padding_id_reads_as_zeros_though_the_table_has_it(runtime, models, tmp_path):
    bundle = pack_rows(tmp_path / "dense", models.hub, row_table(gaps=False))
    load(runtime, models, bundle)
    rows = runtime.ask({"ids": np.array([[7]]), "more": np.array([[7]])}).outputs["rows"]
    np.testing.assert_array_equal(rows, [[7, 7.25, 7.5, 0, 0, 0]])


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_narrow_tables_are_read_as_float32(runtime, models, tmp_path, dtype):
    arrays = row_table()
    if dtype == "int8":
        arrays = {"keys": arrays["keys"], "values": np.tile(arrays["keys"][:, None], 3).astype(np.int8)}
        arrays["scale"] = np.full(len(arrays["keys"]), 0.5, np.float32)
    else:
        arrays["values"] = arrays["values"].astype(dtype)
    load(runtime, models, pack_rows(tmp_path / "dense", models.hub, arrays))
    rows = runtime.ask({"ids": np.array([[4]]), "more": np.array([[2]])}).outputs["rows"]
    expected = [[2, 2, 2, 1, 1, 1]] if dtype == "int8" else [[4, 4.25, 4.5, 2, 2.25, 2.5]]
    np.testing.assert_array_equal(rows, expected)


def test_a_batch_answers_as_single_requests_do(runtime, models):
    load(runtime, models, models.ctr)
    feed = ctr_feed(8)
    together = runtime.ask(feed).outputs["ctr"]
    alone = [runtime.ask({name: array[i : i + 1] for name, array in feed.items()}).outputs["ctr"] for i in range(8)]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-6)


def test_requests_of_different_shapes_are_answered_side_by_side(runtime, models):
    load(runtime, models, models.lengths)

    async def many():
        feeds = [np.full((1, 1 + i % 5), i, np.float32) for i in range(60)]
        return await asyncio.gather(*(runtime.predict(Call({"x": x})) for x in feeds))

    for i, answer in enumerate(asyncio.run(many())):
        assert answer.outputs["sum"].tolist() == [[i * (1 + i % 5)]]


BAD = {
    "missing": ({}, "feed 'x' is missing"),
    "unknown": ({"x": ONE, "z": ONE}, "feed 'z' is unknown"),
    "dtype": ({"x": np.array([["a", "b"]])}, "feed 'x' is <U1, wanted float32"),
    "shape": ({"x": np.ones((1, 3), np.float32)}, r"feed 'x' has shape \[1, 3\], wanted \[rows, 2\]"),
    "no rows": ({"x": np.ones((0, 2), np.float32)}, "feed 'x' has 0 rows"),
    "scalar": ({"x": np.float32(1)}, "feed 'x' has shape"),
    "too many rows": ({"x": np.ones((1025, 2), np.float32)}, "feed 'x' has 1025 rows; a request has 1 to 1024"),
    "nan": ({"x": np.array([[1, np.nan]], np.float32)}, "feed 'x': row 0 holds a NaN"),
    "inf": ({"x": np.array([[1, 1], [np.inf, 1]], np.float32)}, "feed 'x': row 1 holds a NaN or an infinity"),
    "too large": ({"x": np.array([[1e300, 1]])}, "feed 'x': row 0 holds a NaN or an infinity"),
}


@pytest.mark.parametrize(("feed", "message"), BAD.values(), ids=BAD)
def test_what_the_model_does_not_take_is_refused_by_name(marked, feed, message):
    with pytest.raises(InputError, match=message) as caught:
        marked.ask(feed)
    assert caught.value.variable in {"x", "z"}
    assert marked.ask({"x": ONE}).outputs["y"].tolist() == [[1, 1]]


def test_ids_that_do_not_fit_are_refused(runtime, models):
    load(runtime, models, models.rows)
    with pytest.raises(InputError, match="'ids' is float64, wanted int64"):
        runtime.ask({"ids": np.array([[0.5]]), "more": np.array([[1]])})
    with pytest.raises(InputError, match="'more' has 2 rows, others have 1"):
        runtime.ask({"ids": np.array([[1]]), "more": np.array([[1], [2]])})


def test_a_bad_request_does_not_spoil_its_batch(models):
    async def mixed(runtime):
        runtime.reader_loop = asyncio.get_running_loop()
        feeds = [np.full((1, 2), np.nan if i % 7 == 3 else i, np.float32) for i in range(40)]
        return feeds, await asyncio.gather(*(runtime.predict(Call({"x": x})) for x in feeds), return_exceptions=True)

    with Runtime(RuntimeConfig(inline_below_s=INLINE), hub=models.hub) as runtime:
        pin = load(runtime, models, models.marked[0])
        feeds, answers = asyncio.run(mixed(runtime))
        assert runtime.queues[pin].version.metrics.batch_rows.total > runtime.queues[pin].version.metrics.runs
    for x, answer in zip(feeds, answers, strict=True):
        if np.isnan(x).any():
            assert isinstance(answer, InputError)
        else:
            np.testing.assert_array_equal(answer.outputs["y"], x)


def test_outputs_are_chosen_by_name(marked):
    assert list(marked.ask({"x": ONE}, fetch=["y"]).outputs) == ["y"]
    with pytest.raises(InputError, match="fetch 'nope' is unknown"):
        marked.ask({"x": ONE}, fetch=["nope"])


def test_a_full_queue_refuses_and_recovers(models):
    async def flood(runtime):
        calls = [runtime.predict(Call({"x": np.full((1, 2), i, np.float32)})) for i in range(200)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with Runtime(RuntimeConfig(workers=1, max_queue_rows=8, inline_below_s=THREADS), hub=models.hub) as runtime:
        load(runtime, models, models.marked[0])
        answers = asyncio.run(flood(runtime))
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert refused
        assert {type(answer) for answer in refused} == {Overloaded}
        assert runtime.ask({"x": ONE}).outputs["y"].tolist() == [[1, 1]]


def test_between_two_batches_run_where_requests_are_read_the_others_have_their_turn(models):
    """Else a flood of one model would keep everything else, health checks included, waiting until it is over."""
    with Runtime(RuntimeConfig(workers=1, inline_below_s=INLINE, max_batch_rows=1), hub=models.hub) as runtime:
        pin = load(runtime, models, models.marked[0])
        metrics, seen = runtime.queues[pin].version.metrics, []

        async def ask():
            runtime.reader_loop = asyncio.get_running_loop()
            waiting = [asyncio.ensure_future(runtime.predict(Call({"x": ONE}))) for _ in range(3)]
            await asyncio.sleep(0)  # all three are queued now
            runtime.reader_loop.call_soon(lambda: seen.append(metrics.runs))
            await asyncio.gather(*waiting)

        asyncio.run(ask())
        assert (seen, metrics.runs) == ([1], 3)


def test_a_deadline_that_is_over_is_kept(marked):
    with pytest.raises(DeadlineExceeded):
        asyncio.run(marked.predict(Call({"x": ONE}, deadline=time.monotonic() - 1)))


# -- versions ----------------------------------------------------------------------------------------------------------


def test_the_pointer_moves_and_moves_back(marked, models):
    zero, one = models.marked[0].pin, models.marked[1].pin
    load(marked, models, models.marked[1], activate=False)
    assert marked.ask({"x": ONE}).pin == zero
    marked.activate(one)
    answer = marked.ask({"x": ONE})
    assert (answer.pin, answer.outputs["y"].tolist()) == (one, [[2, 2]])
    assert marked.ask({"x": ONE}, pin=zero).pin == zero
    marked.activate(zero)
    assert marked.ask({"x": ONE}).pin == zero


def test_everything_can_be_done_twice(marked, models):
    one = models.marked[1].pin
    for _ in range(2):
        marked.load(models.ref(models.marked[1]))
        marked.activate(one)
    assert len(marked.versions()) == 2
    marked.activate(models.marked[0].pin)
    for _ in range(2):
        marked.unload(one)
    assert [version.pin for version in marked.versions()] == [models.marked[0].pin]
    with pytest.raises(NotFound):
        marked.ask({"x": ONE}, pin=one)


def test_what_traffic_can_reach_is_not_unloaded(marked, models):
    load(marked, models, models.marked[1], activate=False)
    zero, one = models.marked[0].pin, models.marked[1].pin
    with pytest.raises(Conflict):
        marked.unload(zero)
    marked.set_weights([Variant(zero, 9), Variant(one, 1)])
    with pytest.raises(Conflict):
        marked.unload(one)
    marked.set_weights([])
    marked.unload(one)


def test_weights_share_the_traffic_and_tags_choose(marked, models):
    load(marked, models, models.marked[1], activate=False)
    zero, one = models.marked[0].pin, models.marked[1].pin
    marked.set_weights([Variant(zero, 90, "old"), Variant(one, 10, "new")])
    answers = [marked.ask({"x": ONE}) for _ in range(500)]
    new = [answer for answer in answers if answer.tag == "new"]
    assert 10 < len(new) < 110
    assert {answer.pin for answer in new} == {one}
    assert {marked.ask({"x": ONE}, tag="new").pin for _ in range(5)} == {one}
    with pytest.raises(NotFound):
        marked.ask({"x": ONE}, tag="nope")


def test_a_shadow_is_compared_and_never_answers(marked, models):
    load(marked, models, models.marked[1], activate=False)
    one = models.marked[1].pin

    async def ask(count):
        for _ in range(count):
            answer = await marked.predict(Call({"x": ONE}))
            assert answer.pin == models.marked[0].pin
        await asyncio.sleep(0.2)

    metrics = marked.queues[one].version.metrics
    marked.set_shadow(Shadow(one, tolerance=0.5))
    asyncio.run(ask(20))
    assert metrics.shadow_compared == metrics.shadow_differed > 0
    before = metrics.shadow_compared
    marked.set_shadow(Shadow(one, tolerance=1.5))
    asyncio.run(ask(20))
    assert metrics.shadow_compared > before
    assert metrics.shadow_differed == before


def test_a_version_that_fails_its_probes_is_not_activated(marked, models, tmp_path):
    wrong = Probes.model_validate({"requests": [{"name": "p", "feed": {"x": [[1.0, 2.0]]}, "expect": {"y": [[9, 9]]}}]})
    folder = tmp_path / "model"
    folder.mkdir()
    for path, file in models.marked[1].dense.items():
        (folder / path).write_bytes(file.read_bytes())
    bundle = Bundle.pack(folder, name="wrong", signature=models.marked[1].signature, probes=wrong, hub=models.hub)
    info = marked.load(models.ref(bundle))
    assert info.probes_failed == ("probe p: y is off by 7, allowed are 1e-05",)
    with pytest.raises(Conflict, match="did not answer its probes"):
        marked.activate(bundle.pin)
    with pytest.raises(Conflict):
        marked.set_weights([Variant(bundle.pin, 1)])
    assert marked.is_ready()


def test_what_cannot_be_loaded_says_why_and_disturbs_nothing(marked, models, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "model.json").write_text("{}")
    (folder / "model.pdiparams").write_bytes(b"no")
    bundle = Bundle.pack(folder, name="broken", hub=models.hub)
    with pytest.raises(InputError, match="Paddle does not load"):
        marked.load(models.ref(bundle))
    assert marked.version(bundle.pin).state == "failed"
    marked.unload(bundle.pin)
    assert marked.ask({"x": ONE}).outputs["y"].tolist() == [[1, 1]]
    with pytest.raises(NotFound):
        marked.load("nobody:1")


def test_a_folder_is_served_as_it_is(runtime, tmp_path, models):
    folder = tmp_path / "My Model"
    folder.mkdir()
    for path, file in models.marked[2].dense.items():
        (folder / path).write_bytes(file.read_bytes())
    info = runtime.load(str(folder))
    runtime.activate(info.pin)
    assert (info.name, [v.name for v in runtime.signature.feed]) == ("my-model", ["x"])
    assert runtime.ask({"x": ONE}).outputs["fetch_name_0"].tolist() == [[3, 3]]


def test_a_restart_brings_back_what_answered(models, tmp_path):
    state = tmp_path / "state.json"
    zero, one = (bundle.pin for bundle in models.marked[:2])
    with Runtime(hub=models.hub, state=state) as runtime:
        load(runtime, models, models.marked[0])
        load(runtime, models, models.marked[1], activate=False)
        runtime.set_weights([Variant(one, 1, "canary")])
        before = runtime.routing
    with Runtime(hub=models.hub, state=state) as runtime:
        assert runtime.restore() == []
        assert runtime.routing == before
        assert {version.pin for version in runtime.versions()} == {zero, one}
        assert runtime.ask({"x": ONE}).tag == "canary"


def test_a_state_file_of_something_else_is_refused(models, tmp_path):
    (tmp_path / "state.json").write_text("[1]")
    with (
        Runtime(hub=models.hub, state=tmp_path / "state.json") as runtime,
        pytest.raises(InputError, match="state file"),
    ):
        runtime.restore()


ROUTES = Routing("a", (Variant("a", 90, "x"), Variant("b", 10, "y")))


@pytest.mark.parametrize(("draw", "pin"), [(0.0, "a"), (0.899, "a"), (0.901, "b"), (0.999999, "b")])
def test_a_draw_chooses_by_weight(draw, pin):
    assert ROUTES.choose(draw)[0] == pin


def test_routing_refuses_what_makes_no_sense():
    with pytest.raises(NoneActive):
        Routing().choose(0.5)
    with pytest.raises(InputError):
        Routing("a").weighted([Variant("a", 0)])
    with pytest.raises(InputError):
        Routing("a").weighted([Variant("a", 1, "t"), Variant("b", 1, "t")])
    for weight in (-1, float("nan"), float("inf")):
        with pytest.raises(InputError):
            Variant("a", weight)
    with pytest.raises(InputError):
        Shadow("a", share=0)
    assert ROUTES.activated("b") == Routing("b")


def test_a_program_without_parameters_is_served(runtime, models, tmp_path):
    def build(p):
        x = p.static.data("x", [-1, 2], "float32")
        return [x], [x * 2.0]

    save_model(tmp_path / "plain", build, 1)
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["model.json"]
    load(runtime, models, Bundle.pack(tmp_path / "plain", name="plain", signature=PAIR, hub=models.hub))
    assert runtime.ask({"x": ONE}).outputs["y"].tolist() == [[2, 2]]


@pytest.mark.parametrize(
    ("program", "why"), [(None, "model.json has 1 parameters"), ("{}", "model.json comes without parameters")]
)
def test_a_program_whose_parameters_are_missing_is_refused(runtime, models, tmp_path, program, why):
    """The engine itself would take whatever is in memory for them, and answer."""
    folder = save_marked(tmp_path / "lost", 3.0)
    (folder / "model.pdiparams").unlink()
    if program is not None:
        (folder / "model.json").write_text(program)
    with pytest.raises(InputError, match=why):
        load(runtime, models, Bundle.pack(folder, name="lost", signature=PAIR, hub=models.hub))


@pytest.mark.parametrize("ask", [lambda r: r.ask({"x": np.ones((1, 2), np.float32)}).pin, lambda r: r.signature])
def test_a_version_that_goes_just_after_it_was_chosen(marked, models, monkeypatch, ask):
    first, second = models.marked[:2]
    marked.load(models.ref(second))
    choose, calls = Routing.choose, []

    def slow(routing, draw, tag=None):
        chosen = choose(routing, draw, tag)
        if not calls:
            calls.append(chosen)
            marked.activate(second.pin)
            marked.unload(first.pin)
        return chosen

    monkeypatch.setattr(Routing, "choose", slow)
    assert ask(marked) in (second.pin, second.signature)
    assert calls == [(first.pin, "")]


def test_a_bundle_whose_digest_begins_like_that_of_a_loaded_one_is_refused(models, monkeypatch):
    first, second = models.rows, models.tiny
    monkeypatch.setattr(Outline, "pin", property(lambda self: "0123456789abcdef"))
    with Runtime(RuntimeConfig(workers=1), hub=models.hub) as runtime:
        runtime.load(models.ref(first))
        with pytest.raises(Conflict, match="has the pin of"):
            runtime.load(models.ref(second))
        runtime.load(models.ref(first))
