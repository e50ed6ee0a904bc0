"""Movers of one tag in a real registry that race each other, come too late, or die."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import (
    CloudEdgeError,
    Conflict,
    NotFound,
)
from cloudedge.hub.core._tags import current
from cloudedge.hub.registry._registry_hub import RegistryHub
from cloudedge.hub.registry._tag_events import untag_marker
from cloudedge.hub.registry._tags import CLAIM_LIFE_S
from tests.hub.registry.servers import AT, HERE, foreign_push, move, pointer, push

pytestmark = pytest.mark.parts


class Killed(BaseException):
    pass


def kill_after_record(hub, monkeypatch):
    """Make the hub's next move end right after it was recorded."""

    def die(*args):
        raise Killed

    monkeypatch.setattr(hub._tags_of("ctr"), "_align_pointer", die)


@pytest.mark.parametrize("again", ["same move", "another move", "untag"])
def test_a_mover_that_was_killed(url, hub, three, monkeypatch, again):
    a, b, c = three
    move(hub, "live", a, 1)
    kill_after_record(hub, monkeypatch)
    with pytest.raises(Killed):
        move(hub, "live", b, 2)
    other = RegistryHub(url)
    assert pointer(other, "live") == a.digest
    assert [(e.target.digest, e.until) for e in other.tags("ctr")] == [(a.digest, AT(2)), (b.digest, "")]
    assert pointer(other, "live") == a.digest  # reading writes nothing
    if again == "same move":
        assert move(other, "live", b, 3).since == AT(2)
        assert pointer(other, "live") == b.digest
    elif again == "another move":
        move(other, "live", c, 3, expected=b.digest)
        assert pointer(other, "live") == c.digest
        assert [e.target.digest for e in other.tags("ctr")] == [a.digest, b.digest, c.digest]
    else:
        move(other, "live", None, 3)
        assert pointer(other, "live") is None


@pytest.mark.parametrize("marker", [False, True])
def test_an_untagger_that_was_killed(url, hub, three, monkeypatch, marker):
    move(hub, "live", three[0], 1)
    kill_after_record(hub, monkeypatch)
    with pytest.raises(Killed):
        move(hub, "live", None, 2)
    if marker:  # killed one step later
        foreign_push(hub, "live", untag_marker("live"))
    other = RegistryHub(url)
    assert current(other.tags("ctr"), "live") is None
    with pytest.raises(NotFound):
        move(other, "live", None, 3)
    assert pointer(other, "live") is None


def test_the_first_mover_of_a_tag_was_killed(url, hub, three, monkeypatch):
    kill_after_record(hub, monkeypatch)
    with pytest.raises(Killed):
        move(hub, "live", three[0], 1)
    other = RegistryHub(url)
    assert current(other.tags("ctr"), "live").target == three[0].descriptor
    move(other, "live", three[0], 2)
    assert pointer(other, "live") == three[0].digest


def test_eight_movers_of_one_tag(hub, url):
    """Each in its own process, five moves each: all in the history, and the tag where the newest one says."""
    manifests = [push(hub, "ctr", b"layer", note=str(i)) for i in range(40)]
    movers = []
    try:
        for n in range(8):
            targets = json.dumps([m.descriptor.to_json() for m in manifests[n * 5 : n * 5 + 5]])
            command = [sys.executable, str(HERE / "mover.py"), url, str(n), targets]
            movers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for mover in movers:
            assert mover.stdout.readline() == b"ready\n"
        for mover in movers:
            mover.stdin.write(b"go\n")
            mover.stdin.flush()
        assert [mover.wait(120) for mover in movers] == [0] * 8
    finally:
        for mover in movers:
            mover.kill()
            mover.communicate()
    entries = hub.tags("ctr")
    assert sorted(e.target.digest for e in entries) == sorted(m.digest for m in manifests)
    assert [e.is_current for e in entries] == [False] * 39 + [True]
    assert pointer(hub, "live") == entries[-1].target.digest
    for n in range(8):  # each mover's own moves in its own order
        own = [e.since for e in entries if e.by == f"mover {n}"]
        assert own == sorted(own)


def race(url, moves):
    """Run moves at once, each with a hub of its own; return what they returned or raised."""
    results = [None] * len(moves)
    barrier = threading.Barrier(len(moves))

    def run(i):
        hub = RegistryHub(url)
        barrier.wait()
        try:
            results[i] = moves[i](hub)
        except CloudEdgeError as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(moves))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("round_", range(4))
@pytest.mark.parametrize("kind", ["expected", "version"])
def test_of_racing_movers_who_must_be_alone_at_most_one_succeeds(hub, url, three, kind, round_):
    base = push(hub, "ctr", b"base")
    tag, expected = ("live", base.digest) if kind == "expected" else ("5", None)
    if kind == "expected":
        move(hub, "live", base, 1)
    results = race(url, [lambda h, m=m: move(h, tag, m, 2, expected=expected) for m in three])
    won = [m for m, result in zip(three, results, strict=True) if not isinstance(result, Exception)]
    assert [r for r in results if isinstance(r, Exception) and not isinstance(r, Conflict)] == []
    assert len(won) <= 1
    now = current(hub.tags("ctr"), tag)
    if won:
        assert now.target == won[0].descriptor
        assert pointer(hub, tag) == won[0].digest
    assert [e.target.digest for e in hub.tags("ctr") if e.tag == tag] == [
        m.digest for m in ([base] if kind == "expected" else []) + won
    ]


def rival_before(hub, method, rival):
    """Have a rival act once, in the very moment before the hub's tags do `method`."""
    tags = hub._tags_of("ctr")
    original, done = getattr(tags, method), []

    def late(*args, **more):
        if not done:
            done.append(True)
            rival()
        return original(*args, **more)

    setattr(tags, method, late)


