"""Tags and their history in a real registry, alone, raced, killed, and meddled with by other tools."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
import requests
from registry_lab import HERE, Answer, push, registry

from cloudedge.clock import ManualClock
from cloudedge.errors import (
    CloudEdgeError,
    Conflict,
    InputError,
    IntegrityError,
    NotFound,
    Rejected,
    Unavailable,
)
from cloudedge.hub._oci import IMAGE_INDEX, Digest
from cloudedge.hub._registry import RegistryHub
from cloudedge.hub._registry_events import UNKNOWN_TIME, untag_marker
from cloudedge.hub._registry_tags import CLAIM_LIFE_S
from cloudedge.hub._tags import current

AT = "2026-01-0{}T00:00:00Z".format


def move(hub, tag, manifest, n=1, **more):
    target = manifest.descriptor if manifest else None
    return hub.move_tag("ctr", tag, target, by=f"user {n}", at=AT(n), **more)


def pointer(hub, tag):
    """Return where the registry's own tag points, as any other tool sees it."""
    found = hub._repository("ctr").head_manifest(tag)
    return found and found.digest


def foreign_push(hub, tag, manifest):
    hub._repository("ctr").put_manifest(tag, manifest)


@pytest.fixture
def three(hub):
    return [push(hub, "ctr", b"layer %d" % n) for n in range(3)]


def test_a_tag_and_its_history(hub, three):
    a, b, _ = three
    first = move(hub, "live", a, 1)
    assert (first.target, first.seq, first.since, first.by, first.is_current) == (
        a.descriptor,
        1,
        AT(1),
        "user 1",
        True,
    )
    move(hub, "live", b, 2)
    assert move(hub, "live", b, 3).since == AT(2)  # it is there already
    assert pointer(hub, "live") == b.digest
    entries = hub.tags("ctr")
    assert [(e.target.digest, e.seq, e.since, e.by, e.until, e.ended_by) for e in entries] == [
        (a.digest, 1, AT(1), "user 1", AT(2), "user 2"),
        (b.digest, 2, AT(2), "user 2", "", ""),
    ]
    assert RegistryHub(hub.url).tags("ctr") == entries


def test_names_and_tags_of_nothing(hub, three):
    assert hub.names() == ["ctr"]
    assert hub.tags("ctr") == []
    assert hub.tags("nobody") == []


def test_names_over_several_pages(hub, proxied, proxy):
    names = [f"n{i}" for i in range(7)]
    for name in names:
        push(hub, name, b"x")
    proxy.rule = lambda seen: setattr(seen, "path", seen.path + "?n=2") if seen.path.endswith("_catalog") else None
    assert proxied.names() == names
    assert proxy.count("GET") > 3


def test_a_registry_without_a_catalog_says_so(proxied, proxy):
    for status in (401, 403, 404, 405):
        proxy.rule = lambda seen, status=status: Answer(status)
        with pytest.raises(Rejected, match="does not list its repositories"):
            proxied.names()


def test_pages_that_never_end(proxied, proxy):
    proxy.rule = lambda seen: Answer(200, {"Link": '</v2/_catalog>; rel="next"'}, b'{"repositories": ["a"]}')
    with pytest.raises(Unavailable, match="do not end"):
        proxied.names()


def test_expected(hub, three):
    a, b, c = three
    move(hub, "live", a, 1, expected=None)
    with pytest.raises(Conflict):
        move(hub, "live", b, 2, expected=None)
    with pytest.raises(Conflict):
        move(hub, "live", b, 2, expected=c.digest)
    move(hub, "live", b, 2, expected=a.digest)
    assert current(hub.tags("ctr"), "live").target == b.descriptor


def test_versions_never_change(hub, three):
    a, b, _ = three
    move(hub, "1.2.0", a)
    assert move(hub, "1.2.0", a, 2).since == AT(1)
    with pytest.raises(Conflict, match="versions never change"):
        move(hub, "1.2.0", b)
    move(hub, "1.2.0", None, 3)
    with pytest.raises(Conflict, match="versions never change"):
        move(hub, "1.2.0", b)
    move(hub, "1.2.0", a, 4)
    assert [e.until for e in hub.tags("ctr")] == [AT(3), ""]


def test_a_version_another_tool_pushed_is_as_firm(hub, three):
    a, b, _ = three
    foreign_push(hub, "7", a)
    with pytest.raises(Conflict, match="versions never change"):
        move(hub, "7", b)
    move(hub, "7", None, 2)
    with pytest.raises(Conflict, match="versions never change"):
        move(hub, "7", b)


