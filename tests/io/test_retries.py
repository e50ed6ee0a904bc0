"""Attempts that are repeated: how often, after which pauses, until when; and one layer that owns them."""

import pytest

from cloudedge.clock import ManualClock
from cloudedge.cube.delivery._delivery_plan import DeliveryPolicy
from cloudedge.cube.delivery._replica_steps import StepRunner
from cloudedge.errors import DeadlineExceeded, Rejected, Unavailable
from cloudedge.io import Backoff, Patience, retry

pytestmark = pytest.mark.rules

STEADY = Backoff(1.0, 8.0, 1.0, 1.0)


class Failing:
    """Fails so many times, then answers."""

    def __init__(self, times, error=Unavailable):
        self.left, self.error, self.calls = times, error, 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.left:
            raise self.error(f"failure {self.calls}")
        return "answer"


def is_away(error):
    return isinstance(error, Unavailable)


def test_pauses_double_up_to_a_cap_and_keep_within_their_share():
    clock = ManualClock(seed=7)
    backoff = Backoff(0.5, 3.0, 0.5, 1.5)
    for failures, grown in ((1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (5000, 3.0)):
        pauses = [backoff.pause_s(failures, clock) for _ in range(200)]
        assert grown * 0.5 <= min(pauses) < grown * 0.6
        assert grown * 1.4 < max(pauses) <= grown * 1.5
    assert backoff.pause_s(1, clock, at_least_s=20.0) == 20.0


def test_a_call_is_repeated_until_it_answers():
    clock, call = ManualClock(), Failing(3)
    assert retry(call, attempts=4, backoff=STEADY, clock=clock, may_repeat=is_away) == "answer"
    assert (call.calls, clock.elapsed) == (4, 1 + 2 + 4)


def test_the_last_failure_is_raised_without_a_pause_after_it():
    clock, call = ManualClock(), Failing(9)
    with pytest.raises(Unavailable, match="failure 4"):
        retry(call, attempts=4, backoff=STEADY, clock=clock, may_repeat=is_away)
    assert clock.elapsed == 7


def test_a_failure_that_no_repetition_changes_is_raised_at_once():
    clock, call = ManualClock(), Failing(9, Rejected)
    with pytest.raises(Rejected, match="failure 1"):
        retry(call, attempts=4, backoff=STEADY, clock=clock, may_repeat=is_away)
    assert clock.elapsed == 0


def test_no_pause_is_begun_that_ends_after_the_deadline():
    clock, call = ManualClock(), Failing(9)

    def late(error):
        return DeadlineExceeded(f"too late: {error.message}")

    options = {"attempts": 9, "backoff": STEADY, "clock": clock, "may_repeat": is_away, "deadline": 6.0}
    with pytest.raises(DeadlineExceeded, match="too late: failure 3"):
        retry(call, late=late, **options)
    assert clock.elapsed == 3
    with pytest.raises(Unavailable, match="failure 5"):
        retry(call, **options)


def test_a_server_s_wish_is_heard_up_to_a_limit():
    clock, call = ManualClock(), Failing(1)
    options = {"attempts": 4, "backoff": STEADY, "clock": clock, "may_repeat": is_away}
    assert retry(call, at_least_s=lambda _: 25.0, **options) == "answer"
    assert clock.elapsed == 25
    with pytest.raises(Unavailable):
        retry(Failing(1), at_least_s=lambda _: 31.0, **options)


def test_what_brought_something_begins_the_count_anew():
    clock = ManualClock()
    patience = Patience(3, STEADY, clock)
    assert [patience.wait(progressed=progressed) for progressed in (False, False, True, False, False)] == [
        True, True, True, True, False
    ]  # fmt: skip
    assert clock.elapsed == 1 + 2 + 1 + 2


class Away:
    name, shard = "table/0/0", 0


def test_a_delivery_owns_its_retries_and_a_release_does_not_repeat_them():
    clock, step = ManualClock(), Failing(99)
    with pytest.raises(Unavailable, match=r"failed \(6 times\)") as given_up:
        StepRunner(DeliveryPolicy(), clock).call(Away(), "staging", step, deadline=3600)
    assert step.calls == 6
    assert 5 < clock.elapsed < 25
    assert given_up.value.was_repeated


def test_a_delivery_counts_the_failure_that_ended_it():
    first = Failing(99)

    def step():
        return first() if first.calls < 2 else Failing(1, Rejected)()

    with pytest.raises(Rejected, match=r"failed \(3 times\)"):
        StepRunner(DeliveryPolicy(), ManualClock()).call(Away(), "staging", step, deadline=3600)
