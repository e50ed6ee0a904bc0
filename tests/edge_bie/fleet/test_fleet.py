"""Fleets against the lab, with nodes that verify, refuse and fail as the real agent does."""

from dataclasses import replace

import pytest

from cloudedge.edge_bie.client import Bie
from cloudedge.edge_bie.fleet import Fleet
from cloudedge.edge_bie.lab import Faults
from cloudedge.edge_bie.model._names import blob_config, statement_config
from cloudedge.errors import Conflict, InputError, Interrupted
from cloudedge.journal import Journal
from tests.edge_bie.fleet.played_fleet import wait_for, yard

pytestmark = pytest.mark.parts


def test_a_fleet_lives_through_releases_failures_absences_and_a_rollback(tmp_path):
    with yard(tmp_path, 5) as made, made.fleet() as fleet:
        one, two, three = (made.pack(number, b"model %d" % number) for number in (1, 2, 3))
        first = fleet.rollout(fleet.plan(one), one)
        assert (first.state, first.counts) == ("done", {"done": 5, "failed": 0, "offline": 0, "waiting": 0})
        assert set(made.runs().values()) == {one.pin}
        assert not fleet.plan(one).waves  # everybody has it

        made.swarm.cut_power("node-0003")
        wait_for(lambda: {n.name: n.ready for n in fleet.nodes()}["node-0003"] == "offline")
        plan = fleet.plan(two)
        assert plan.offline == ("node-0003",)
        assert plan.waves[-1].nodes[-1] == "node-0003"  # who is away comes last
        before = {name: node.fetched for name, node in made.swarm.nodes.items()}
        second = fleet.rollout(plan, two)
        assert second.state == "done"
        assert "node-0003" in second.offline
        # Only the blobs that are new travelled: not the backbone, not what describes it.
        new = fleet.revisions()[plan.revisions[-1]].new_bytes(fleet.revisions()[fleet.lives()[1].revision])
        assert made.swarm.nodes["node-0000"].fetched - before["node-0000"] == new

        made.bad[three.pin] = {"*"}
        third = fleet.rollout(fleet.plan(three), three)
        assert third.state == "undone"
        assert "ProbeFailed" in third.why
        assert {name: pin for name, pin in made.runs().items() if name != "node-0003"} == dict.fromkeys(
            ["node-0000", "node-0001", "node-0002", "node-0004"], two.pin
        )

        made.swarm.give_power("node-0003")
        wait_for(lambda: made.runs()["node-0003"] == two.pin)
        wait_for(lambda: fleet.status().is_whole)
        status = fleet.status()
        assert (status.live, status.skew, status.shares) == ("yolov3:2", 1, {two.pin: 1.0})
        assert {node.lag for node in status.nodes} == {0}
        assert all(node.since and node.cpu is not None and node.disk is not None for node in status.nodes)
        # Since when is what the node says: the one that was away got its label long before it could follow.
        since = {node.name: node.since for node in status.nodes}
        assert since["node-0003"] == made.swarm.nodes["node-0003"].state.slots["paddle-serving"].live.created

        before = {name: node.fetched for name, node in made.swarm.nodes.items()}
        back = fleet.rollback()
        assert back.state == "done"
        assert set(made.runs().values()) == {one.pin}
        assert fleet.lives()[0].pin == one.pin
        # Nothing travelled, to the one that tried the third neither: the bundle before is not forgotten for a failure.
        assert {name: node.fetched for name, node in made.swarm.nodes.items()} == before


def test_what_was_changed_after_it_was_signed_is_refused_by_nodes_and_counted(tmp_path):
    """Somebody who may write to the account, and has no key, changes what starts the server."""
    with yard(tmp_path, 3) as made, made.fleet() as fleet:
        one, two = made.pack(1, b"model 1"), made.pack(2, b"model 2")
        fleet.rollout(fleet.plan(one), one)
        plan = fleet.plan(two)
        fleet.publish(two)
        app = fleet.bie.app(fleet.revisions()[plan.revisions[-1]].app)
        service = replace(app.services[0], env={**app.services[0].env, "LD_PRELOAD": "/home/work/evil.so"})
        fleet.bie.put_app(replace(app, services=(service,)))
        outcome = fleet.rollout(plan)
        assert outcome.state == "undone"
        assert "is not as signed" in outcome.why
        assert set(made.runs().values()) == {one.pin}


