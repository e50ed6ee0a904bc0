"""Applying: real bundles in real folders, real threads, a real journal; one release at a time, and every way back."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound, StorageError, Unavailable
from cloudedge.journal import Journal
from cloudedge.release import HubBundleSource, Refused, ReleaseContext, ReleaseUndone, Target, Unfinished
from cloudedge.testing import FolderPlace
from tests.release.parts import NAMES, active, all_on, folder_target, marked

pytestmark = pytest.mark.rules


def test_a_life_of_releases(tmp_path, hub, made):
    one, two, three = made
    target = folder_target(tmp_path, hub)
    first = target.plan(one)
    assert "ctr:1" in first.summary()
    assert first.size_bytes > 20_000
    done = target.apply(first).wait()
    assert (done.state, done.number) == ("done", 1)
    assert done.bytes > 20_000
    assert active(target) == all_on(one.pin)
    assert marked(hub, "live") == one.digest
    assert marked(hub, "next") is None
    assert target.status().is_whole

    second = target.apply(target.plan("ctr:2"))
    second.wait()
    assert active(target) == all_on(two.pin)
    assert (marked(hub, "live"), marked(hub, "previous")) == (two.digest, one.digest)

    back = second.rollback()
    assert (back.state, back.bytes) == ("done", 0)
    assert active(target) == all_on(one.pin)
    with pytest.raises(NotFound, match="nothing was live before"):
        target.rollback()

    target.apply(target.plan(two)).wait()
    target.apply(target.plan(three)).wait()
    loaded = {pin for place in target.status().places for pin in place.versions}
    assert loaded == {two.pin, three.pin}
    older = target.rollback(1)  # the bundle of release 1 is no longer loaded: it is released again
    assert older.bytes > 20_000
    assert active(target) == all_on(one.pin)
    history = target.history()
    assert [(r.kind, r.title, r.state) for r in reversed(history)][:3] == [
        ("release", "ctr:1", "done"),
        ("release", "ctr:2", "done"),
        ("rollback", "ctr:1", "done"),
    ]
    assert all(r.by == "ann" and r.ref.startswith("ctr@sha256:") for r in history)
    assert target.run(target.plan(one)).bytes == 0  # only tidies up: what was rolled back from is unloaded
    with pytest.raises(InputError, match="already, everywhere"):
        target.run(target.plan(one))


def test_two_releases_at_once(tmp_path, hub, made):
    clock = threading.Event()
    target, other = folder_target(tmp_path, hub), folder_target(tmp_path, hub)
    begun = threading.Event()
    place = target._context.places["dense/0"]
    check = place.verify

    def slow(version):
        begun.set()
        assert clock.wait(120)
        check(version)

    place.verify = slow
    release = target.apply(target.plan(made[0]))
    assert begun.wait(120)
    with pytest.raises(Conflict, match=r"ann .* is at work here"):
        other.run(other.plan(made[1]))
    with pytest.raises(Conflict, match="still under way"):
        release.wait(0.01)
    clock.set()
    release.wait()
    stale = other.plan(made[1])
    target.run(target.plan(made[1]))
    with pytest.raises(Conflict, match="changed since this was planned"):
        other.run(replace(stale))


def test_a_failed_probe_takes_everything_back(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))

    def damaged(version):
        raise IntegrityError("a probe was answered with 0.7 instead of 0.3")

    target._context.places["dense/1"].verify = damaged
    release = target.apply(target.plan(made[1]))
    with pytest.raises(ReleaseUndone, match=r"instead of 0\.3") as undone:
        release.wait()
    assert undone.value.number == 2
    assert any(step.startswith("sparse.forget") for step in undone.value.undone)
    assert active(target) == all_on(made[0].pin)
    assert {pin for place in target.status().places for pin in place.versions} == {made[0].pin}
    assert marked(hub, "next") is None
    assert target.history(1)[0].why == "dense.check:dense/1: a probe was answered with 0.7 instead of 0.3"


def test_damaged_bytes_in_the_hub_stop_it_before_anything_moves(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    planned = target.plan(made[0])
    path = hub.blob_path(made[0].dense_layers["model.pdiparams"])
    path.chmod(0o644)
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    outcome = target.run(planned)
    assert outcome.state == "undone"
    assert outcome.why.startswith("fetch: ctr:1 in ")
    assert not (tmp_path / "places").exists()


def flaky(place, method, times):
    real, left = getattr(place, method), [times]

    def sometimes(*args, **how):
        if left[0]:
            left[0] -= 1
            raise Unavailable(f"{place.name} does not answer")
        return real(*args, **how)

    setattr(place, method, sometimes)


def test_what_trying_again_helps_is_tried_again(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    for name in NAMES:
        flaky(target._context.places[name], "load", 2)
        flaky(target._context.places[name], "activate", 1)
    assert target.run(target.plan(made[0])).state == "done"


def test_after_the_commit_point_it_goes_forward_or_waits(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    flaky(target._context.places["dense/1"], "activate", 1000)
    with pytest.raises(Unfinished, match=r"dense.switch:dense/1: dense/1 does not answer") as stopped:
        target.run(target.plan(made[1]))
    assert stopped.value.exit_code == 3
    assert active(target)["dense/0"] == {made[1].pin: 1.0}
    assert active(target)["dense/1"] == {made[0].pin: 1.0}
    status = target.status()
    assert status.is_skewed
    assert "release 2" in status.unfinished
    with pytest.raises(Conflict, match="unfinished"):
        target.run(target.plan(made[2]))
    again = folder_target(tmp_path, hub)  # another process, and the replica is back
    assert again.resume().state == "done"
    assert active(again) == all_on(made[1].pin)


def test_after_the_commit_point_abort_still_goes_back(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    flaky(target._context.places["dense/1"], "activate", 4)
    with pytest.raises(Unfinished):
        target.run(target.plan(made[1], patience_s=0))
    assert target.abort().state == "undone"
    assert active(target) == all_on(made[0].pin)
    with pytest.raises(NotFound, match="nothing is unfinished"):
        target.abort()


def test_a_first_release_that_moved_requests_has_nothing_to_go_back_to(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    flaky(target._context.places["dense/1"], "activate", 4)
    with pytest.raises(Unfinished):
        target.run(target.plan(made[0], patience_s=0))
    with pytest.raises(Refused, match="nothing was live before"):
        target.abort()
    assert target.resume().state == "done"


def test_a_place_that_lost_everything_is_brought_back(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    assert target.resume() is None
    lost = tmp_path / "places" / "sparse_emb_1_0"
    for path in sorted(lost.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert target.status().lagging == ("sparse/emb/1/0",)
    repaired = target.resume()
    assert repaired.state == "done"
    assert target.history(1)[0].kind == "repair"
    assert active(target) == all_on(made[0].pin)


class OldPlace(FolderPlace):
    """A place written before places had the verbs that they have now."""

    def prepare(self, version, *, order):
        return super().load(version, order=order)

    def check(self, version):
        super().verify(version)

    def switch(self, shares, *, order):
        super().activate(shares, order=order)

    def forget(self, pin, *, order):
        super().unload(pin, order=order)


def test_a_place_with_the_old_verbs_keeps_working_and_warns(tmp_path, hub, made):
    place = OldPlace(tmp_path / "places", "dense/0", "dense")
    source, journal = HubBundleSource("old", hub, shards={"emb": 2}), Journal(tmp_path / "old.db")
    with pytest.warns(DeprecationWarning, match="OldPlace: .* prepare is now load, .* forget is now unload"):
        target = Target(ReleaseContext("old", {place.name: place}, journal, source))
    for bundle in made[:3]:
        assert target.run(target.plan(bundle)).state == "done"
    assert list(place.observe().versions) == sorted(bundle.pin for bundle in made[1:3])
    with pytest.warns(DeprecationWarning, match=r"shelf is now ReleaseContext\.bundles"):
        assert target._context.shelf is source


def test_a_place_that_cannot_load_takes_the_release_back_before_anything_is_checked(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    place = target._context.places["sparse/emb/0/0"]

    def refuses(version, *, order):
        raise IntegrityError("what arrived is not what was sent")

    place.load = refuses
    outcome = target.run(target.plan(made[1]))
    assert outcome.state == "undone"
    assert "sparse.prepare:sparse/emb/0/0: what arrived" in outcome.why
    begun = {entry.step.partition(":")[0] for entry in target._context.journal.entries(2) if entry.what == "intent"}
    assert begun == {"fetch", "sparse.prepare"}
    assert active(target) == all_on(made[0].pin)


def test_a_version_lost_between_check_and_switch_is_noticed_before_requests_move(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    shards = [target._context.places[f"sparse/emb/0/{replica}"] for replica in range(2)]
    last = target._context.places["edge/a"]
    verify = last.verify

    def lose(version):
        verify(version)
        for shard in shards:
            shard.observe = lambda real=shard.observe: replace(
                real(), versions={pin: held for pin, held in real().versions.items() if pin != made[1].pin}
            )

    last.verify = lose
    outcome = target.run(target.plan(made[1]))
    assert outcome.state == "undone"
    assert f"gate: sparse/emb/0/0 lost {made[1].pin}" in outcome.why
    assert not [step for step in outcome.done if ".switch" in step]
    assert active(target) == all_on(made[0].pin)


def test_a_shard_that_goes_away_between_check_and_switch_stops_the_release(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    shard, last = (target._context.places[name] for name in ("sparse/emb/0/0", "edge/a"))
    verify, observe = last.verify, shard.observe
    asked = []

    def away():
        asked.append(1)
        if len(asked) > 3:  # as often as the gate asks
            return observe()
        raise Unavailable("sparse/emb/0/0 does not answer")

    def go(version):
        verify(version)
        shard.observe = away

    last.verify = go
    outcome = target.run(target.plan(made[1]))
    assert outcome.state == "undone"
    assert "gate: sparse/emb/0/0 does not answer" in outcome.why
    assert active(target) == all_on(made[0].pin)


def test_a_place_that_answers_with_something_else_after_its_switch_keeps_the_release_open(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    place = target._context.places["dense/0"]
    activate, observe = place.activate, place.observe

    def switch(shares, *, order):
        activate(shares, order=order)
        place.observe = lambda: replace(observe(), active={made[0].pin: 1.0})

    place.activate = switch
    with pytest.raises(Unfinished, match="settle: dense/0 answers with"):
        target.run(target.plan(made[1]))
    assert marked(hub, "live") == made[0].digest
    place.activate, place.observe = activate, observe
    assert target.resume().state == "done"


def test_rows_wait_for_the_requests_of_a_replica_that_did_not_unload(tmp_path, hub, made):
    clock = ManualClock()
    target = folder_target(tmp_path, hub, clock=clock)
    for bundle in made[:2]:
        target.run(target.plan(bundle))
    replica, shard = (target._context.places[name] for name in ("dense/1", "sparse/emb/0/0"))
    unload, at = shard.unload, {}

    def refuses(pin, *, order):
        at["dense"] = clock.elapsed
        raise Unavailable("dense/1 does not answer")

    def goes(pin, *, order):
        at["sparse"] = clock.elapsed
        unload(pin, order=order)

    replica.unload, shard.unload = refuses, goes
    planned = target.plan(made[2])
    assert target.run(planned).owed.keys() == {f"dense.forget:dense/1@{made[0].pin}"}
    assert at["sparse"] - at["dense"] >= planned.options.drain_s


def test_tags_take_over_from_each_other_so_that_no_bundle_is_without_one(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    bundles, seen = target._context.bundles, []
    mark = bundles.mark

    def watched(roles):
        found = mark(roles)
        seen.append({role: marked(hub, role) for role in ("live", "previous", "next")})
        return found

    bundles.mark = watched
    target.run(target.plan(made[0]))
    seen.clear()
    target._context.places["edge/a"].load = lambda version, *, order, load=target._context.places["edge/a"].load: (
        seen.append({"next": marked(hub, "next")}) or load(version, order=order)
    )
    target.run(target.plan(made[1]))
    one, two = made[0].digest, made[1].digest
    assert seen[1] == {"next": two}  # while places load it
    assert all(one in state.values() for state in seen if "live" in state)
    assert all(two in state.values() for state in seen)
    seen.clear()
    forgets = target._context.journal._write

    def full(sql, *values):
        if "facts" in sql and "lives" in values:
            raise StorageError("writing the journal: disk is full", path=str(target._context.journal.path))
        return forgets(sql, *values)

    target._context.journal._write = full
    with pytest.raises(StorageError):
        target.run(target.plan(made[2]))
    target._context.journal._write = forgets
    seen.clear()
    assert target.rollback().state == "undone"
    assert all(two in state.values() for state in seen)
    assert active(target) == all_on(made[1].pin)
