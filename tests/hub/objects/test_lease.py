"""Locks made of objects: the rules in every order, then the clockwork around them."""

from __future__ import annotations

import time
from itertools import permutations

import pytest

from cloudedge.clock import ManualClock, SystemClock
from cloudedge.errors import Conflict, NotFound, Unavailable
from cloudedge.hub.core._protocol import ObjectInfo
from cloudedge.hub.objects._lease import Claim, LeaseStep, decide, lease

pytestmark = pytest.mark.rules


class Memory:
    """Objects in memory whose ages follow a clock that is not the competitors' own."""

    url = "memory://"

    def __init__(self):
        self.now = 0.0
        self.objects = {}
        self.puts = 0

    def put(self, key, data):
        self.puts += 1
        self.objects[key] = (data, self.now)

    def get(self, key):
        yield self.objects[key][0]

    def delete(self, key):
        self.objects.pop(key, None)

    def head(self, key):
        return next((info for info in self.list(key) if info.key == key), None)

    def list(self, prefix):
        for key, (data, written) in sorted(self.objects.items()):
            if key.startswith(prefix):
                yield ObjectInfo(key, len(data), "", self.now - written)


# Every order of steps -----------------------------------------------------------------------------------


def successors(actors, state):
    """Yield what can happen next: one actor writes its claim, lists, or does what follows from its list.

    An actor is (id, shared). Its state says whether its claim is up or down and what it saw when it listed,
    or that it is in, or out again. A write and a listing are single steps; any others may come between.
    """
    for index, ((name, shared), at) in enumerate(zip(actors, state, strict=True)):

        def then(new, index=index):
            return (*state[:index], new, *state[index + 1 :])

        standing = tuple(actor for actor, there in zip(actors, state, strict=True) if there == "in" or "up" in there)
        if at == ("down",):
            yield then(("up",))
            yield then(("down", standing))
        elif at in (("up",), ("up", "wait")):
            yield then(("up", standing))
        elif at == "in":
            yield then("out")
        elif at != "out":
            mine = name if at[0] == "up" else None
            step = decide(mine, [Claim(i, shared=s) for i, s in at[1]], shared=shared)
            yield then(
                {
                    LeaseStep.ENTER: "in",
                    LeaseStep.STAND: ("up", "wait"),
                    LeaseStep.WITHDRAW: ("down",),
                    LeaseStep.WAIT: ("down",),
                    LeaseStep.CLAIM: ("up",),
                }[step]
            )


def explore(actors):
    start = (("down",),) * len(actors)
    graph, todo = {}, [start]
    while todo:
        state = todo.pop()
        if state not in graph:
            graph[state] = list(successors(actors, state))
            todo += graph[state]
    return graph


CROWDS = {
    "two collectors": [("a", False), ("b", False)],
    "collector and push": [("a", False), ("b", True)],
    "three writers": [("a", False), ("b", False), ("c", False)],
    "two writers and a sharer": [("a", False), ("b", False), ("c", True)],
    "a writer and two sharers": [("a", False), ("b", True), ("c", True)],
}


@pytest.mark.parametrize(
    "actors",
    [
        pytest.param([(name, shared) for name, (_, shared) in zip("abc", order, strict=False)], id=f"{crowd} {n}")
        for crowd, actors in CROWDS.items()
        for n, order in enumerate(sorted(set(permutations(actors))))
    ],
)
def test_in_no_order_of_steps_are_two_in_that_exclude_each_other_or_is_there_no_way_out(actors):
    graph = explore(actors)
    for state in graph:
        inside = [shared for (_, shared), at in zip(actors, state, strict=True) if at == "in"]
        assert all(inside) or len(inside) == 1
    done = ("out",) * len(actors)
    reaches_end, before = {done}, {}
    for state, nexts in graph.items():
        for following in nexts:
            before.setdefault(following, []).append(state)
    todo = [done]
    while todo:
        fresh = set(before.get(todo.pop(), ())) - reaches_end
        reaches_end |= fresh
        todo += fresh
    assert reaches_end == set(graph)


def test_the_search_would_notice_a_rule_that_is_wrong(monkeypatch):
    def careless(mine, claims, *, shared, rule=decide):
        step = rule(mine, claims, shared=shared)
        return LeaseStep.ENTER if step is LeaseStep.STAND else step

    monkeypatch.setitem(successors.__globals__, "decide", careless)
    states = explore([("a", False), ("b", False)])
    assert any(state == ("in", "in") for state in states)


# The clockwork ------------------------------------------------------------------------------------------


def hold(store, clock, name="index", **options):
    return lease(store, name, clock=clock, **{"shared": False, "wait_s": 0, "ttl_s": 30, **options})


