"""What cannot be helped: clocks set back, full disks, and a crash at every write of the journal."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import InputError, StorageError
from tests.release.parts import active, all_on, folder_target

pytestmark = pytest.mark.rules


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
    journal, left = target._context.journal, [8]
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


PARTS = 4
"""Each crashes at every fourth write: they can go on side by side."""


class Stop(BaseException):
    """The power goes."""


@pytest.mark.parametrize("first", range(PARTS))
@pytest.mark.parametrize("how", ["resume", "abort"])
def test_a_crash_at_every_journal_write_leaves_it_resumable(tmp_path, hub, made, how, first):
    """Every position, one after the other, in a few long lives: v1 and v2 take turns."""
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    goal, position = [made[1], made[0]], first
    while True:
        target = folder_target(tmp_path, hub)
        planned = target.plan(goal[0], retain=5)
        journal, left = target._context.journal, [position]
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
        again._context.journal.close()
        goal = [made[1], made[0]] if live == made[0].pin else [made[0], made[1]]
        position += PARTS
    assert position > 30


def test_a_way_back_that_was_interrupted_is_resumed_as_one(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    planned = target.plan(made[1])
    journal, place = target._context.journal, target._context.places["dense/0"]
    write = journal._write

    def fails(version):
        raise InputError("a probe was answered with another score")

    def dying(sql, *values):
        if "undone" in values:
            raise Stop
        return write(sql, *values)

    place.verify, journal._write = fails, dying
    with pytest.raises(Stop):
        target.run(planned)
    journal.close()
    again = folder_target(tmp_path, hub)
    assert again.resume().state == "undone"
    assert active(again) == all_on(made[0].pin)
