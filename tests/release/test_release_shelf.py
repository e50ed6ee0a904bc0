"""Where releases come from: the target's hub, its tags, and who signed what."""

from __future__ import annotations

from release_parts import SHARDS, bundles, folder_places, folder_target

from cloudedge.bundle import new_key_pair, sign_bundle
from cloudedge.clock import ManualClock
from cloudedge.config import Config
from cloudedge.hub import collect, current, release_tag
from cloudedge.journal import Journal
from cloudedge.release import Ground, HubShelf, Target, _kinds


def test_bundles_come_from_the_targets_hub_and_both_hubs_keep_what_is_live(tmp_path, hub, far):
    one, two, three = bundles(tmp_path, far)
    clock = ManualClock()
    shelf = HubShelf("prod", hub, source=far, shards={"emb": SHARDS}, clock=clock)
    places = {place.name: place for place in folder_places(tmp_path / "places")}
    target = Target(Ground("prod", places, Journal(tmp_path / "prod.db", clock=clock), shelf, clock))
    for bundle in (one, two, three):
        target.run(target.plan(f"ctr:{bundle.version}"))
    for each in (hub, far):
        marks = {role: current(each.tags("ctr"), release_tag("prod", role)) for role in ("live", "previous", "next")}
        assert marks["live"].target.digest == three.digest
        assert marks["previous"].target.digest == two.digest
        assert marks["next"] is None
    for tag in ("1", "2", "3"):
        for each in (hub, far):
            each.move_tag("ctr", tag, None, by="ann", at="2020-01-01T00:00:00Z")
    for each in (hub, far):
        kept = collect(each, now=clock.now(), retention=clock.now() - clock.now(), dry_run=False).kept
        assert {keep.digest for keep in kept} == {two.digest, three.digest}
    assert target.rollback().state == "done"
    assert target.rollback("ctr@" + three.digest).state == "done"


def test_a_bundle_that_the_wrong_people_signed_is_refused(tmp_path, hub):
    (bundle,) = bundles(tmp_path, hub, 1)
    for name in ("ours", "theirs"):
        new_key_pair(tmp_path, name, b"a passphrase")
    shelf = HubShelf("prod", hub, key=tmp_path / "ours.pub", shards={"emb": SHARDS})
    sign_bundle(bundle, tmp_path / "theirs.key", b"a passphrase")
    target = folder_target(tmp_path, hub)
    target._ground.shelf = shelf
    refused = target.plan(bundle)
    assert [refusal.rule for refusal in refused.refusals] == ["signature"]
    sign_bundle(bundle, tmp_path / "ours.key", b"a passphrase")
    assert target.run(target.plan(bundle)).state == "done"


def test_a_target_is_built_from_its_section(tmp_path, monkeypatch):
    section = {"kind": "local", "sparse": {"shards": SHARDS, "replicas": 2}, "hub": "far"}
    config = Config.model_validate({"hubs": {"far": {"url": str(tmp_path / "far")}}, "targets": {"prod": section}})
    monkeypatch.setitem(_kinds.KINDS, "local", lambda name, section: folder_places(tmp_path / "places"))
    target = Target.load("prod", config=config)
    assert target.name == "prod"
    assert target.status().live is None
    assert target._ground.shelf._shards == {"emb": SHARDS}
