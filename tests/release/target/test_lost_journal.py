"""A target whose journal was lost: every command refuses and names the cure, and the places tell the rest."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from cloudedge.journal import JournalDamaged, repair_journal
from cloudedge.release import Refused
from tests.release.parts import active, all_on, folder_places, folder_target, marked

pytestmark = pytest.mark.rules


def lose(tmp_path):
    """Remove the journal and everything beside it, as a lost disk does."""
    for path in tmp_path.glob("prod.db*"):
        path.unlink()


def released(tmp_path, hub, *bundles, **options):
    with_journal = folder_target(tmp_path, hub)
    for bundle in bundles:
        assert with_journal.run(with_journal.plan(bundle, **options)).state == "done"
    order = with_journal._context.journal.order
    with_journal._context.journal.close()
    return order


def test_without_its_journal_nothing_is_released_and_the_cure_is_named(tmp_path, hub, made):
    released(tmp_path, hub, *made[:2])
    lose(tmp_path)
    target = folder_target(tmp_path, hub)
    status = target.status()
    assert not status.is_whole
    assert "lost" in status.doubt
    for plan in (target.plan(made[2]), target.plan(made[1])):
        assert [refusal.rule for refusal in plan.refusals] == ["journal"]
        assert "cloudedge journal rebuild" in plan.refusals[0].hint
    for act in (lambda: target.run(target.plan(made[2])), target.rollback, target.resume, target.abort, target.promote):
        with pytest.raises(Refused, match="the journal was lost, or is an old copy"):
            act()
    assert active(target) == all_on(made[1].pin)


def test_rebuilt_from_the_places_it_goes_on(tmp_path, hub, made):
    order = released(tmp_path, hub, *made[:2])
    lose(tmp_path)
    target = folder_target(tmp_path, hub)
    shown = target.plan_adoption()
    assert [life.pin for life in shown.lives] == [made[1].pin, made[0].pin]
    assert "is live, and not nothing" in shown.summary()
    assert not target.history()  # nothing was written yet
    target.adopt(shown)
    status = target.status()
    assert (status.is_whole, status.live.pin) == (True, made[1].pin)
    assert target._context.journal.order > order
    assert target.plan_adoption().changes == ()
    assert [(record.kind, record.live_from) for record in target.history()] == [("adopt", "")]
    assert (marked(hub, "live"), marked(hub, "previous")) == (made[1].digest, made[0].digest)
    back = target.rollback()
    assert (back.state, back.bytes) == ("done", 0)
    assert active(target) == all_on(made[0].pin)
    assert target.run(target.plan(made[2])).state == "done"
    assert target.status().is_whole


@pytest.mark.parametrize("seed", range(6))
def test_lost_in_the_middle_of_a_release_every_place_comes_to_one_version(tmp_path, hub, made, seed):
    released(tmp_path, hub, made[0])

    class Dead(BaseException):
        pass

    target, left = folder_target(tmp_path, hub), iter(range(random.Random(seed).randrange(10, 60)))
    write = target._context.journal._write

    def dying(sql, *values):
        if next(left, None) is None:
            raise Dead
        return write(sql, *values)

    target._context.journal._write = dying
    target._context.runner = lambda calls, jobs: [call() for call in calls]
    with suppress(Dead):
        target.run(target.plan(made[1]))
    target._context.journal.close()
    lose(tmp_path)
    target = folder_target(tmp_path, hub)
    if target.status().doubt:
        target.adopt()
    target.resume()
    status = target.status()
    assert status.is_whole
    assert len({pin for place in status.places for pin in place.answers}) == 1
    assert target.run(target.plan(made[2])).state == "done"


def test_repaired_from_an_older_backup_it_is_in_doubt_until_compared(tmp_path, hub, made):
    released(tmp_path, hub, made[0])
    older = {path.name: path.read_bytes() for path in tmp_path.glob("prod.db.backup-*")}
    released(tmp_path, hub, made[1])
    lose(tmp_path)
    for name, data in older.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(JournalDamaged):
        folder_target(tmp_path, hub)
    assert repair_journal(tmp_path / "prod.db").lost
    target = folder_target(tmp_path, hub)
    for act in (lambda: target.run(target.plan(made[2])), target.rollback):
        with pytest.raises(Refused, match="the journal was repaired, and this is missing"):
            act()
    assert active(target) == all_on(made[1].pin)
    target.adopt()
    assert [life.pin for life in target._context.lives()] == [made[1].pin, made[0].pin]
    assert [record.kind for record in target.history()] == ["adopt", "release"]
    assert target.rollback().state == "done"
    assert active(target) == all_on(made[0].pin)


def test_places_that_disagree_without_a_tag_need_a_decision(tmp_path, hub, made):
    released(tmp_path, hub, *made[:2])
    place = folder_places(tmp_path / "places")[-2]
    place.activate({made[0].pin: 1.0}, order=10_000)
    lose(tmp_path)
    target = folder_target(tmp_path, hub)
    target._context.bundles.marked = dict
    refused = target.plan_adoption()
    assert [refusal.rule for refusal in refused.refusals] == ["ambiguous"]
    with pytest.raises(Refused, match="no tag"):
        target.adopt(refused)
    target.adopt(target.plan_adoption(live=made[0].pin))
    target.resume()
    assert active(target) == all_on(made[0].pin)
    assert target.status().is_whole


def test_a_target_that_never_had_a_release_has_nothing_to_adopt(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    assert target.plan_adoption().changes == ()
    target.adopt()
    assert target.history() == []
    assert target.run(target.plan(made[0])).state == "done"
