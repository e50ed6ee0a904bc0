"""A damaged or lost journal: it is refused with the cure, and repaired without losing the damaged file."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest

from cloudedge.errors import StorageError
from cloudedge.journal import Journal, JournalDamaged, check_journal, repair_journal
from cloudedge.journal._files import backups
from tests import ROOT
from tests.faults import proves_fault

OPERATIONS = 6


def fill(path, operations=OPERATIONS):
    """Write a history as releases do: one `writing` each, a backup after each."""
    for number in range(operations):
        with Journal(path) as journal, journal.writing("ann") as writer, writer.together():
            begun = writer.begin("release", f"sha256:{number}", plan={"steps": ["x" * 400] * 8}, by="ann")
            for step in range(20):
                writer.record(begun.number, f"dense.switch:dense/{step}", "intent", pin=f"v{number}")
                writer.record(begun.number, f"dense.switch:dense/{step}", "done", text="y" * 100)
            writer.remember("lives", [f"v{number}"])
            writer.set_state(begun.number, "done", bytes=number)


def contents(path):
    with Journal(path) as journal:
        told = [(o.number, o.state, o.plan, o.outcome) for o in journal.operations()]
        return told, [journal.entries(number) for number, *_ in told], journal.recall("lives")


@pytest.mark.rules
def test_backups_come_by_themselves_and_the_newest_few_stay(tmp_path):
    path = tmp_path / "prod.db"
    fill(path, 8)
    kept = backups(path)
    assert len(kept) == 5
    report = check_journal(path)
    assert report.state == "sound"
    assert all(backup.is_sound for backup in report.backups)
    assert report.backups[0].order == report.order
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]
    with Journal(path) as journal, journal.writing("ann"):
        pass
    assert backups(path) == kept  # nothing was written, so nothing changed


@proves_fault(
    area="journal",
    fault="the file of the journal is damaged",
    happens="what can be read is true, and what cannot is refused",
    cure="`cloudedge journal repair TARGET`",
)
@pytest.mark.rules
@pytest.mark.parametrize("seed", [*range(12), 34])  # 34: SQLite's message quotes bytes that are not text
def test_damage_at_random_places_is_the_truth_or_an_error_and_then_repaired(tmp_path, seed):
    path, rng = tmp_path / "prod.db", random.Random(seed)
    fill(path)
    truth = contents(path)
    damage = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 3))):
        at, size = rng.randrange(len(damage)), rng.choice((1, 1, 16, 4096))
        garbage = rng.choice((rng.randbytes(size), bytes(size)))
        damage[at : at + size] = garbage[: len(damage) - at]
    path.write_bytes(damage)
    try:
        assert contents(path) == truth  # it hit what no row uses
    except JournalDamaged as error:
        hint = error.hint
    else:
        return
    assert "cloudedge journal repair" in hint
    damage = path.read_bytes()
    assert check_journal(path).state == "damaged"
    plan = repair_journal(path, dry_run=True)
    assert path.read_bytes() == damage
    done = repair_journal(path)
    assert (done.lost, done.entries) == (plan.lost, plan.entries)
    assert (tmp_path / "prod.db.damaged-1").read_bytes() == damage
    assert contents(path) == truth  # the newest backup has it all
    with Journal(path) as journal:
        assert bool(journal.doubt) == bool(done.lost)
    assert check_journal(path).state == ("doubtful" if done.lost else "sound")
    fill(path, 1)  # and it goes on


@pytest.mark.rules
@pytest.mark.parametrize("how", ["deleted", "empty", "cut", "header"])
@pytest.mark.parametrize("with_backups", [True, False])
def test_a_lost_journal_is_not_replaced_by_an_empty_one(tmp_path, how, with_backups):
    path = tmp_path / "prod.db"
    fill(path)
    truth = contents(path)
    with Journal(path, reserve_bytes=8192) as journal, journal.writing("ann"):
        pass
    if not with_backups:
        for backup in backups(path):
            backup.unlink()
    whole = path.read_bytes()
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 3], "header": bytes(4096) + whole[4096:]}[how])
    with pytest.raises(JournalDamaged, match=r"prod\.db") as refused:
        Journal(path)
    assert f"cloudedge journal repair {path}" in refused.value.hint
    done = repair_journal(path)
    assert done.lost
    with Journal(path) as journal:
        assert journal.doubt
    if with_backups:
        assert contents(path) == truth
    assert check_journal(path).state == "doubtful"


@pytest.mark.rules
def test_rows_that_came_after_the_backup_are_read_from_the_damaged_file(tmp_path):
    path = tmp_path / "prod.db"
    fill(path)
    for backup in backups(path)[:3]:
        backup.unlink()
    truth = contents(path)
    with sqlite3.connect(path) as db:  # damage an old row, and nothing that came after the backup
        db.execute("UPDATE entries SET detail = '{}' WHERE id = 3")
    db.close()
    assert check_journal(path).state == "damaged"
    done = repair_journal(path)
    assert done.read >= 2 * 40
    assert contents(path) == truth


@pytest.mark.rules
def test_one_changed_letter_in_what_is_live_is_noticed(tmp_path):
    """SQLite checks the form of its pages, and not the text in them."""
    path = tmp_path / "prod.db"
    fill(path)
    path.write_bytes(path.read_bytes().replace(b'["v5"]', b'["v4"]'))
    with pytest.raises(JournalDamaged):
        Journal(path)


@pytest.mark.rules
def test_a_journal_from_before_checksums_opens_and_is_sealed_as_it_grows(tmp_path):
    path = tmp_path / "prod.db"
    fill(path)
    truth = contents(path)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE sums")
        db.execute("DROP TRIGGER operation_changed")
        db.execute("DROP TRIGGER fact_changed")
    db.close()
    assert check_journal(path).state == "sound"
    assert contents(path) == truth
    fill(path, 1)
    with sqlite3.connect(path) as db:  # an older cloudedge changes rows and knows no sums
        db.execute("UPDATE operations SET outcome = '{}' WHERE number = 7")
        db.execute("UPDATE facts SET value = '[]' WHERE key = 'lives'")
    db.close()
    assert check_journal(path).state == "sound"


@pytest.mark.rules
def test_a_deleted_log_leaves_an_older_journal_whose_order_shows_it(tmp_path):
    path = tmp_path / "prod.db"
    fill(path)
    reader = Journal(path)  # holds the log open, so it is not merged into the file
    fill(path, 2)
    order = reader.order
    copy = tmp_path / "copy" / "prod.db"
    copy.parent.mkdir()
    shutil.copyfile(path, copy)  # without its log
    reader.close()
    with Journal(copy) as older:
        assert older.order < order  # a place that has seen `order` proves that this is an old copy


@pytest.mark.rules
def test_orders_continue_above_what_was_read(tmp_path):
    path = tmp_path / "prod.db"
    fill(path)
    with Journal(path) as journal, journal.writing("ann") as writer:
        writer.continue_above(5000)
        number = writer.begin("release", "x", plan=None, by="ann").number
        assert writer.record(number, "load", "intent") == 5001
        writer.continue_above(10)  # never back
        assert writer.record(number, "load", "done") == 5002
    path.unlink()
    repair_journal(path)
    with Journal(path) as journal:
        assert journal.order == 5002


@pytest.mark.parts
@pytest.mark.parametrize("what", ["repair", "backup"])
def test_killed_at_every_call_that_changes_the_folder(tmp_path, what):
    pristine = tmp_path / "pristine"
    fill(pristine / "prod.db")
    truth = contents(pristine / "prod.db")
    original = (pristine / "prod.db").read_bytes()
    broken = original[:4096] + bytes(4096) + original[8192:]
    for die_at in range(1, 30):
        folder = tmp_path / str(die_at)
        shutil.copytree(pristine, folder)
        path = folder / "prod.db"
        if what == "repair":
            path.write_bytes(broken)
        words = [sys.executable, "-m", "tests.journal.killed_repair", what, str(path), str(die_at)]
        done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if check_journal(path).state in ("damaged", "missing"):
            with pytest.raises(JournalDamaged):
                Journal(path)
            repair_journal(path)
        assert contents(path) == truth
        assert any(each.read_bytes() == broken for each in folder.glob("prod.db*")) or what == "backup"
        fill(path, 1)
        assert not [each.name for each in folder.iterdir() if each.name.startswith(".") and "backup" in each.name]
        if done.returncode == 0:
            return
    pytest.fail("it was never let through")


@pytest.mark.rules
def test_the_reserve_is_given_up_when_the_disk_is_full_and_renewed(tmp_path, monkeypatch):
    path = tmp_path / "prod.db"
    with Journal(path, reserve_bytes=1 << 20) as journal:
        with journal.writing("ann"):
            assert (tmp_path / "prod.db.reserve").stat().st_size == 1 << 20
        write, failures = journal._write_row, iter([sqlite3.OperationalError("database or disk is full")])

        def full(sql, values):
            for error in failures:
                raise error
            return write(sql, values)

        monkeypatch.setattr(journal, "_write_row", full)
        with journal.writing("ann") as writer:
            writer.remember("live", 1)
            assert not (tmp_path / "prod.db.reserve").exists()
        with journal.writing("ann") as writer:
            assert (tmp_path / "prod.db.reserve").exists()
            failures = iter([sqlite3.OperationalError("database or disk is full")] * 2)
            with pytest.raises(StorageError, match="full"):
                writer.remember("live", 2)
        assert journal.recall("live") == 1
