"""The journal: what was intended and done survives whoever wrote it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import Conflict, NotFound, StorageError
from cloudedge.journal import Journal


@pytest.mark.rules
def test_an_operation_is_told_in_the_order_it_was_written(tmp_path):
    clock = ManualClock()
    with Journal(tmp_path / "prod.db", clock=clock) as journal, journal.writing("ann") as writer:
        first = writer.begin("release", "sha256:1", plan=[{"step": "load"}], by="ann")
        writer.record(first.number, "load", "intent", shard=1)
        clock.at -= timedelta(hours=1)  # somebody sets the clock back
        writer.record(first.number, "load", "done", bytes=12)
        writer.set_state(first.number, "done", bytes=12)
        second = writer.begin("release", "sha256:2", plan=[], by="bob")

        assert [operation.number for operation in journal.operations()] == [second.number, first.number]
        assert [(e.step, e.what, dict(e.detail)) for e in journal.entries(first.number)] == [
            ("load", "intent", {"shard": 1}),
            ("load", "done", {"bytes": 12}),
        ]
        assert journal.last_words(first.number)["load"].what == "done"
        told = journal.operation(first.number)
        assert (told.state, told.outcome, told.plan, told.is_open) == ("done", {"bytes": 12}, [{"step": "load"}], False)
        assert told.ended_at < told.begun_at  # shown as the clock said, and no order depends on it


@pytest.mark.rules
def test_one_unfinished_operation_bars_the_next(tmp_path):
    with Journal(tmp_path / "prod.db") as journal, journal.writing("ann") as writer:
        begun = writer.begin("release", "sha256:1", plan=None, by="ann")
        with pytest.raises(Conflict, match=r"prod: release 1 of sha256:1 is unfinished") as refused:
            writer.begin("release", "sha256:2", plan=None, by="bob")
        assert refused.value.number == begun.number
        writer.set_state(begun.number, "paused")
        assert journal.unfinished().state == "paused"
        writer.set_state(begun.number, "undone")
        assert journal.unfinished() is None
        assert writer.begin("release", "sha256:2", plan=None, by="bob").number == 2


@pytest.mark.rules
def test_what_is_written_together_is_there_as_one_or_not_at_all(tmp_path):
    with Journal(tmp_path / "prod.db") as journal, journal.writing("ann") as writer:

        def cut_short():
            with writer.together():
                writer.remember("live", "2")
                begun = writer.begin("release", "sha256:2", plan=None, by="ann")
                assert journal.unfinished() == begun
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cut_short()
        assert (journal.recall("live"), journal.unfinished()) == (None, None)
        with writer.together():
            writer.remember("live", "3")
            writer.remember("previous", "2")
        with Journal(tmp_path / "prod.db") as another:
            assert (another.recall("live"), another.recall("previous")) == ("3", "2")


@pytest.mark.rules
def test_facts_outlive_operations(tmp_path):
    with Journal(tmp_path / "prod.db") as journal, journal.writing("ann") as writer:
        assert journal.recall("version/1") is None
        writer.remember("version/1", {"digest": "sha256:1"})
        writer.remember("version/1", {"digest": "sha256:2"})
    with Journal(tmp_path / "prod.db") as again:
        assert again.recall("version/1") == {"digest": "sha256:2"}


@pytest.mark.rules
def test_an_unknown_number(tmp_path):
    with Journal(tmp_path / "prod.db") as journal, pytest.raises(NotFound, match="the number 7"):
        journal.operation(7)


@pytest.mark.rules
def test_the_second_writer_is_told_who_the_first_is(tmp_path):
    with Journal(tmp_path / "prod.db") as one, Journal(tmp_path / "prod.db") as two, one.writing("ann"):
        with pytest.raises(Conflict, match=rf"prod: ann \(process {os.getpid()}, since 20"), two.writing("bob"):
            pass
        assert two.operations() == []  # readers do not wait
    with Journal(tmp_path / "prod.db") as three, three.writing("carl"):
        pass


_HOLDER = """
import sys, time
from cloudedge.journal import Journal
with Journal(sys.argv[1]) as journal, journal.writing("ann") as writer:
    number = writer.begin("release", "sha256:1", plan=None, by="ann").number
    writer.record(number, "load", "intent")
    print("in", flush=True)
    time.sleep(60)