def test_publishing_twice_writes_nothing_and_moves_nobody(tmp_path):
    with yard(tmp_path, 1) as made:
        one = made.pack(1, b"model 1")
        with made.fleet() as fleet:
            published = fleet.publish(one)
            assert published.sent_bytes > 0
            fleet.check(published.revisions)
        writes = []
        journal = Journal(tmp_path / "fleets" / "shops.db")
        again = Fleet("shops", made.leg, Bie(made.cloud, audit=writes.append), None, journal=journal, hub=made.hub)
        with again:
            assert again.publish(one).revisions == published.revisions
            assert not writes
            assert all(not node.labels.get("cloudedge-paddle-serving") for node in again.nodes())
            # Another setting is another revision, with a higher number.
            changed = Fleet(
                "shops", made.leg.model_copy(update={"env": {"MODE": "fast"}}), again.bie, None, journal=journal,
                hub=made.hub,
            )  # fmt: skip
            (other,) = changed.publish(one).revisions
            assert other.statement.sequence == published.revisions[0].statement.sequence + 1


def test_numbers_grow_even_when_the_journal_is_lost(tmp_path):
    with yard(tmp_path, 1) as made:
        one, two = made.pack(1, b"model 1"), made.pack(2, b"model 2")
        with made.fleet() as fleet:
            fleet.rollout(fleet.plan(one), one)
            fleet.rollout(fleet.plan(two), two)
        for file in (tmp_path / "fleets").glob("shops.db*"):  # with its backups
            file.unlink()
        with made.fleet() as fleet:
            outcome = fleet.rollout(fleet.plan(one), one)
            assert outcome.state == "done"
            assert max(each.statement.sequence for each in fleet.revisions().values()) == 3
        assert made.runs() == {"node-0000": one.pin}


def test_a_new_image_and_a_new_model_are_two_revisions_of_one_rollout(tmp_path):
    images = [f"registry.example/serving@sha256:{digit * 64}" for digit in "12"]
    with yard(tmp_path, 2) as made:
        one, two = made.pack(1, b"model 1"), made.pack(2, b"model 2")
        with made.fleet(image=images[0]) as fleet:
            fleet.rollout(fleet.plan(one), one)
        with made.fleet(image=images[1]) as fleet:
            plan = fleet.plan(two)
            assert [len(wave.nodes) for wave in plan.waves] == [1, 1, 1, 1]
            assert fleet.rollout(plan, two).state == "done"
            image, model = (fleet.revisions()[name].statement for name in plan.revisions)
            assert (image.pin, image.image) == (one.pin, images[1])
            assert (model.pin, model.image) == (two.pin, images[1])
            assert fleet.rollback().state == "done"
            assert {fleet.revisions()[fleet.label_of(node)].statement.image for node in fleet.nodes()} == {images[0]}
        assert set(made.runs().values()) == {one.pin}


class Killed(BaseException):
    """The process dies here."""


def test_going_back_survives_a_kill_between_a_statement_and_its_app(tmp_path, monkeypatch):
    with yard(tmp_path, 1) as made:
        one, two = made.pack(1, b"model 1"), made.pack(2, b"model 2")
        made.bad[two.pin] = {"*"}
        with made.fleet() as fleet:
            fleet.rollout(fleet.plan(one), one)

            def put_app(self, app):
                if fleet.unfinished() is not None:  # not while publishing, only on the way back
                    raise Killed
                return honest(self, app)

            honest = Bie.put_app
            with monkeypatch.context() as patch:
                patch.setattr(Bie, "put_app", put_app)
                with pytest.raises(Killed):
                    fleet.rollout(fleet.plan(two), two)
        with made.fleet() as fleet:
            assert next(iter(fleet.revisions().values())).app not in {app.name for app in fleet.bie.apps()}
            back = fleet.resume()
        assert (back.state, back.counts["done"]) == ("undone", 1)
        assert set(made.runs().values()) == {one.pin}