def test_a_lock_leaves_nothing_behind():
    store = Memory()
    with hold(store, ManualClock()):
        assert len(store.objects) == 1
    assert store.objects == {}
    with pytest.raises(ZeroDivisionError), hold(store, ManualClock()):
        _ = 1 / 0
    assert store.objects == {}


def test_a_refusal_says_who_since_when_and_what_to_do():
    store = Memory()
    with hold(store, ManualClock()):
        with pytest.raises(Conflict) as refused:
            hold(store, ManualClock(), wait_s=5).__enter__()
        assert len(store.objects) == 1
    assert "pid" in refused.value.owner
    assert refused.value.since == "2026-01-01T00:00:00Z"
    assert refused.value.owner in str(refused.value)
    assert "30 s" in refused.value.hint


def test_a_holder_that_leaves_while_it_is_looked_up_is_a_conflict_still():
    class Fleeting(Memory):
        def get(self, key):
            raise NotFound(key)
            yield

    store = Fleeting()
    with hold(store, ManualClock()), pytest.raises(Conflict, match="just left"):
        hold(store, ManualClock()).__enter__()


def test_waiting_ends_on_time_and_polls_ever_less_often():
    store, clock = Memory(), ManualClock()
    with hold(store, ManualClock()), pytest.raises(Conflict):
        hold(store, clock, wait_s=60).__enter__()
    assert clock.elapsed == pytest.approx(60)
    assert store.puts < 10


@pytest.mark.parametrize("shared", [True, False])
def test_a_killed_holder_loses_the_lock_after_its_own_time_to_live(shared):
    store = Memory()
    killed = hold(store, ManualClock(), ttl_s=30, shared=shared)
    killed.__enter__()  # and it is never heard of again
    store.now = 31
    with pytest.raises(Conflict):  # a second for whole-second dates, and one to spare
        hold(store, ManualClock(), ttl_s=1).__enter__()
    store.now = 33
    with hold(store, ManualClock(), ttl_s=1):
        assert len(store.objects) == 1


def test_our_own_clock_does_not_make_others_stale():
    store = Memory()
    late = ManualClock(elapsed=1e9)
    with hold(store, ManualClock()), pytest.raises(Conflict):
        hold(store, late).__enter__()


def test_a_holder_that_could_not_renew_stops():
    store, clock = Memory(), ManualClock()
    with pytest.raises(Unavailable, match="lost"), hold(store, clock) as held:  # noqa: PT012
        held.check()
        clock.elapsed += 30
        with pytest.raises(Unavailable):
            held.check()


def test_a_holder_whose_claim_was_removed_stops_even_if_its_clock_stood_still():
    store = Memory()
    with pytest.raises(Unavailable, match="lost"), hold(store, ManualClock()):  # noqa: PT012
        store.now += 40
        taker = hold(store, ManualClock())
        taker.__enter__()


def test_an_error_in_the_block_is_not_hidden_by_a_lost_lock():
    clock = ManualClock()
    with pytest.raises(ZeroDivisionError), hold(Memory(), clock):  # noqa: PT012
        clock.elapsed += 31
        _ = 1 / 0


def test_a_claim_that_took_longer_to_write_than_it_lives_is_not_believed():
    class Slow(Memory):
        def put(self, key, data):
            super().put(key, data)
            clock.elapsed += 40

    clock = ManualClock()
    with pytest.raises(Unavailable, match="slow"):
        hold(Slow(), clock, wait_s=100).__enter__()


def test_other_objects_in_the_folder_do_not_matter():
    store = Memory()
    store.put("locks/index/README", b"hello")
    store.put("locks/index/deeper/exclusive-30000-" + "0" * 32, b"")
    store.put("locks/index2/exclusive-30000-" + "0" * 32, b"")
    with hold(store, ManualClock()):
        pass


def test_a_live_holder_keeps_its_lock_as_long_as_it_needs():
    store, clock = Memory(), ManualClock()
    with hold(store, clock) as held:
        for _ in range(5):
            store.now += 20
            clock.elapsed += 20
            held._renew()
            held.check()
            with pytest.raises(Conflict):
                hold(store, ManualClock(), ttl_s=1).__enter__()


def test_a_thread_renews_until_the_lock_is_let_go():
    store = Memory()
    with hold(store, SystemClock(), ttl_s=0.3):
        until(lambda: store.puts > 3)
    puts = store.puts
    time.sleep(0.3)
    assert store.puts == puts
    assert store.objects == {}


def test_a_store_that_is_gone_costs_the_lock():
    class Failing(Memory):
        fails = False

        def put(self, key, data):
            if self.fails:
                raise Unavailable("gone")
            super().put(key, data)

    store = Failing()
    with pytest.raises(Unavailable, match="lost"), hold(store, SystemClock(), ttl_s=0.3) as held:  # noqa: PT012
        store.fails = True
        until(lambda: not held.in_time())


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