"""


@pytest.mark.parts
def test_a_killed_writer_leaves_its_words_and_loses_the_lock_at_once(tmp_path):
    path = tmp_path / "prod.db"
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"in\n"
        with Journal(path) as journal:
            with pytest.raises(Conflict, match="ann"), journal.writing("bob"):
                pass
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            with journal.writing("bob"):
                left = journal.unfinished()
                assert journal.last_words(left.number)["load"].what == "intent"


@pytest.mark.rules
def test_a_journal_that_is_none_or_cannot_be_written(tmp_path):
    (tmp_path / "prod.db").write_bytes(b"not a database at all, but long enough to be taken for one" * 30)
    with pytest.raises(StorageError, match=r"prod\.db"):
        Journal(tmp_path / "prod.db")


@pytest.mark.rules
def test_a_full_disk_is_said_and_leaves_what_was_written(tmp_path):
    with Journal(tmp_path / "prod.db") as journal, journal.writing("ann") as writer:
        number = writer.begin("release", "sha256:1", plan=None, by="ann").number
        pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
        journal._db.execute(f"PRAGMA max_page_count = {pages}")  # what a full disk says, without one
        with pytest.raises(StorageError, match="full") as failed:
            writer.record(number, "load", "note", text="x" * 100_000)
        assert "resume" in failed.value.hint
        journal._db.execute("PRAGMA max_page_count = 100000")
        writer.record(number, "load", "intent")
        assert journal.last_words(number)["load"].what == "intent"


@pytest.mark.rules
def test_wishes_need_no_lock_and_reach_the_writer(tmp_path):
    with Journal(tmp_path / "prod.db") as journal, Journal(tmp_path / "prod.db") as other:
        with journal.writing("ann") as writer:
            number = writer.begin("release", "sha256:1", plan=None, by="ann").number
            other.ask(number, "promote", by="bob")
            assert [(wish.what, wish.by) for wish in journal.wishes(number)] == [("promote", "bob")]
        assert journal.wishes(number + 1) == []


@pytest.mark.rules
def test_entry_ids_only_grow_and_the_newest_is_found(tmp_path):
    with Journal(tmp_path / "prod.db") as journal, journal.writing("ann") as writer:
        number = writer.begin("release", "sha256:1", plan=None, by="ann").number
        ids = [writer.record(number, step, "done") for step in ("a", "b", "a", "c")]
        assert ids == sorted(set(ids))
        assert journal.newest(["a", "b"], "done").id == ids[2]
        assert journal.newest(["a", "b"], "failed") is None


@pytest.mark.rules
def test_a_journal_in_memory_has_one_writer_too():
    with Journal(None) as journal:
        with journal.writing("ann") as writer:
            writer.remember("live", 1)
            with pytest.raises(Conflict), journal.writing("bob"):
                pass
        with journal.writing("bob"):
            assert journal.recall("live") == 1


@pytest.mark.rules
def test_every_commit_is_synced(tmp_path):
    """After a power cut the journal knows of every step that was begun."""
    with Journal(tmp_path / "prod.db") as journal:
        full = 2
        assert journal._read("PRAGMA synchronous") == [(full,)]
        assert journal._read("PRAGMA journal_mode") == [("wal",)]


@pytest.mark.rules
def test_a_note_does_not_hide_that_a_step_was_begun(tmp_path):
    with Journal(tmp_path / "prod.db") as journal, journal.writing("ann") as writer:
        number = writer.begin("release", "sha256:1", plan=None, by="ann").number
        writer.record(number, "bake", "intent")
        writer.record(number, "bake", "note", watched_s=3)
        assert journal.last_words(number)["bake"].what == "intent"
