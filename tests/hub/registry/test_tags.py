"""Tags and their history in a real registry, set by us and meddled with by other tools."""

from __future__ import annotations

import pytest
import requests

from cloudedge.errors import (
    Conflict,
    InputError,
    IntegrityError,
    NotFound,
    Rejected,
    Unavailable,
)
from cloudedge.hub.core._oci import IMAGE_INDEX, Digest
from cloudedge.hub.core._tags import current
from cloudedge.hub.registry._registry_hub import RegistryHub
from cloudedge.hub.registry._tag_events import UNKNOWN_TIME
from tests.hub.registry.servers import AT, Answer, foreign_push, move, pointer, push, registry

pytestmark = pytest.mark.parts


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
    with pytest.raises(NotFound, match="cloudedge hub push"):
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
    with pytest.raises(NotFound, match="the tag live does not exist"):
        move(hub, "live", None, 3)
    move(hub, "live", b, 4)
    assert [(e.seq, e.until) for e in hub.tags("ctr") if e.tag == "live"] == [(1, AT(2)), (3, "")]


def test_untag_where_tags_can_be_deleted(proxied, proxy, hub):
    """As OCI 1.1 has it; the registry here cannot, so the proxy does it by the other way."""
    manifest = push(proxied, "ctr", b"x")
    move(proxied, "live", manifest)

    def rule(seen):
        if seen.method == "DELETE" and seen.path.endswith("/live"):
            hub._tags_of("ctr")._delete_tag("live")
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
    hub._tags_of("ctr")._delete_tag("live")
    assert [e.until for e in hub.tags("ctr")][-1] == UNKNOWN_TIME
    with pytest.raises(NotFound):
        move(hub, "live", None, 5)


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
