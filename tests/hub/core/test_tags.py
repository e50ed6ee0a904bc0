"""The rules of tags and versions, with no hub in sight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudedge.errors import Conflict, InputError, NotFound
from cloudedge.hub import ANY, Descriptor, Ref, check_name, check_tag, current, is_version, newest, next_version
from cloudedge.hub import version_key as key
from cloudedge.hub.core._tags import TagEntry, moved

pytestmark = pytest.mark.rules

A, B, C = (Descriptor.of(bytes([i]), "m") for i in range(3))


def move(entries, tag, target, **options):
    options = {"by": "me", "at": "t", "expected": ANY} | options
    return moved(entries, tag, target, **options)


def test_a_move_ends_the_old_entry_and_begins_a_new_one():
    entries = move(move([], "prod", A, by="ann", at="t1"), "prod", B, by="bob", at="t2")
    assert entries == [
        TagEntry("prod", A, 1, since="t1", by="ann", until="t2", ended_by="bob"),
        TagEntry("prod", B, 2, since="t2", by="bob"),
    ]


def test_moving_to_where_it_is_changes_nothing():
    entries = move([], "prod", A)
    assert move(entries, "prod", A, expected=B.digest) is entries


def test_order_is_the_counter_even_if_the_clock_goes_back():
    entries = move(move([], "prod", A, at="2026-01-02"), "prod", B, at="2026-01-01")
    assert current(entries, "prod").target == B
    assert [e.seq for e in entries] == [1, 2]


EXPECTATIONS = {
    "anything goes": ("prod", ANY, None),
    "right digest": ("prod", A.digest, None),
    "wrong digest": ("prod", C.digest, Conflict),
    "expected nothing, is somewhere": ("prod", None, Conflict),
    "expected nothing, is nowhere": ("new", None, None),
    "expected somewhere, is nowhere": ("new", A.digest, Conflict),
}


@pytest.mark.parametrize(("tag", "expected", "error"), EXPECTATIONS.values(), ids=EXPECTATIONS)
def test_expectations(tag, expected, error):
    entries = move([], "prod", A)
    if error:
        with pytest.raises(error):
            move(entries, tag, B, expected=expected)
    else:
        assert current(move(entries, tag, B, expected=expected), tag).target == B


def test_a_version_never_points_elsewhere_not_even_after_it_was_removed():
    entries = move([], "3", A)
    with pytest.raises(Conflict, match="versions never change"):
        move(entries, "3", B)
    removed = move(entries, "3", None)
    assert current(removed, "3") is None
    with pytest.raises(Conflict, match="versions never change"):
        move(removed, "3", B)
    assert current(move(removed, "3", A), "3").target == A


def test_removing_what_is_not_there_is_an_error():
    with pytest.raises(NotFound):
        move([], "prod", None)


@given(st.lists(st.tuples(st.sampled_from(["prod", "test"]), st.sampled_from([A, B, C, None])), max_size=20))
def test_a_history_has_no_gaps_and_at_most_one_end(moves):
    entries: list[TagEntry] = []
    for tag, target in moves:
        try:
            entries = move(entries, tag, target)
        except NotFound:
            assert current(entries, tag) is None
        else:
            assert (current(entries, tag).target if target else current(entries, tag)) == target
    for tag in ("prod", "test"):
        mine = [e for e in entries if e.tag == tag]
        assert [e.seq for e in mine] == list(range(1, len(mine) + 1))
        assert all(not e.is_current for e in mine[:-1])


def test_versions_are_ordered_as_people_expect():
    ordered = ["0", "1", "1.0.1-alpha.2", "1.0.1-alpha.10", "1.0.1-beta", "1.0.1", "1.2.0", "1.10.0", "2", "10"]
    assert sorted(set(ordered), key=key) == ordered


@pytest.mark.parametrize(
    ("existing", "following"),
    [([], "1"), (["1", "2", "10"], "11"), (["1.4.2"], "1.4.3"), (["1.4.2-rc.1"], "1.4.2"), (["3", "1.0.0"], "4")],
)
def test_next_version(existing, following):
    entries = [TagEntry(v, A, 1, "", "") for v in existing] + [TagEntry("prod", A, 1, "", "")]
    assert next_version(entries) == following


def test_a_removed_version_is_not_given_out_again():
    entries = move(move(move([], "1", A), "2", B), "2", None)
    assert next_version(entries) == "3"
    assert newest(entries).tag == "1"


@pytest.mark.parametrize("text", ["3", "0", "1.2.3", "1.2.3-rc.1"])
def test_is_version(text):
    assert is_version(text)


@pytest.mark.parametrize("text", ["prod", "v3", "03", "1.2", "1.2.3.4", "", "3 ", "-1"])
def test_is_not_version(text):
    assert not is_version(text)


@pytest.mark.parametrize("name", ["ctr", "a/b/c", "a-b_c.d", "x1"])
def test_names_registries_take(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "CTR", "a//b", "/a", "a/", "../x", "a b", "ü", "a" * 201, "-a", "a:b"])
def test_names_nobody_takes(name):
    with pytest.raises(InputError):
        check_name(name)


@pytest.mark.parametrize("tag", ["", ".x", "-x", "a b", "a/b", "x" * 129, "ü"])
def test_tags_nobody_takes(tag):
    with pytest.raises(InputError):
        check_tag(tag)


def test_references():
    digest = "sha256:" + "a" * 64
    assert Ref.parse("ctr:3") == Ref("ctr", tag="3")
    assert Ref.parse("team/ctr") == Ref("team/ctr")
    assert Ref.parse(f"ctr@{digest}") == Ref("ctr", digest=digest)
    assert Ref.parse("ctr@sha256:abcdef1") == Ref("ctr", digest="sha256:abcdef1")
    for text in ("ctr:3", "team/ctr", f"ctr@{digest}"):
        assert str(Ref.parse(text)) == text
    for text in ("ctr:", ":3", "ctr@", "ctr@md5:abc", "ctr@sha256:xyz", "ctr:a:b"):
        with pytest.raises(InputError):
            Ref.parse(text)