def with_chance(url, number):
    """Return a hub whose nonces are all made of one number, and whose waiting takes no time."""
    clock = ManualClock()
    clock.random = lambda: number
    return RegistryHub(url, clock=clock)


BOTH_ORDERS = pytest.mark.parametrize("chances", [(0.1, 0.9), (0.9, 0.1)])


@BOTH_ORDERS
@pytest.mark.parametrize("rival_expects", [True, False])
def test_a_late_mover_with_an_expectation_gives_way(url, three, chances, rival_expects):
    a, b, c = three
    hub, rival = with_chance(url, chances[0]), with_chance(url, chances[1])
    move(hub, "live", a, 1)
    more = {"expected": a.digest} if rival_expects else {}
    rival_before(hub, "_claim", lambda: move(rival, "live", b, 2, **more))
    with pytest.raises(Conflict, match=f"is at {b.digest}"):
        move(hub, "live", c, 3, expected=a.digest)
    assert [e.target.digest for e in hub.tags("ctr")] == [a.digest, b.digest]
    assert pointer(hub, "live") == b.digest


@BOTH_ORDERS
def test_a_late_mover_of_a_version_gives_way(url, three, chances):
    hub, rival = with_chance(url, chances[0]), with_chance(url, chances[1])
    rival_before(hub, "_claim", lambda: move(rival, "3", three[0], 1))
    with pytest.raises(Conflict, match="versions never change"):
        move(hub, "3", three[1], 2)
    assert [e.target.digest for e in hub.tags("ctr")] == [three[0].digest]
    assert pointer(hub, "3") == three[0].digest


@BOTH_ORDERS
def test_two_who_see_each_others_claims_both_give_way_and_one_wins_later(url, three, chances):
    """The rival's claim appears between our first look and our claim, and is open until we have looked."""
    hub, rival = with_chance(url, chances[0]), with_chance(url, chances[1])
    theirs = rival._tags_of("ctr")._next_event("3", three[0].descriptor, [])
    looks = []
    original = hub._tags_of("ctr")._has_rivals

    def look(*args):
        looks.append(original(*args))
        if len(looks) == 1:
            rival._repository("ctr").put_manifest(theirs.name.claim, theirs.to_manifest())
        if len(looks) == 2:
            rival._repository("ctr").put_manifest(theirs.name.void, theirs.to_manifest())
        return looks[-1]

    hub._tags_of("ctr")._has_rivals = look
    assert move(hub, "3", three[1], 2).target == three[1].descriptor
    assert looks == [False, True, False, False]
    assert any(t.startswith("cloudedge-claim.") and t.endswith(".void") for t in hub._repository("ctr").list_tags())


def test_a_claim_moves_nothing(url, hub, three):
    claimed = hub._tags_of("ctr")._next_event("live", three[0].descriptor, [])
    hub._repository("ctr").put_manifest(claimed.name.claim, claimed.to_manifest())
    assert hub.tags("ctr") == []
    assert move(hub, "live", three[1]).is_current  # a move that need not be alone waits for nobody


def test_the_claim_of_the_dead_is_given_up_in_time(url, hub, three):
    a, b, _ = three
    dead = hub._tags_of("ctr")._next_event("3", a.descriptor, [])
    hub._repository("ctr").put_manifest(dead.name.claim, dead.to_manifest())
    clock = ManualClock()
    assert move(RegistryHub(url, clock=clock), "3", b, expected=None).target == b.descriptor
    assert CLAIM_LIFE_S < clock.elapsed < CLAIM_LIFE_S + 5
    assert dead.name.void in hub._repository("ctr").list_tags()


def test_a_mover_that_was_too_slow_does_not_record(url, three):
    """Somebody may have given its claim up meanwhile."""
    clock = ManualClock()
    hub = RegistryHub(url, clock=clock)
    repository = hub._tags_of("ctr")._repo
    slow = []

    class Slow:
        def __getattr__(self, name):
            return getattr(repository, name)

        def put_manifest(self, reference, manifest):
            if reference.startswith("cloudedge-claim.") and not slow:
                slow.append(reference)
                clock.elapsed += CLAIM_LIFE_S
            repository.put_manifest(reference, manifest)

    hub._tags_of("ctr")._repo = Slow()
    move(hub, "3", three[0])
    (first,) = slow
    listed = hub._repository("ctr").list_tags()
    assert first + ".void" in listed
    assert first.replace("claim", "event") not in listed
    assert len([t for t in listed if t.startswith("cloudedge-event.3.")]) == 1


def test_movers_that_never_stop_are_a_conflict(url, hub, three):
    clock = ManualClock()
    patient = RegistryHub(url, clock=clock)
    patient._tags_of("ctr")._has_rivals = lambda *args: True
    with pytest.raises(Conflict, match="others kept moving it"):
        move(patient, "3", three[0])
    assert 60 < clock.elapsed < 70
    assert hub.tags("ctr") == []


@BOTH_ORDERS
def test_a_late_mover_without_an_expectation_is_in_the_history_and_both_agree(url, three, chances):
    a, b, c = three
    hub, rival = with_chance(url, chances[0]), with_chance(url, chances[1])
    move(RegistryHub(url), "live", a, 1)
    rival_before(hub, "_record", lambda: move(rival, "live", b, 2))
    entry = move(hub, "live", c, 3)
    assert entry.target == c.descriptor
    entries = hub.tags("ctr")
    assert {e.target.digest for e in entries} == {m.digest for m in three}
    winner = c if chances[0] > chances[1] else b
    assert entries[-1].target == winner.descriptor
    assert entry.is_current == (winner is c)
    assert pointer(hub, "live") == winner.digest
