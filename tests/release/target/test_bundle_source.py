"""Where releases come from: the target's hub, its tags, and who signed what."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import numpy as np
import pytest
from pydantic import ValidationError

from cloudedge.bundle import Bundle, SeenVersions, new_key_pair, sign_bundle
from cloudedge.clock import ManualClock
from cloudedge.config import Config, _targets
from cloudedge.errors import Unavailable
from cloudedge.hub import collect, current, release_tag
from cloudedge.journal import Journal
from cloudedge.release import HubBundleSource, ReleaseContext, Target, register_kind
from cloudedge.release.target import _target_kinds as _kinds
from tests.models import change_table, make_model, make_table
from tests.release.parts import NAMES, SHARDS, SIGNATURE, bundles, folder_places, folder_target

pytestmark = pytest.mark.rules


def test_bundles_come_from_the_targets_hub_and_both_hubs_keep_what_is_live(tmp_path, hub, far):
    one, two, three = bundles(tmp_path, far)
    target = far_target(tmp_path, hub, far)
    clock = target._context.clock
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


def far_target(tmp_path, hub, far):
    clock = ManualClock()
    shelf = HubBundleSource("prod", hub, source=far, shards={"emb": SHARDS}, clock=clock)
    places = {place.name: place for place in folder_places(tmp_path / "places")}
    return Target(ReleaseContext("prod", places, Journal(tmp_path / "prod.db", clock=clock), shelf, clock))


def test_a_plan_brings_nothing_and_the_release_counts_what_it_brings(tmp_path, hub, far):
    one, two = bundles(tmp_path, far, 2)
    target = far_target(tmp_path, hub, far)
    planned = target.plan("ctr:1")
    assert not hub.root.exists()
    blobs = sum(blob.size for blob in one.manifest.blobs)
    assert (planned.steps[0].id, planned.steps[0].size_bytes) == ("fetch", blobs)
    assert "bring what is missing from the hub" in planned.summary()
    done = target.run(planned)
    entries = target._context.journal.entries(done.number)
    assert [e.detail["bytes"] for e in entries if (e.step, e.what) == ("fetch", "done")] == [blobs]
    assert done.bytes == sum(e.detail.get("bytes", 0) for e in entries if e.what == "done") > blobs
    assert target.history()[0].bytes == done.bytes
    # Blobs that both versions share come once.
    shared = {blob.digest for blob in one.manifest.blobs}
    assert target.plan("ctr:2").steps[0].size_bytes == sum(b.size for b in two.manifest.blobs if b.digest not in shared)
    assert target.plan("ctr:1").is_empty


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_bundle_elsewhere_is_known_from_its_outline(tmp_path, hub, far, dtype):
    table = make_table(300, dtype=dtype)
    parent = Bundle.pack(make_model(tmp_path / "model"), name="ctr", sparse={"emb": table}, hub=far)
    for bundle in (parent, Bundle.pack(
        make_model(tmp_path / "model"), name="ctr", sparse={"emb": change_table(table, seed=1)}, hub=far, parent=parent
    )):  # fmt: skip
        outlined = HubBundleSource("prod", hub, source=far, shards={"emb": SHARDS}).version(f"ctr@{bundle.digest}")
        local = HubBundleSource("prod", far, shards={"emb": SHARDS}).version(f"ctr@{bundle.digest}")
        assert outlined.bundle is None
        assert outlined.missing_bytes == sum(blob.size for blob in bundle.manifest.blobs)
        assert outlined.shards == local.shards
        rows = {name: dataclasses.replace(facts, shard_rows=()) for name, facts in outlined.tables.items()}
        assert rows == {name: dataclasses.replace(facts, shard_rows=()) for name, facts in local.tables.items()}
        assert dataclasses.replace(outlined, missing_bytes=0, tables={}) == dataclasses.replace(local, tables={})


def test_what_only_the_rows_tell_is_looked_at_once_they_are_here_and_before_any_place_is_touched(tmp_path, hub, far):
    even = make_table(100)
    even["keys"] = np.arange(2, 202, 2, dtype=np.uint64)
    Bundle.pack(make_model(tmp_path / "model"), name="ctr", sparse={"emb": even}, signature=SIGNATURE, hub=far)
    target = far_target(tmp_path, hub, far)
    planned = target.plan("ctr:1")
    assert not planned.refusals
    outcome = target.run(planned)
    assert outcome.state == "undone"
    assert "shard 1 of 2 would get none of the 100 rows" in outcome.why
    assert not (tmp_path / "places").exists()
    # Now that they are here the next plan knows beforehand.
    assert [refusal.rule for refusal in target.plan("ctr:1").refusals] == ["empty-shard"]


def test_a_hub_that_stops_in_the_middle_is_asked_again(tmp_path, hub, far, monkeypatch):
    bundles(tmp_path, far, 1)
    target = far_target(tmp_path, hub, far)
    planned, read, failures = target.plan("ctr:1"), far.read_blob, [1, 2]

    def flaky(name, blob, start=0):
        if failures and "org.cncf.model.filepath" in blob.annotations:
            failures.pop()
            raise Unavailable("the line was cut")
        return read(name, blob, start)

    monkeypatch.setattr(far, "read_blob", flaky)
    assert target.run(planned).state == "done"
    assert not failures


def test_a_bundle_that_the_wrong_people_signed_is_refused(tmp_path, hub):
    (bundle,) = bundles(tmp_path, hub, 1)
    for name in ("ours", "theirs"):
        new_key_pair(tmp_path, name, b"a passphrase")
    shelf = HubBundleSource("prod", hub, key=tmp_path / "ours.pub", shards={"emb": SHARDS})
    sign_bundle(bundle, tmp_path / "theirs.key", b"a passphrase")
    target = folder_target(tmp_path, hub)
    target._context.bundles = shelf
    refused = target.plan(bundle)
    assert [refusal.rule for refusal in refused.refusals] == ["signature"]
    sign_bundle(bundle, tmp_path / "ours.key", b"a passphrase")
    assert target.run(target.plan(bundle)).state == "done"


def test_a_target_is_built_from_its_section(tmp_path, monkeypatch):
    section = {"kind": "local", "sparse": {"shards": SHARDS, "replicas": 2}, "hub": "far"}
    config = Config.model_validate({"hubs": {"far": {"url": str(tmp_path / "far")}}, "targets": {"prod": section}})
    monkeypatch.setattr(_kinds, "_kinds", dict(_kinds._kinds))
    register_kind("local", lambda name, section: folder_places(tmp_path / "places"))
    target = Target.load("prod", config=config)
    assert target.name == "prod"
    assert target.status().live is None
    assert target._context.bundles._shards == {"emb": SHARDS}


def test_a_kind_of_your_own_is_one_registration(tmp_path, monkeypatch):
    monkeypatch.setattr(_kinds, "_kinds", dict(_kinds._kinds))
    monkeypatch.setattr(_targets, "_kinds", list(_targets._kinds))
    section = {"targets": {"prod": {"kind": "folders"}}}
    with pytest.raises(ValidationError, match="'bie'"):
        Config.model_validate(section)
    register_kind("folders", lambda name, section: folder_places(tmp_path / name))
    target = Target.load("prod", config=Config.model_validate(section))
    assert [place.name for place in target.status().places] == list(NAMES)


def test_a_damaged_blob_is_fetched_again(tmp_path, hub, far):
    one, two = bundles(tmp_path, far, 2)
    target = far_target(tmp_path, hub, far)
    target.run(target.plan("ctr:1"))
    bundle = Bundle.pull("ctr:2", far, hub=hub)
    blob = next(iter(bundle.dense.values()))
    good = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    assert target.run(target.plan("ctr:2")).state == "done"
    assert blob.read_bytes() == good
    assert target.status().live.pin == two.pin
    assert one.pin in {pin for place in target.status().places for pin in place.versions}


def guarded_target(tmp_path, hub, far, clock):
    shelf = HubBundleSource(
        "prod", hub, source=far, shards={"emb": SHARDS}, key=tmp_path / "team.pub", clock=clock,
        seen=SeenVersions(tmp_path / "seen", tmp_path / "team.pub"),
    )  # fmt: skip
    target = folder_target(tmp_path, hub, clock=clock)
    target._context.bundles = shelf
    return target


def test_a_hub_cannot_pass_an_old_signed_version_off_as_the_new_one(tmp_path, hub, far):
    new_key_pair(tmp_path, "team", None)
    clock, made = ManualClock(), bundles(tmp_path, far)
    for bundle in made:
        sign_bundle(bundle, tmp_path / "team.key")
    _, two, three = made
    target = guarded_target(tmp_path, hub, far, clock)
    far.move_tag("ctr", "6", two.manifest.descriptor, by="mallory", at="t")
    (refusal,) = target.plan("ctr:6").refusals
    assert refusal.rule == "signature"
    assert "signed as ctr:2" in refusal.what
    far.move_tag("ctr", "6", None, by="ann", at="t")
    far.move_tag("ctr", "prod", three.manifest.descriptor, by="ann", at="t")
    assert target.run(target.plan("ctr:prod")).state == "done"
    # Another process, later: the tag, the newest version and the plain version are all the hub's word.
    target = guarded_target(tmp_path, hub, far, clock)
    far.move_tag("ctr", "prod", two.manifest.descriptor, by="mallory", at="t")
    far.move_tag("ctr", "3", None, by="mallory", at="t")
    for ref in ("ctr:prod", "ctr", "ctr:2"):
        (refusal,) = target.plan(ref).refusals
        assert refusal.rule == "stale"
        assert "ctr:3 was taken before" in refusal.what
        assert "--allow-older" in refusal.hint
    assert target.plan(f"ctr@{two.digest}").refusals == ()
    assert target.run(target.plan("ctr:2", allow_older=True)).state == "done"
    assert target.rollback().state == "done"  # back to 3
    assert target.rollback("ctr:2").state == "done"


def test_an_expired_signature_stops_new_releases_and_no_repair(tmp_path, hub, far):
    new_key_pair(tmp_path, "team", None)
    clock, (one, two) = ManualClock(), bundles(tmp_path, far, 2)
    for bundle in (one, two):
        sign_bundle(bundle, tmp_path / "team.key", expires=timedelta(days=30), clock=clock)
    target = guarded_target(tmp_path, hub, far, clock)
    for bundle in (one, two):
        assert target.run(target.plan(f"ctr:{bundle.version}")).state == "done"
    clock.sleep(31 * 86400)
    (refusal,) = target.plan("ctr:2").refusals
    assert refusal.rule == "stale"
    assert "expired at" in refusal.what
    assert target.rollback().state == "done"
    place = next(place for place in target._context.places.values() if place.leg == "dense")
    place.activate({}, order=place._state()["fence"])
    assert target.resume().state == "done"
    assert target.status().is_whole
