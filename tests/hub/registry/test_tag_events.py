"""The record of tag moves as a pure function: whatever was written in whatever order, one history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudedge.errors import IntegrityError
from cloudedge.hub.core._oci import IMAGE_MANIFEST, Descriptor, Digest, Manifest
from cloudedge.hub.core._tags import check_tag, current
from cloudedge.hub.registry._tag_events import (
    UNKNOWN_TIME,
    UNSEEN,
    Listing,
    TagEvent,
    effective,
    fold,
    is_reserved,
    untag_marker,
)

pytestmark = pytest.mark.rules


def target(n: int) -> Descriptor:
    return Descriptor(IMAGE_MANIFEST, Digest(f"sha256:{n:064x}"), 100 + n)


def event(seq: int, to: int | None, *, tag="live", nonce=0, previous: int | None = None) -> TagEvent:
    before = None if previous is None else target(previous).digest
    goal = None if to is None else target(to)
    return TagEvent(tag, seq, f"{nonce:08x}", f"t{seq}", f"who{seq}", before, goal)


tags = st.from_regex(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}", fullmatch=True).filter(lambda t: not is_reserved(t))


@st.composite
def histories(draw, tag="live"):
    """Events as movers write them, ties in `seq` included."""
    events, seen = [], set()
    for i in range(draw(st.integers(0, 8))):
        seq = draw(st.integers(max(1, i), i + 1))
        nonce = draw(st.integers(0, 5))
        if (seq, nonce) not in seen:
            seen.add((seq, nonce))
            to = draw(st.one_of(st.none(), st.integers(1, 4)))
            previous = draw(st.one_of(st.none(), st.integers(1, 4)))
            events.append(event(seq, to, tag=tag, nonce=nonce, previous=previous))
    return events


@given(histories(), st.randoms())
def test_the_order_of_writing_does_not_matter(events, random):
    shuffled = list(events)
    random.shuffle(shuffled)
    assert fold("live", shuffled, UNSEEN) == fold("live", events, UNSEEN)


@given(histories())
def test_every_move_is_in_the_history_and_the_newest_one_is_current(events):
    entries = fold("live", events, UNSEEN)
    ordered = sorted(events, key=lambda e: (e.seq, e.nonce))
    assert [e.target for e in entries] == [e.target for e in ordered if e.target]
    assert [e.seq for e in entries] == sorted(e.seq for e in entries)
    now = [e for e in entries if e.is_current]
    if ordered and ordered[-1].target:
        assert now == entries[-1:]
        assert now[0].target == ordered[-1].target
    else:
        assert now == []
    assert all(e.ended_by for e in entries if not e.is_current)


@given(histories("3"))
def test_a_version_points_at_one_manifest_for_ever(events):
    entries = fold("3", events, UNSEEN)
    assert len({e.target.digest for e in entries}) <= 1
    first = next((e for e in sorted(events, key=lambda e: (e.seq, e.nonce)) if e.target), None)
    assert not entries or entries[0].target == first.target


@given(histories(), histories("other"))
def test_other_tags_do_not_matter(events, others):
    assert fold("live", [*events, *others], UNSEEN) == fold("live", events, UNSEEN)


@given(histories(), st.integers(1, 4))
def test_a_pointer_that_lags_behind_changes_nothing(events, n):
    ordered = effective("live", events)
    if target(n).digest in {e.digest for e in ordered}:
        assert fold("live", events, target(n)) == fold("live", events, UNSEEN)


@given(histories())
def test_a_pointer_nobody_recorded_is_current_and_ends_what_was(events):
    entries = fold("live", events, target(99))
    assert current(entries, "live") == entries[-1]
    assert (entries[-1].target, entries[-1].since, entries[-1].by) == (target(99), "", "")
    assert [e.target for e in entries[:-1]] == [e.target for e in fold("live", events, UNSEEN)]
    assert all(e.seq <= entries[-1].seq for e in entries)


CASES = {
    "killed before the first tag was set": ([event(1, 1)], None, [(1, "")]),
    "killed before the tag moved": ([event(1, 1), event(2, 2, previous=1)], target(1), [(1, "t2"), (2, "")]),
    "killed before the tag was removed": ([event(1, 1), event(2, None, previous=1)], target(1), [(1, "t2")]),
    "killed while the tag was removed": (
        [event(1, 1), event(2, None, previous=1)],
        untag_marker("live").descriptor,
        [(1, "t2")],
    ),
    "untagged": ([event(1, 1), event(2, None, previous=1)], None, [(1, "t2")]),
    "set again after an untag, killed": (
        [event(1, 1), event(2, None, previous=1), event(3, 2)],
        None,
        [(1, "t2"), (2, "")],
    ),
    "deleted by another tool": (
        [event(1, 1), event(2, 2, previous=1)],
        None,
        [(1, "t2"), (2, UNKNOWN_TIME)],
    ),
    "pushed by another tool": ([], target(5), [(5, "")]),
    "moved by another tool": ([event(1, 1)], target(5), [(1, UNKNOWN_TIME), (5, "")]),
    "pushed by another tool after an untag": (
        [event(1, 1), event(2, None, previous=1)],
        target(5),
        [(1, "t2"), (5, "")],
    ),
    "never there": ([], None, []),
}


@pytest.mark.parametrize("case", CASES)
def test_pointer_and_record(case):
    events, pointer, expected = CASES[case]
    entries = fold("live", events, pointer)
    assert [(int(e.target.digest[-4:], 16), e.until) for e in entries] == expected


def test_a_stretch_before_the_first_record_keeps_its_unknown_time():
    adopted = TagEvent("live", 1, "0" * 8, "", "", None, target(5))
    entries = fold("live", [adopted, event(2, 1, previous=5)], target(1))
    assert [(e.target, e.since, e.by, e.until) for e in entries] == [
        (target(5), "", "", "t2"),
        (target(1), "t2", "who2", ""),
    ]


@given(tags, st.integers(1, 99_999_999), st.integers(0, 2**32 - 1), st.booleans())
def test_names_fit_and_come_back(tag, seq, number, untag):
    made = event(seq, None if untag else 7, tag=tag, nonce=number, previous=3)
    event_tag, claim, void = str(made.name), made.name.claim, made.name.void
    for text in (event_tag, claim, void):
        check_tag(text)
        assert is_reserved(text)
    assert Listing.of(["a", event_tag, "b"]) == Listing(["a", "b"], [made.name], [])
    assert Listing.of([claim]) == Listing([], [], [made.name])
    assert Listing.of([claim, event_tag]) == Listing([], [made.name], [])
    assert Listing.of([void, claim]) == Listing([], [], [])
    assert made.name.concerns(tag)
    assert TagEvent.from_manifest(made.name, made.to_manifest()) == made


def test_long_tags_that_begin_alike_keep_apart():
    one, two = "x" * 127 + "1", "x" * 127 + "2"
    a, b = event(1, 1, tag=one), event(1, 2, tag=two)
    assert a.name != b.name
    assert fold(one, [a, b], UNSEEN)[0].target == target(1)


@pytest.mark.parametrize(
    "text",
    [
        "cloudedge-event.x",
        "cloudedge-event.live.1.2",
        "cloudedge-event.",
        "cloudedge-claim.live",
        "cloudedge-event.a.00000001.ABCDEF00",
    ],
)
def test_what_is_only_named_alike_is_no_tag_and_no_event(text):
    assert Listing.of([text, "live"]) == Listing(["live"], [], [])


@pytest.mark.parametrize(
    "manifest",
    [
        untag_marker("live"),
        event(2, 1).to_manifest(),
        event(1, 1, tag="other").to_manifest(),
        Manifest.parse(event(1, 1).to_manifest().raw.replace(b'tag-event.seq":"1"', b'tag-event.seq":"x"')),
        Manifest.parse(event(1, 1, previous=2).to_manifest().raw.replace(target(2).digest.encode(), b"md5:2")),
    ],
)
def test_something_else_under_an_events_name_is_named(manifest):
    name = event(1, 1).name
    assert manifest != event(1, 1).to_manifest()
    with pytest.raises(IntegrityError, match="holds something else"):
        TagEvent.from_manifest(name, manifest)


def test_the_record_is_an_index_other_tools_can_read():
    assert event(2, 1, previous=3).to_manifest().raw.decode() == (
        '{"annotations":{"io.cloudedge.tag-event.at":"t2","io.cloudedge.tag-event.by":"who2",'
        f'"io.cloudedge.tag-event.previous":"{target(3).digest}","io.cloudedge.tag-event.seq":"2",'
        '"io.cloudedge.tag-event.tag":"live"},"artifactType":"application/vnd.cloudedge.tag-event.v1+json",'
        f'"manifests":[{{"digest":"{target(1).digest}","mediaType":"{IMAGE_MANIFEST}","size":101}}],'
        '"mediaType":"application/vnd.oci.image.index.v1+json","schemaVersion":2}'
    )