def test_going_back_publishes_again_what_somebody_deleted(tmp_path):
    """The app that nodes had is gone, and one of its blob configs too: they are made anew, from the hub."""
    with yard(tmp_path, 2) as made, made.fleet() as fleet:
        one, two = made.pack(1, b"model 1"), made.pack(2, b"model 2")
        made.bad[two.pin] = {"node-0001"}
        fleet.rollout(fleet.plan(one), one)
        (old,) = fleet.revisions().values()
        fleet.bie.delete_app(old.app)
        model = one.dense_layers["model.pdmodel"].digest
        fleet.bie.delete_config(blob_config(made.leg.model, model))
        outcome = fleet.rollout(fleet.plan(two), two)
        assert (outcome.state, outcome.summary) == ("undone", "2 back")
        assert set(made.runs().values()) == {one.pin}


def test_a_rollout_that_cannot_go_back_can_be_left_as_it_is(tmp_path):
    with yard(tmp_path, 2) as made, made.fleet() as fleet:
        one, two, three = (made.pack(number, b"model %d" % number) for number in (1, 2, 3))
        made.bad[two.pin] = {"node-0001"}
        fleet.rollout(fleet.plan(one), one)
        (old,) = fleet.revisions().values()
        fleet.bie.delete_app(old.app)
        fleet.bie.delete_config(statement_config(made.leg.app, old.name))
        plan = fleet.plan(two)
        with pytest.raises(Interrupted, match="not in the account any more") as caught:
            fleet.rollout(plan, two)
        assert "abort --leave" in caught.value.hint
        with pytest.raises(Interrupted):
            fleet.abort()
        fleet.leave()
        assert fleet.unfinished() is None
        assert fleet.history()[0].state == "undone"
        assert {fleet.label_of(node) for node in fleet.nodes()} == {plan.revisions[-1]}
        assert fleet.rollout(fleet.plan(three), three).state == "done"


def test_forgetting_that_was_killed_half_way_is_finished_by_forgetting_again(tmp_path, monkeypatch):
    with yard(tmp_path, 1) as made, made.fleet() as fleet:
        before = {config.name for config in fleet.bie.configs()}
        one = made.pack(1, b"model 1")
        fleet.publish(one)
        left, honest = [3], Bie.delete_config

        def delete_config(self, name):
            left[0] -= 1
            if not left[0]:
                raise Killed
            honest(self, name)

        with monkeypatch.context() as patch:
            patch.setattr(Bie, "delete_config", delete_config)
            with pytest.raises(Killed):
                fleet.forget(one.pin)
        fleet.forget(one.pin)
        remaining = {config.name for config in fleet.bie.configs()} - before
        assert all("script" in name for name in remaining)  # which revision it belonged to was in the app


def test_a_label_that_somebody_took_and_a_node_that_is_new_are_brought_to_what_is_live(tmp_path):
    with yard(tmp_path, 3) as made, made.fleet(selector="site=berlin") as fleet:
        one = made.pack(1, b"model 1")
        fleet.bie.set_labels("node-0002", {"site": "paris"})
        fleet.rollout(fleet.plan(one), one)
        assert made.runs() == {"node-0000": one.pin, "node-0001": one.pin, "node-0002": ""}
        fleet.bie.set_labels("node-0000", {"cloudedge-paddle-serving": None})
        fleet.bie.set_labels("node-0002", {"site": "berlin"})
        wait_for(lambda: made.runs()["node-0000"] == "")
        assert not fleet.status().is_whole
        assert fleet.resume().counts["done"] == 2
        assert fleet.resume() is None
        assert set(made.runs().values()) == {one.pin}


