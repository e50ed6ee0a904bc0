"""One step on one replica: how often it is tried, how long it waits, and what its failure says."""

from __future__ import annotations

import pytest

from cloudedge.clock import ManualClock
from cloudedge.cube.delivery import DeliveryPolicy, ReplicaStatus, ShardRows, VersionState
from cloudedge.cube.delivery._replica_steps import StepRunner
from cloudedge.errors import Conflict, DeadlineExceeded, IntegrityError, Rejected, Unavailable

pytestmark = pytest.mark.rules


class Fake:
    """A replica that says what it was made to say; for decisions only, deliveries have real servers."""

    name, shard = "emb/3/1", 3

    def __init__(self, status: ReplicaStatus | None = None, answers: dict[int, bytes] | None = None) -> None:
        self._status, self._answers = status, answers or {}

    def status(self) -> ReplicaStatus | None:
        return self._status

    def probe(self, name: str, keys: list[int]) -> list[bytes | None]:
        return [self._answers.get(key) for key in keys]


def fails(times: int, error: Exception):
    calls: list[int] = []

    def step() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return step, calls


def test_what_may_pass_is_tried_again_and_what_will_not_is_not():
    clock = ManualClock()
    steps, began = StepRunner(DeliveryPolicy(attempts=4, pause_s=1), clock), clock.monotonic()
    step, calls = fails(3, Unavailable("no answer"))
    assert steps.call(Fake(), "to load v", step, deadline=began + 100) == "done"
    assert len(calls) == 4
    assert 3.5 <= clock.monotonic() - began <= 10.5  # 1 + 2 + 4 seconds, half to one and a half times each
    step, calls = fails(4, Unavailable("no answer", hint="Start it."))
    with pytest.raises(Unavailable, match=r"to load v on emb/3/1, shard 3 of table 'emb', failed \(4 times\)") as found:
        steps.call(Fake(), "to load v", step, deadline=began + 100)
    assert (found.value.table, found.value.shard, found.value.replica) == ("emb", 3, "emb/3/1")
    assert found.value.hint == "Start it."
    step, calls = fails(1, Rejected("no"))
    with pytest.raises(Rejected):
        steps.call(Fake(), "to load v", step, deadline=began + 100)
    assert len(calls) == 1


def test_a_replica_that_takes_requests_and_answers_none_is_hung():
    """Every attempt waits for a time-out: eight of them and their pauses took three minutes."""
    clock = ManualClock()
    steps = StepRunner(DeliveryPolicy(attempts=8, pause_s=0.5), clock)
    calls = []

    def step(error: Unavailable | None = None) -> None:
        calls.append(1)
        clock.sleep(10)
        raise error or Unavailable("no answer", silent=True)

    with pytest.raises(Unavailable, match=r"failed \(4 times\): no answer"):
        steps.call(Fake(), "to load v", step, deadline=clock.monotonic() + 600)
    assert clock.monotonic() < 60
    calls.clear()
    with pytest.raises(Unavailable, match=r"failed \(8 times\)"):  # it refuses: it may be restarting
        steps.call(Fake(), "to load v", lambda: step(Unavailable("refused")), deadline=clock.monotonic() + 600)
    assert len(calls) == 8


def test_time_that_is_over_is_not_waited_for():
    clock = ManualClock()
    step, calls = fails(9, Unavailable("no answer"))
    with pytest.raises(DeadlineExceeded, match="time for this delivery is over; last, no answer"):
        StepRunner(DeliveryPolicy(attempts=9, pause_s=5), clock).call(
            Fake(), "to stage v", step, deadline=clock.monotonic() + 1
        )
    assert len(calls) == 1


ROWS = ShardRows(10, "a" * 32, ((1, b"one"), (2, b"two")))
RIGHT = VersionState("loaded", 10, "a" * 32)


@pytest.mark.parametrize(
    ("status", "answers", "error", "words"),
    [
        ({"v": RIGHT}, {1: b"one", 2: b"two"}, None, ""),
        ({}, {}, Conflict, "not loaded"),
        ({"v": VersionState("staged", 10, "a" * 32)}, {}, Conflict, "not loaded"),
        ({"v": VersionState("loaded", 9, "a" * 32)}, {}, IntegrityError, "it has 9 rows"),
        ({"v": VersionState("loaded", 10, "b" * 32)}, {}, IntegrityError, "b{32}, not 10 rows a{32}"),
        ({"v": RIGHT}, {1: b"one"}, IntegrityError, "key 2 of version v reads as nothing"),
        ({"v": RIGHT}, {1: b"one", 2: b"tow"}, IntegrityError, "key 2 of version v reads as 3 other bytes"),
        ({"v": VersionState("loaded")}, {1: b"one", 2: b"two"}, None, ""),
    ],
)
def test_what_is_verified(status, answers, error, words):
    replica = Fake(ReplicaStatus(versions=status), answers)
    steps = StepRunner(DeliveryPolicy(), ManualClock())
    if error is None:
        steps.verify(replica, "v", ROWS)
    else:
        with pytest.raises(error, match=words):
            steps.verify(replica, "v", ROWS)


def test_a_server_without_pins_is_read_once_it_is_active():
    steps = StepRunner(DeliveryPolicy(), ManualClock())
    steps.verify(Fake(ReplicaStatus(versions={"v": RIGHT}, active="u", can_pin=False)), "v", ROWS)
    with pytest.raises(IntegrityError, match="reads as nothing"):
        steps.verify(Fake(ReplicaStatus(versions={"v": RIGHT}, active="v", can_pin=False)), "v", ROWS)
