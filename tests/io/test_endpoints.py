"""The choice among servers that answer alike: its rules, and what they amount to in virtual time."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from dataclasses import dataclass, field

import pytest

from cloudedge.errors import ConfigError
from cloudedge.io import EndpointPolicy, EndpointPool

pytestmark = pytest.mark.rules

DEADLINE_S = 20.0


def ask(pool, now, latency_s=0.01, tried=()):
    number, patience_s = pool.begin(now, tried)
    pool.answered(number, now, now + latency_s)
    return number, patience_s


def warm(pool, *, calls=64, latency_s=0.01):
    """Answer calls in turn, and return the time afterwards."""
    for call in range(calls):
        ask(pool, call * 0.1, latency_s)
    return calls * 0.1


def test_servers_take_turns():
    pool = EndpointPool(3)
    assert [ask(pool, 0.0)[0] for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_patience_is_three_times_the_usual_and_never_below_the_least():
    pool = EndpointPool(2)
    assert pool.begin(0.0) == (0, 1.0)  # nothing is known yet
    now = warm(pool, latency_s=0.1)
    assert pool.begin(now)[1] == pytest.approx(0.3)
    quick = EndpointPool(2)
    assert quick.begin(warm(quick, latency_s=0.001))[1] == 0.05


def test_the_last_server_of_a_call_gets_the_whole_deadline():
    pool = EndpointPool(2)
    first, patience_s = pool.begin(0.0)
    assert patience_s is not None
    assert pool.begin(0.0, [first]) == (1 - first, None)
    assert EndpointPool(1).begin(0.0) == (0, None)


def test_a_server_that_rests_is_asked_only_after_a_sure_silence():
    pool = EndpointPool(2)
    now = warm(pool, latency_s=0.1)
    pool.failed(0, now)
    assert pool.begin(now) == (1, pytest.approx(3.0))  # ten times the patience
    assert pool.begin(now, [1]) == (0, pytest.approx(3.0))
    pool.answered(1, now, now + 0.1)
    assert pool.begin(now, [1, 0]) == (1, None)  # back to the one that answered last, for the rest of the deadline


def test_a_slower_server_is_measured_by_the_fastest():
    pool = EndpointPool(2)
    for call in range(100):
        number, _ = pool.begin(call)
        pool.answered(number, call, call + (0.1 if number else 1.0))
    assert pool.begin(200)[1] == pytest.approx(0.3)


def test_a_silent_server_rests_and_longer_each_time():
    pool = EndpointPool(2)
    now = warm(pool)
    assert pool.silent(0, now - 0.05, now, was_cut=True)
    rests = []
    for _ in range(7):
        rests.append(round(pool._endpoints[0].rests_until - now, 6))
        assert {ask(pool, now)[0] for _ in range(40)} == {1}
        now = pool._endpoints[0].rests_until
        assert pool.due_probe(now)[0] == 0
        assert pool.due_probe(now) is None  # one probe at a time
        pool.probed(0, now, now, answered=False)
        assert pool.is_resting(0, now)
    assert rests == [1, 2, 4, 8, 16, 30, 30]
    assert pool.counts(0).rests == 8


def test_after_its_rest_a_server_is_asked_only_once_a_probe_was_answered():
    pool = EndpointPool(2)
    now = warm(pool)
    pool.failed(0, now)
    assert pool.due_probe(now + 0.9) is None
    now += 5
    assert {ask(pool, now)[0] for _ in range(4)} == {1}
    number, timeout_s = pool.due_probe(now)
    assert (number, timeout_s) == (0, 0.05)
    pool.probed(0, now, now + 0.01, answered=True)
    assert not pool.is_resting(0, now)
    assert {ask(pool, now)[0] for _ in range(4)} == {0, 1}
    pool.failed(0, now)
    assert pool._endpoints[0].rests_until - now == 1.0  # it began anew


def test_a_server_that_answered_another_call_meanwhile_is_not_silent():
    pool = EndpointPool(2)
    now = warm(pool)
    pool.answered(0, now, now + 0.04)
    assert not pool.silent(0, now, now + 0.05, was_cut=True)
    assert not pool.is_resting(0, now + 0.05)
    assert pool.counts(0).cut == 1


def test_a_short_deadline_is_not_the_servers_fault():
    pool = EndpointPool(2)
    now = warm(pool, latency_s=0.1)
    assert not pool.silent(0, now, now + 0.2, was_cut=False)
    assert pool.silent(0, now, now + 0.4, was_cut=False)


def test_failures_of_tries_that_began_before_a_rest_do_not_prolong_it():
    pool = EndpointPool(2)
    now = warm(pool)
    for _ in range(8):  # as many were under way when it hung
        pool.silent(0, now, now + 0.05, was_cut=True)
    assert pool._endpoints[0].rests_until == now + 0.05 + 1.0
    assert pool.counts(0).rests == 1


def test_the_last_server_is_asked_although_it_rests():
    pool = EndpointPool(3)
    for number, now in ((2, 0.0), (0, 0.1), (1, 0.2)):
        pool.failed(number, now)
    assert not pool.is_any_ready(0.3)
    assert pool.begin(0.3)[0] == 2  # its rest ends first
    assert pool.begin(0.3, [2])[0] == 0
    assert pool.begin(0.3, [2, 0])[0] == 1
    pool.answered(1, 0.3, 0.4)
    assert pool.is_any_ready(0.4)
    assert pool.begin(0.4)[0] == 1


def test_a_server_without_room_comes_back_by_itself():
    pool = EndpointPool(2)
    pool.refused(0, 0.0)
    assert {ask(pool, 0.5)[0] for _ in range(4)} == {1}
    assert pool.due_probe(2.0) is None
    assert {ask(pool, 2.0)[0] for _ in range(4)} == {0, 1}


def test_cut_tries_and_probes_are_a_share_of_the_calls():
    pool = EndpointPool(2, EndpointPolicy(share=0.1, allowance=5))
    cut = 0
    for call in range(1000):
        number, patience_s = pool.begin(call)
        if patience_s is not None:
            cut += 1
            pool.silent(number, call, call + patience_s, was_cut=True)
            number, _ = pool.begin(call, [number])
        pool.answered(number, call, call + 5.0)
    assert 90 <= cut + pool.counts(0).probes + pool.counts(1).probes <= 105


def test_without_a_share_nothing_is_cut_and_servers_come_back_by_themselves():
    pool = EndpointPool(2, EndpointPolicy(share=0))
    assert pool.begin(0.0) == (0, None)
    pool.failed(0, 0.0)
    assert pool.begin(0.5)[0] == 1
    assert pool.begin(0.5)[0] == 1
    assert pool.due_probe(2.0) is None
    assert {ask(pool, 2.0)[0] for _ in range(2)} == {0, 1}


@pytest.mark.parametrize("wrong", [{"share": -0.1}, {"share": 1.1}, {"rest_s": 0}, {"patience": float("nan")}])
def test_limits_that_make_no_sense(wrong):
    with pytest.raises(ConfigError):
        EndpointPolicy(**wrong)


# -- in virtual time -------------------------------------------------------------------------------------------------


@dataclass
class Story:
    """Callers and servers in virtual time; each caller does what the serving client does."""

    callers: int
    seed: int
    hung: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By server, from when to when it is silent; a request of that time is answered afterwards."""
    dropped: dict[int, tuple[float, float]] = field(default_factory=dict)
    """The same, but a request of that time is never answered."""
    refusing: dict[int, tuple[float, float]] = field(default_factory=dict)
    """The same, but a request of that time fails at once."""
    slow: float = 1.0
    """The factor of all servers' times in the second half."""
    hiccups: float = 0.0
    """The share of requests that take half a second longer, on any server."""
    pause_s: float = 0.0
    until: float = 30.0
    calls: list[tuple[float, float | None]] = field(default_factory=list)
    """When each call began and how long it took; None: it failed."""
    asked: int = 0

    def run(self) -> Story:
        self.rng = random.Random(self.seed)
        self.pool = EndpointPool(2)
        self._events = []
        self._order = itertools.count()
        for _ in range(self.callers):
            self._spawn(self.rng.random() * 0.01, self._caller())
        while self._events and self._events[0][0] < self.until:
            now, _, each = heapq.heappop(self._events)
            wait_s = each.send(now)
            if wait_s is not None:
                heapq.heappush(self._events, (now + wait_s, next(self._order), each))
        return self

    def slower_than(self, limit_s):
        """Return the share of calls."""
        return sum(took is None or took > limit_s for _, took in self.calls) / len(self.calls)

    def quantile(self, share):
        return sorted(took for _, took in self.calls if took is not None)[int(share * len(self.calls))]

    @property
    def failed(self):
        return sum(took is None for _, took in self.calls)

    def _spawn(self, now, each):
        next(each)
        heapq.heappush(self._events, (now, next(self._order), each))

    def _answer_s(self, server, now):
        """Return the time that a server takes to answer a request of now; 0: it fails at once."""
        self.asked += 1
        usual_s = 0.004 * self.rng.lognormvariate(0, 0.35) * (self.slow if now > self.until / 2 else 1.0)
        if self.hiccups and self.rng.random() < self.hiccups:
            usual_s += 0.5
        for times, instead_s in ((self.refusing, 0.0), (self.dropped, math.inf), (self.hung, None)):
            begin, end = times.get(server, (math.inf, math.inf))
            if begin <= now < end or begin <= now + usual_s < end:
                return end - now + usual_s if instead_s is None else instead_s
        return usual_s

    def _caller(self):
        """One thread with one call after the other: yields how long to wait, is sent the time."""
        now = yield
        while True:
            begun, tried, took = now, [], None
            while took is None and len(tried) < 4 and now < begun + DEADLINE_S:
                tried_at = now
                number, patience_s = self.pool.begin(now, tried)
                tried.append(number)
                limit_s = begun + DEADLINE_S - now if patience_s is None else patience_s
                answer_s = self._answer_s(number, now)
                now = yield min(limit_s, answer_s)
                if answer_s == 0:
                    self.pool.failed(number, now)
                elif answer_s <= limit_s:
                    self.pool.answered(number, tried_at, now)
                    took = now - begun
                else:
                    self.pool.silent(number, tried_at, now, was_cut=patience_s is not None)
            self.calls.append((begun, took))
            due = self.pool.due_probe(now) if took is not None else None
            if due is not None:
                self._spawn(now, self._probe(*due))
            now = yield self.pause_s

    def _probe(self, number, timeout_s):
        begun = yield
        answer_s = self._answer_s(number, begun)
        now = yield min(answer_s, timeout_s)
        self.pool.probed(number, begun, now, answered=0 < answer_s <= timeout_s)
        yield None