def test_tagging_what_is_not_there(hub, three):
    ghost = three[0].descriptor.__class__("x", Digest("sha256:" + "0" * 64), 3)
    with pytest.raises(NotFound, match="Push the bundle first"):
        hub.move_tag("ctr", "live", ghost, by="u", at=AT(1))
    assert hub.tags("ctr") == []


@pytest.mark.parametrize("tag", ["cloudedge-event.x", "cloudedge-claim.x", "", "-x", "a/b", "x" * 129])
def test_tags_that_are_not_ours_to_give(hub, three, tag):
    with pytest.raises(InputError, match="not a tag"):
        move(hub, tag, three[0])


@pytest.mark.parametrize("length", [1, 88, 89, 90, 94, 127, 128])
def test_tags_of_strange_length(hub, three, length):
    tag = ("a.B_c-" * 30)[: length - 1] + "z"
    move(hub, tag, three[0], 1)
    move(hub, tag, three[1], 2)
    assert [(e.tag, e.target.digest) for e in hub.tags("ctr")] == [(tag, m.digest) for m in three[:2]]


def test_untag_where_only_digests_can_be_deleted(hub, three):
    a, b, _ = three
    for tag in ("live", "beta", "3"):
        move(hub, tag, a)
    assert move(hub, "live", None, 2) is None
    assert pointer(hub, "live") is None
    assert pointer(hub, "beta") == pointer(hub, "3") == a.digest  # the manifest and its other tags stay
    assert hub.read_manifest("ctr", a.digest) == a
    assert [(e.tag, e.until) for e in hub.tags("ctr")] == [("3", ""), ("beta", ""), ("live", AT(2))]
    with pytest.raises(NotFound, match="there is no tag live"):
        move(hub, "live", None, 3)
    move(hub, "live", b, 4)
    assert [(e.seq, e.until) for e in hub.tags("ctr") if e.tag == "live"] == [(1, AT(2)), (3, "")]


def test_untag_where_tags_can_be_deleted(proxied, proxy, hub):
    """As OCI 1.1 has it; the registry here cannot, so the proxy does it by the other way."""
    manifest = push(proxied, "ctr", b"x")
    move(proxied, "live", manifest)

    def rule(seen):
        if seen.method == "DELETE" and seen.path.endswith("/live"):
            hub._tags_of("ctr")._remove("live")
            return Answer(202)
        return None

    proxy.rule = rule
    proxy.seen.clear()
    move(proxied, "live", None, 2)
    assert pointer(proxied, "live") is None
    assert not [s for s in proxy.seen if s.method == "PUT" and s.path.endswith("/live")]


def test_untag_where_deletion_is_off_changes_nothing(tmp_path):
    with registry(tmp_path, delete=False) as host:
        hub = RegistryHub(f"oci://{host}/models")
        manifest = push(hub, "ctr", b"x")
        move(hub, "live", manifest)
        before = hub._repository("ctr").list_tags()
        with pytest.raises(Rejected, match="405") as caught:
            move(hub, "live", None, 2)
        assert "storage.delete.enabled: true" in caught.value.hint
        assert hub._repository("ctr").list_tags() == before
        assert pointer(hub, "live") == manifest.digest
        assert current(hub.tags("ctr"), "live").target == manifest.descriptor


def test_events_are_no_tags_and_signatures_are(hub, three):
    a, b, _ = three
    move(hub, "live", a)
    signature = f"sha256-{a.digest[7:]}.sig"
    foreign_push(hub, signature, b)
    assert any(t.startswith("cloudedge-event.") for t in hub._repository("ctr").list_tags())
    assert [(e.tag, e.since, e.by) for e in hub.tags("ctr")] == [
        ("live", AT(1), "user 1"),
        (signature, "", ""),
    ]
    assert hub.tags("ctr")[1].target == b.descriptor


