"""The same life of a bundle in every kind of hub."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from itertools import groupby, pairwise
from types import ModuleType

import pytest

from cloudedge.bundle import Bundle, check_signature, new_key_pair, sign_bundle
from cloudedge.config import HUB_SCHEMES, HubConfig, HubScheme
from cloudedge.errors import Conflict, NotFound
from cloudedge.hub import LocalHub, collect, copy, current, open_hub, open_store, plan_copy
from cloudedge.hub.layout import LayoutHub
from cloudedge.hub.objects import DirectoryStore
from tests.models import change_table, make_model, make_table

pytestmark = pytest.mark.parts


@pytest.fixture
def versions(hub, tmp_path):
    model = make_model(tmp_path / "model")
    one = Bundle.pack(model, name="team/ctr", sparse={"dict": make_table(3000)}, hub=hub)
    later = change_table(make_table(3000), seed=1)
    return one, Bundle.pack(model, name="team/ctr", sparse={"dict": later}, parent=one, hub=hub)


def test_push_pull_tag_and_history(any_hub, versions, tmp_path):
    one, two = versions
    first = one.push(any_hub, tags=["prod"])
    assert first.bytes_missing == first.bytes_total
    assert one.push(any_hub).bytes_missing == 0
    delta = two.table_layers["dict"][-1]
    plan = plan_copy(two.hub, any_hub, "team/ctr", two.digest)
    assert delta in plan.missing
    assert plan.bytes_missing < 20_000
    two.push(any_hub, tags=["prod"])
    assert any_hub.names() == ["team/ctr"]
    prod = [e for e in any_hub.tags("team/ctr") if e.tag == "prod"]
    assert [(e.target.digest, e.is_current) for e in prod] == [(one.digest, False), (two.digest, True)]
    assert prod[0].ended_by == prod[1].by
    pulled = Bundle.pull("team/ctr:prod", any_hub, hub=LocalHub(tmp_path / "elsewhere"))
    pulled.verify(deep=True)
    assert pulled.digest == two.digest
    assert pulled.manifest.raw == two.manifest.raw


def test_signatures_travel(any_hub, versions, tmp_path):
    one, _ = versions
    private, public = new_key_pair(tmp_path, "k", None)
    sign_bundle(one, private)
    one.push(any_hub)
    check_signature(Bundle.pull("team/ctr:1", any_hub, hub=LocalHub(tmp_path / "elsewhere")), public)


def test_versions_do_not_change_and_tags_move_only_from_where_expected(any_hub, versions):
    one, two = versions
    one.push(any_hub)
    two.push(any_hub)

    def move(tag, bundle, **options):
        return any_hub.move_tag("team/ctr", tag, bundle.manifest.descriptor, by="me", at="t", **options)

    with pytest.raises(Conflict, match="versions never change"):
        move("1", two)
    move("prod", one, expected=None)
    with pytest.raises(Conflict, match="another process moved it"):
        move("prod", two, expected=two.digest)
    move("prod", two, expected=one.digest)
    assert current(any_hub.tags("team/ctr"), "prod").target.digest == two.digest


def test_what_is_not_there(any_hub, tmp_path):
    assert any_hub.names() == []
    assert any_hub.tags("nobody") == []
    with pytest.raises(NotFound):
        Bundle.pull("nobody:1", any_hub, hub=LocalHub(tmp_path / "elsewhere"))


def test_a_removed_version_is_collected_and_the_rest_stays_whole(any_hub, versions, tmp_path):
    one, two = versions
    one.push(any_hub, tags=["prod"])
    two.push(any_hub, tags=["prod"])
    yesterday = (datetime.now(timezone.utc) - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    any_hub.move_tag("team/ctr", "1", None, by="me", at=yesterday)
    assert current(any_hub.tags("team/ctr"), "1") is None
    options = {"now": datetime.now(timezone.utc) + timedelta(seconds=2), "retention": timedelta(0)}
    plan = collect(any_hub, dry_run=True, **options)
    assert one.digest in {item.digest for item in plan.delete}
    assert any_hub.read_manifest("team/ctr", one.digest)
    collect(any_hub, dry_run=False, **options)
    with pytest.raises(NotFound):
        any_hub.read_manifest("team/ctr", one.digest)
    assert collect(any_hub, dry_run=True, **options).delete == ()
    Bundle.pull("team/ctr:2", any_hub, hub=LocalHub(tmp_path / "elsewhere")).verify(deep=True)


def test_copy_from_hub_to_hub(any_hub, versions, tmp_path):
    _, two = versions
    two.push(any_hub)
    third = LocalHub(tmp_path / "third")
    copy(any_hub, third, "team/ctr", two.digest, tags=["2"], by="me", at="t")
    Bundle.open("team/ctr:2", hub=third).verify(deep=True)


def test_racing_movers_lose_no_move(any_hub, versions):
    one, two = versions
    one.push(any_hub)
    two.push(any_hub)

    def move(number):
        target = (one, two)[number % 2].manifest.descriptor
        for step in range(3):
            any_hub.move_tag("team/ctr", f"own-{number}", target, by=f"mover {number}", at=f"{step}")
            any_hub.move_tag("team/ctr", "shared", target, by=f"mover {number}", at=f"{step}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, range(4)))
    entries = any_hub.tags("team/ctr")
    assert {e.tag for e in entries if e.is_current} == {"1", "2", "shared", *(f"own-{n}" for n in range(4))}
    shared = [e for e in entries if e.tag == "shared"]
    assert sum(e.is_current for e in shared) == 1
    # Moving a tag to where it is already leaves no trace; every other move does. Moves under one number were made at
    # the same moment, which only a registry allows: of those nobody saw the other.
    moves = [list(group) for _, group in groupby(shared, key=lambda entry: entry.seq)]
    alone = [(a[0], b[0]) for a, b in pairwise(moves) if len(a) == len(b) == 1]
    assert all(a.target.digest != b.target.digest for a, b in alone)


def test_no_collection_while_somebody_pushes(any_hub, versions):
    one, _ = versions
    one.push(any_hub)
    if not hasattr(any_hub, "store"):
        pytest.skip("a registry collects blobs itself, while it is stopped")
    options = {"now": datetime.now(timezone.utc), "retention": timedelta(0)}
    with any_hub.writing(), pytest.raises(Conflict, match="the lock blobs is held by"):
        collect(any_hub, dry_run=False, **options)
    collect(any_hub, dry_run=False, **options)


def test_a_backend_is_one_module_and_one_line(monkeypatch, tmp_path):
    backend = ModuleType("memory_backend")
    backend.open_memory = lambda config: DirectoryStore(tmp_path / config.url.removeprefix("memory://"))
    monkeypatch.setitem(sys.modules, "memory_backend", backend)
    monkeypatch.setitem(HUB_SCHEMES, "memory", HubScheme(store="memory_backend:open_memory"))
    hub = open_hub("memory://somewhere")
    assert isinstance(hub, LayoutHub)
    assert hub.url == str(tmp_path / "somewhere")
    assert isinstance(open_store(HubConfig(url="memory://somewhere")), DirectoryStore)
    with pytest.raises(ValueError, match="region does not apply to a memory hub"):
        HubConfig(url="memory://somewhere", region="bj")