@pytest.mark.parametrize("fault", ["hung", "dropped", "refusing"])
@pytest.mark.parametrize(("callers", "pause_s"), [(1, 0.0), (8, 0.02), (64, 0.1)])
def test_one_call_in_a_hundred_is_slow_at_most_while_one_of_two_servers_is_silent(fault, callers, pause_s):
    for seed in range(2):
        normal = Story(callers, seed, pause_s=pause_s, until=10.0).run()
        story = Story(callers, seed, pause_s=pause_s, until=20.0, **{fault: {0: (3.0, 100.0)}}).run()
        assert (normal.failed, story.failed) == (0, 0)
        assert story.slower_than(2 * normal.quantile(0.99)) <= 0.01
        assert max(took for _, took in story.calls) < 0.5  # of a deadline of 20
        assert story.pool.counts(0).rests >= 3
        assert story.asked <= 1.1 * len(story.calls) + 10 + callers


@pytest.mark.parametrize("fault", ["hung", "dropped"])
def test_a_slow_answer_does_not_send_a_call_to_the_server_that_hangs_for_good(fault):
    story = Story(4, 1, hiccups=0.005, pause_s=0.01, **{fault: {0: (3.0, 100.0)}}).run()
    assert story.failed == 0
    assert max(took for _, took in story.calls) < 3.0