def test_what_nobody_uses_is_deleted_and_nothing_else(tmp_path):
    with yard(tmp_path, 1) as made, made.fleet() as fleet:
        one, two = made.pack(1, b"model 1"), made.pack(2, b"model 2")
        fleet.rollout(fleet.plan(one), one)
        kept = {config.name for config in fleet.bie.configs()}
        fleet.publish(two)
        with pytest.raises(Conflict, match="1 nodes"):
            fleet.forget(one.pin)
        fleet.forget(two.pin)
        assert {config.name for config in fleet.bie.configs()} == kept
        assert [app.name for app in fleet.bie.apps()] == [next(iter(fleet.revisions().values())).app]
        fleet.forget(two.pin)


def test_garbage_is_what_was_live_long_ago_and_nobody_should_run(tmp_path):
    with yard(tmp_path, 2) as made, made.fleet() as fleet:
        bundles = [made.pack(number, b"model %d" % number) for number in (1, 2, 3, 4)]
        for bundle in bundles[:3]:
            fleet.rollout(fleet.plan(bundle), bundle)
        fleet.publish(bundles[3])
        assert fleet.garbage(keep=2) == {bundles[0].pin: "yolov3:1", bundles[3].pin: "yolov3:4"}
        first = next(r.name for r in fleet.revisions().values() if r.statement.pin == bundles[0].pin)
        fleet.bie.set_labels("node-0001", {"cloudedge-paddle-serving": first})  # somebody moved it by hand
        assert set(fleet.garbage(keep=1)) == {bundles[1].pin, bundles[3].pin}


def test_a_cloud_that_loses_writes_and_does_others_twice_ends_in_the_same_states(tmp_path):
    calm = dict.fromkeys(("delay", "error", "drop", "lost_answer", "cut"), 0.0)
    faults = Faults(seed=3, lost_write=0.2, duplicate=0.2, **calm)
    with yard(tmp_path, 6, faults=faults) as made:
        one, two = made.pack(1, b"model 1"), made.pack(2, b"model 2")
        made.bad[two.pin] = {"node-0005"}
        with made.fleet() as fleet:
            assert fleet.rollout(fleet.plan(one), one).counts["done"] == 6
            assert fleet.rollout(fleet.plan(two), two).state == "undone"
        wait_for(lambda: set(made.runs().values()) == {one.pin})


def test_nodes_that_cannot_take_it_are_named_before_anything_is_touched(tmp_path):
    with yard(tmp_path, 2, needs={"arch": ["arm64"], "accelerator": "nvidia", "disk": "1000GB"}) as made:
        one = made.pack(1, b"model 1")
        with made.fleet() as fleet:
            plan = fleet.plan(one)
            assert {unfit.rule for unfit in plan.unfit} == {"arch", "accelerator", "disk"}
            with pytest.raises(InputError, match="reasons against"):
                fleet.rollout(plan, one)
            assert not fleet.revisions()
            assert not fleet.plan(one, skip_unfit=True).waves


def test_a_fleet_of_fifty_with_failing_and_leaving_nodes_ends_in_exact_states(tmp_path):
    with yard(tmp_path, 50, waves=("5", "50%"), interval_s=0.5, jobs=16) as made, made.fleet() as fleet:
        one, two = made.pack(1, b"model 1"), made.pack(2, b"model 2")
        fleet.rollout(fleet.plan(one), one)
        bad, gone = {"node-0015", "node-0035"}, {f"node-00{n}" for n in (11, 22, 33, 44)}
        made.bad[two.pin] = bad
        for name in gone:
            made.swarm.cut_power(name)
        wait_for(lambda: gone <= {node.name for node in fleet.nodes() if node.ready == "offline"})
        outcome = fleet.rollout(fleet.plan(two), two)
        assert (outcome.state, set(outcome.failed)) == ("done", bad)
        assert set(outcome.offline) >= gone  # a busy machine may keep one more from reporting
        assert (sum(outcome.counts.values()), outcome.counts["failed"], outcome.counts["waiting"]) == (50, 2, 0)
        for name in gone:
            made.swarm.give_power(name)
        wanted = dict.fromkeys(made.names, two.pin) | dict.fromkeys(bad, one.pin)
        wait_for(lambda: made.runs() == wanted)
        wait_for(lambda: fleet.status().shares == {one.pin: 0.04, two.pin: 0.96})
