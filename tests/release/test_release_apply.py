"""Applying: real bundles in real folders, real threads, a real journal; one release at a time, and every way back."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from models import change_table, make_table
from release_parts import NAMES, SIGNATURE, bundles, folder_places, folder_target

from cloudedge.bundle import Bundle
from cloudedge.cli.release import _status_rows, _status_title
from cloudedge.clock import ManualClock
from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound, StorageError, Unavailable
from cloudedge.hub import current, release_tag
from cloudedge.release import Health, Life, Limits, Member, Options, Refused, ReleaseUndone, Traffic, Unfinished
from cloudedge.release._apply import lives_after
from cloudedge.testing import FolderPlace


def active(target):
    return {place.name: dict(place.answers) for place in target.status().places}


def all_on(pin):
    return {name: {pin: 1.0} for name in NAMES}


def marked(hub, role):
    entry = current(hub.tags("ctr"), release_tag("prod", role))
    return entry.target.digest if entry else None


class Watched(FolderPlace):
    """A serving replica whose canary does as it is told."""

    canary = Traffic(requests=100, scores=100, score_sum=50, score_squares=26)
    live = Traffic(requests=1000, scores=1000, score_sum=500, score_squares=260)

    def watch(self):
        pins = list(self.observe().active)
        return Health(dict(zip(pins, (self.live, self.canary), strict=False)))


def watched(tmp_path, **traffic):
    kind = type("Watched", (Watched,), {"canary": replace(Watched.canary, **traffic)})
    return [
        kind(tmp_path / "places", p.name, p.leg) if p.leg == "dense" else p for p in folder_places(tmp_path / "places")
    ]


@pytest.fixture
def made(tmp_path, hub):
    return bundles(tmp_path, hub)


def test_a_life_of_releases(tmp_path, hub, made):
    one, two, three = made
    target = folder_target(tmp_path, hub)
    first = target.plan(one)
    assert "ctr:1" in first.summary()
    assert first.size_bytes > 20_000
    done = target.apply(first).wait(60)
    assert (done.state, done.number) == ("done", 1)
    assert done.bytes > 20_000
    assert active(target) == all_on(one.pin)
    assert marked(hub, "live") == one.digest
    assert marked(hub, "next") is None
    assert target.status().is_whole

    second = target.apply(target.plan("ctr:2"))
    second.wait(60)
    assert active(target) == all_on(two.pin)
    assert (marked(hub, "live"), marked(hub, "previous")) == (two.digest, one.digest)

    back = second.rollback()
    assert (back.state, back.bytes) == ("done", 0)
    assert active(target) == all_on(one.pin)
    with pytest.raises(NotFound, match="nothing was live before"):
        target.rollback()

    target.apply(target.plan(two)).wait(60)
    target.apply(target.plan(three)).wait(60)
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
    place = target._ground.places["dense/0"]
    check = place.check

    def slow(version):
        begun.set()
        assert clock.wait(30)
        check(version)

    place.check = slow
    release = target.apply(target.plan(made[0]))
    assert begun.wait(30)
    with pytest.raises(Conflict, match=r"ann .* is at work here"):
        other.run(other.plan(made[1]))
    with pytest.raises(Conflict, match="still under way"):
        release.wait(0.01)
    clock.set()
    release.wait(60)
    stale = other.plan(made[1])
    target.run(target.plan(made[1]))
    with pytest.raises(Conflict, match="changed since this was planned"):
        other.run(replace(stale))


def test_a_failed_probe_takes_everything_back(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))

    def damaged(version):
        raise IntegrityError("a probe was answered with 0.7 instead of 0.3")

    target._ground.places["dense/1"].check = damaged
    release = target.apply(target.plan(made[1]))
    with pytest.raises(ReleaseUndone, match=r"instead of 0\.3") as undone:
        release.wait(60)
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
        flaky(target._ground.places[name], "prepare", 2)
        flaky(target._ground.places[name], "switch", 1)
    assert target.run(target.plan(made[0])).state == "done"


def test_after_the_commit_point_it_goes_forward_or_waits(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    flaky(target._ground.places["dense/1"], "switch", 1000)
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


def test_what_would_be_done_after_the_commit_point(tmp_path, hub, made):
    target = folder_target(tmp_path, hub, places=watched(tmp_path))
    target.run(target.plan(made[0]))
    place = target._ground.places["dense/1"]
    switch = place.switch

    def stuck(shares, *, order):
        if len(shares) == 1:  # it took its canary
            raise Unavailable("dense/1 does not answer")
        switch(shares, order=order)

    place.switch = stuck
    with pytest.raises(Unfinished):
        target.run(target.plan(made[1], OPTIONS))
    ahead = {(step.stage, step.place) for step in target.plan_resume().steps}
    assert {("dense.switch", "dense/1"), ("settle", "")} < ahead
    assert not {"dense.canary", "bake"} & {stage for stage, _ in ahead}  # it is past these
    assert target.plan_promote() == target.plan_resume()
    back = target.plan_abort()
    assert {(step.stage, step.place) for step in back.steps} > {
        ("dense.switch", "dense/0"),
        ("dense.switch", "dense/1"),
    }
    place.switch = switch
    assert target.abort().state == "undone"
    assert active(target) == all_on(made[0].pin)


def test_after_the_commit_point_abort_still_goes_back(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    flaky(target._ground.places["dense/1"], "switch", 4)
    with pytest.raises(Unfinished):
        target.run(target.plan(made[1], patience_s=0))
    assert target.abort().state == "undone"
    assert active(target) == all_on(made[0].pin)
    with pytest.raises(NotFound, match="nothing is unfinished"):
        target.abort()


def test_a_first_release_that_moved_requests_has_nothing_to_go_back_to(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    flaky(target._ground.places["dense/1"], "switch", 4)
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


OPTIONS = Options(canary=0.1, bake_s=60, limits=Limits(score_drift=1.0))


def test_a_good_canary_becomes_the_release(tmp_path, hub, made):
    clock = ManualClock()
    target = folder_target(tmp_path, hub, places=watched(tmp_path), clock=clock)
    target.run(target.plan(made[0]))
    began = clock.elapsed
    assert target.run(target.plan(made[1], OPTIONS)).state == "done"
    assert clock.elapsed - began >= 60
    entries = target._ground.journal.entries(2)
    canary = next(e for e in entries if e.step == "dense.canary:dense/0" and e.what == "intent")
    assert canary.detail["shares"] == {made[0].pin: 0.9, made[1].pin: 0.1}
    baked = next(e for e in entries if e.step == "bake" and e.what == "done")
    assert baked.detail["requests"][made[1].pin] > 1000


@pytest.mark.parametrize(
    "bad", [{"errors": 50}, {"score_sum": 95}, {"latency_p99_ms": 900}, {"lookups": 9, "misses": 9}]
)
def test_a_bad_canary_is_taken_back(tmp_path, hub, made, bad):
    target = folder_target(tmp_path, hub, places=watched(tmp_path, **bad))
    target.run(target.plan(made[0]))
    outcome = target.run(target.plan(made[1], OPTIONS))
    assert outcome.state == "undone"
    assert "the canary did badly" in outcome.why
    assert active(target) == all_on(made[0].pin)


def test_a_bad_canary_may_pause_and_somebody_decides(tmp_path, hub, made):
    target = folder_target(tmp_path, hub, places=watched(tmp_path, errors=50))
    target.run(target.plan(made[0]))
    careful = replace(OPTIONS, on_breach="pause")
    with pytest.raises(Unfinished, match="of requests fail"):
        target.run(target.plan(made[1], careful))
    assert target.history(1)[0].state == "paused"
    assert {place.state for place in target.status().places if place.leg == "dense"} == {"canary"}
    with pytest.raises(Unfinished):
        target.resume()  # it is as bad as before
    assert target.promote().state == "done"  # somebody knows better
    assert active(target) == all_on(made[1].pin)
    with pytest.raises(Unfinished):
        target.run(target.plan(made[2], careful))
    assert target.rollback().state == "undone"
    assert active(target) == all_on(made[1].pin)


@pytest.mark.parametrize(("wish", "state"), [("promote", "done"), ("abort", "undone")])
def test_another_process_ends_the_bake(tmp_path, hub, made, wish, state):
    clock, target = ManualClock(), None

    class Asking(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if seconds == 5.0 and self.elapsed > 20:  # in the bake, as a thread of another process would
                getattr(folder_target(tmp_path, hub), wish)()

    clock = Asking()
    target = folder_target(tmp_path, hub, places=watched(tmp_path), clock=clock)
    target.run(target.plan(made[0]))
    assert target.run(target.plan(made[1], replace(OPTIONS, bake_s=10_000))).state == state
    assert clock.elapsed < 100


def test_an_interrupted_bake_goes_on_where_it_was(tmp_path, hub, made):
    class Dying(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if self.elapsed > 45:
                raise KeyboardInterrupt

    target = folder_target(tmp_path, hub, places=watched(tmp_path), clock=Dying())
    target.run(target.plan(made[0]))
    with pytest.raises(KeyboardInterrupt):
        target.run(target.plan(made[1], OPTIONS))
    clock = ManualClock()
    again = folder_target(tmp_path, hub, places=watched(tmp_path), clock=clock)
    assert again.resume().state == "done"
    assert 10 <= clock.elapsed < 45


def test_a_clock_set_back_changes_no_order(tmp_path, hub, made):
    clock = ManualClock()
    target = folder_target(tmp_path, hub, clock=clock)
    target.run(target.plan(made[0]))
    clock.at -= timedelta(days=365)
    target.run(target.plan(made[1]))
    assert [record.title for record in target.history()] == ["ctr:2", "ctr:1"]
    assert target.status().live.title == "ctr:2"
    assert all(record.seconds >= 0 for record in target.history())
    assert target.rollback().state == "done"


def test_a_full_disk_under_the_journal_leaves_what_is_live_alone(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    planned = target.plan(made[1])
    journal, left = target._ground.journal, [8]
    write = journal._write

    def full(sql, *values):
        left[0] -= 1
        if left[0] < 0:
            raise StorageError("writing the journal: database or disk is full", path=str(journal.path))
        return write(sql, *values)

    journal._write = full
    with pytest.raises(StorageError, match="disk is full"):
        target.run(planned)
    assert active(target) == all_on(made[0].pin)
    again = folder_target(tmp_path, hub)
    assert again.resume().state == "done"
    assert active(again) == all_on(made[1].pin)


class Stop(BaseException):
    """The power goes."""


@pytest.mark.parametrize("how", ["resume", "abort"])
def test_a_crash_at_every_journal_write_leaves_it_resumable(tmp_path, hub, made, how):
    """Every position, one after the other, in one long life: v1 and v2 take turns."""
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    goal, position = [made[1], made[0]], 0
    while True:
        target = folder_target(tmp_path, hub)
        planned = target.plan(goal[0], retain=5)
        journal, left = target._ground.journal, [position]
        write = journal._write

        def dying(sql, *values, write=write, left=left):
            left[0] -= 1
            if left[0] == -1:
                raise Stop
            return write(sql, *values)

        journal._write = dying
        try:
            target.run(planned)
        except Stop:
            pass
        else:
            break
        finally:
            journal.close()
        again = folder_target(tmp_path, hub)
        if again.unfinished is None:
            again.run(again.plan(goal[0], retain=5))  # it died before it had begun
        elif how == "resume":
            again.resume()
        else:
            again.abort()
        status = again.status()
        assert status.is_whole, (position, status)
        live = status.live.pin
        assert active(again) == all_on(live)
        again._ground.journal.close()
        goal = [made[1], made[0]] if live == made[0].pin else [made[0], made[1]]
        position += 1
    assert position > 30


class Nodes(FolderPlace):
    """A fleet: three nodes, of which one has moved, one lags, and one is away."""

    def members(self):
        pins = list(self.observe().versions)
        return [
            Member("edge/a/north", self.newest, "2024-01-01T00:00:00Z", memory_share=0.25),
            Member("edge/a/south", next((pin for pin in pins if pin != self.newest), ""), error="ProbeFailed"),
            Member("edge/a/west", "", is_there=False),
        ]


def test_every_node_of_a_fleet_is_shown(tmp_path, hub, made):
    nodes = Nodes(tmp_path / "places", "edge/a", "edge")
    places = [nodes if place.name == "edge/a" else place for place in folder_places(tmp_path / "places")]
    target = folder_target(tmp_path, hub, places=places)
    target.run(target.plan(made[0]))
    target.run(target.plan(made[1]))
    nodes.newest = made[1].pin
    status = target.status()
    (edge,) = [place for place in status.places if place.members]
    assert [(node.name, node.state, node.lag) for node in edge.members] == [
        ("edge/a/north", "current", 0),
        ("edge/a/south", "behind", 1),
        ("edge/a/west", "away", None),
    ]
    assert status.skew == {"edge": tuple(sorted((made[0].pin, made[1].pin)))}
    assert status.is_whole  # every pointer has moved; a node that was away catches up by itself
    assert status.to_json()["places"][-1]["members"][1]["error"] == "ProbeFailed"
    rows = {row[0]: row for row in _status_rows(status)}
    assert rows["edge/a/south"][2] == f"{made[0].pin} 100%: ProbeFailed"
    assert rows["edge/a/north"][6] == "25%"
    assert "the edge leg is skewed" in _status_title(status)
    assert "2 of 3 nodes do not run it yet" in _status_title(status)


def test_rows_that_serving_replicas_merge_need_memory(tmp_path, hub, made):
    """Without shards a replica reads a table itself: mapped if it is one file, merged in memory if it has deltas."""
    dense = [place for place in folder_places(tmp_path / "places") if place.leg == "dense"]
    target = folder_target(tmp_path, hub, places=dense)
    table = {"emb": change_table(make_table(200), seed=9)}
    pieces = tmp_path / "model1"
    delta = Bundle.pack(pieces, name="ctr", sparse=table, signature=SIGNATURE, parent=made[0], hub=hub)
    for bundle, merged in ((made[0], 0), (delta, 200 * (8 + 16))):
        version, world = target._ground.look(f"ctr@{bundle.digest}")
        for name, cost in world.estimates.items():
            assert cost.memory_bytes == target._ground.places[name].estimate(version).memory_bytes + merged
        assert len(world.estimates) == 2
        assert target.run(target.plan(bundle)).state == "done"
    assert target.status().is_whole


def test_tags_beyond_what_is_kept_go(tmp_path, hub):
    target = folder_target(tmp_path, hub)
    four = bundles(tmp_path, hub, 4)
    for bundle in four[:3]:
        target.run(target.plan(bundle, retain=2))
    assert [marked(hub, role) for role in ("live", "previous", "previous-2")] == [b.digest for b in reversed(four[:3])]
    target.rollback()
    assert [marked(hub, role) for role in ("live", "previous")] == [four[1].digest, four[0].digest]
    target.run(target.plan(four[2], retain=2))
    target.run(target.plan(four[3]))
    roles = ("live", "previous", "previous-2")
    assert [marked(hub, role) for role in roles] == [four[3].digest, four[2].digest, None]


def test_a_bundle_without_tables_leaves_shards_to_spare(tmp_path, hub, made):
    dense = Bundle.pack(tmp_path / "model2", name="ctr", signature=SIGNATURE, hub=hub)
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    target.run(target.plan(dense))
    status = target.status()
    assert {place.state for place in status.places if place.leg == "sparse"} == {"spare"}
    assert status.is_whole
    assert target.rollback().state == "done"
    assert active(target) == all_on(made[0].pin)


def test_what_was_live_long_ago_does_not_grow_with_every_release(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    planned = target.plan(made[0])
    old = tuple(Life(f"p{n}", f"ctr@{n}", f"ctr:{n}") for n in range(200))
    after = lives_after(replace(planned, lives=old))
    assert (after[0].pin, after[1]) == (made[0].pin, old[0])
    assert len(after) == 50
    assert len(lives_after(replace(planned, lives=old, options=Options(retain=99)))) == 100