def test_a_server_that_is_back_is_asked_again():
    story = Story(8, 1, hung={0: (3.0, 8.0)}, pause_s=0.01).run()
    assert story.failed == 0
    assert not story.pool.is_resting(0, story.until)
    assert story.pool.counts(0).answered > 0.3 * len(story.calls)


def test_then_the_other_one_hangs():
    story = Story(
        8, 1, hung={0: (3.0, 8.0), 1: (9.0, 14.0)}, pause_s=0.01
    ).run()  # while the first one still rests, or nearly
    assert story.failed == 0
    assert story.slower_than(1.5) == 0  # a server that rests is asked after a sure silence of one second


def test_a_time_when_both_hang_ends_with_it():
    story = Story(8, 1, hung={0: (3.0, 8.0), 1: (4.0, 8.0)}, pause_s=0.01).run()
    assert story.failed == 0  # the deadline is longer
    late = [took for begun, took in story.calls if begun > 8.5]
    assert len(late) > 1000
    assert max(late) < 0.5


def test_an_overload_is_not_amplified():
    """Everything takes fifty times as long from one moment on: tries are cut for a while, not for ever."""
    story = Story(32, 1, slow=50.0, until=10.0).run()
    assert story.failed == 0
    assert story.asked <= 1.1 * len(story.calls) + 10 + story.callers
    patience_s = story.pool.begin(story.until)[1]
    assert patience_s is None or patience_s > 0.3  # it has learned