def test_other_tools_push_move_and_delete(hub, three):
    a, b, c = three
    foreign_push(hub, "live", a)
    assert [(e.target.digest, e.since, e.by) for e in hub.tags("ctr")] == [(a.digest, "", "")]
    move(hub, "live", b, 2)  # and what was there before is remembered
    assert [(e.target.digest, e.since, e.until) for e in hub.tags("ctr")] == [
        (a.digest, "", AT(2)),
        (b.digest, AT(2), ""),
    ]
    foreign_push(hub, "live", c)
    assert [(e.target.digest, e.until) for e in hub.tags("ctr")][1:] == [
        (b.digest, UNKNOWN_TIME),
        (c.digest, ""),
    ]
    assert move(hub, "live", c, 3).since == ""  # it is there already, and stays
    assert pointer(hub, "live") == c.digest
    move(hub, "live", a, 4, expected=c.digest)
    assert [e.target.digest for e in hub.tags("ctr")] == [a.digest, b.digest, c.digest, a.digest]
    hub._tags_of("ctr")._remove("live")
    assert [e.until for e in hub.tags("ctr")][-1] == UNKNOWN_TIME
    with pytest.raises(NotFound):
        move(hub, "live", None, 5)


class Killed(BaseException):
    pass


def kill_after_record(hub, monkeypatch):
    """Make the hub's next move end right after it was recorded."""

    def die(*args):
        raise Killed

    monkeypatch.setattr(hub._tags_of("ctr"), "_settle", die)


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
    theirs = rival._tags_of("ctr")._next("3", three[0].descriptor, [])
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
    claimed = hub._tags_of("ctr")._next("live", three[0].descriptor, [])
    hub._repository("ctr").put_manifest(claimed.name.claim, claimed.to_manifest())
    assert hub.tags("ctr") == []
    assert move(hub, "live", three[1]).is_current  # a move that need not be alone waits for nobody


def test_the_claim_of_the_dead_is_given_up_in_time(url, hub, three):
    a, b, _ = three
    dead = hub._tags_of("ctr")._next("3", a.descriptor, [])
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


def test_something_else_under_an_events_name(hub, three):
    foreign_push(hub, "cloudedge-event.live.00000001.00000000", three[0])
    with pytest.raises(IntegrityError, match="holds something else"):
        hub.tags("ctr")


def test_a_registry_that_does_not_name_digests(proxied, proxy, three):
    def forget(seen, answer):
        answer.headers.pop("docker-content-digest", None)
        return answer

    proxy.after = forget
    move(proxied, "live", three[0])
    assert current(proxied.tags("ctr"), "live").target == three[0].descriptor


def test_any_client_can_read_the_record(hub, three):
    move(hub, "live", three[0])
    host, path = hub.url.removeprefix("oci://").split("/", 1)
    (name,) = [t for t in hub._repository("ctr").list_tags() if t.startswith("cloudedge-event.")]
    answer = requests.get(f"http://{host}/v2/{path}/ctr/manifests/{name}", headers={"Accept": IMAGE_INDEX}, timeout=10)
    assert answer.json()["manifests"] == [three[0].descriptor.to_json()]


def test_what_could_be_garbage_and_what_is_discarded(url, three):
    clock = ManualClock()
    hub = RegistryHub(url, clock=clock)
    a, b, c = three
    move(hub, "live", a, 1)
    move(hub, "live", b, 2)
    move(hub, "5", c, 2)
    move(hub, "beta", a, 3)
    with hub.writing(), hub.collecting():
        assert list(hub.stored()) == []
    move(hub, "beta", c, 4)
    clock.elapsed = 10 * 86400
    (found,) = hub.stored()
    assert (found.digest, found.size) == (a.digest, len(a.raw))
    with pytest.raises(NotFound, match="not among what could be garbage"):
        hub.discard(b.digest)
    hub.discard(a.digest)
    assert list(hub.stored()) == []
    with pytest.raises(NotFound):
        hub.read_manifest("ctr", a.digest)
    assert pointer(hub, "live") == b.digest
    assert [e.target.digest for e in hub.tags("ctr") if e.tag == "live"] == [
        a.digest,
        b.digest,
    ]  # history stays


def test_what_is_tagged_again_is_not_discarded(hub, three):
    a, b, _ = three
    move(hub, "live", a, 1)
    move(hub, "live", b, 2)
    assert [s.digest for s in hub.stored()] == [a.digest]
    foreign_push(hub, "kept", a)
    with pytest.raises(Conflict, match="points to it again"):
        hub.discard(a.digest)
    assert hub.read_manifest("ctr", a.digest) == a


def test_what_an_index_names_is_not_garbage(hub, three):
    from cloudedge.hub._oci import Manifest, canonical_json  # noqa: PLC0415

    a, b, _ = three
    move(hub, "live", a, 1)
    index = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [a.descriptor.to_json()]}
    foreign_push(hub, "both", Manifest.parse(canonical_json(index)))
    move(hub, "live", b, 2)
    assert list(hub.stored()) == []
