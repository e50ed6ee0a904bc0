"""Locks with their holder: refused at once, waited for, shared, freed by a kill, probed."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import Conflict, NotFound
from cloudedge.io import FileLock, LockHeld, locked_by

HOLDER = """
import sys, time
from pathlib import Path
from cloudedge.io import FileLock
lock = FileLock.take(Path(sys.argv[1]), owner="ann@hill")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def held_elsewhere(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    yield holder
    holder.kill()
    holder.communicate()


@pytest.mark.parts
def test_a_refusal_names_the_holder_its_process_and_since_when(tmp_path, held_elsewhere):
    with pytest.raises(LockHeld, match=rf"ann@hill \(process {held_elsewhere.pid}, since 20..-..-..T") as refused:
        FileLock.take(tmp_path / "lock")
    assert isinstance(refused.value, Conflict)
    assert locked_by(tmp_path / "lock").pids == (held_elsewhere.pid,)


@pytest.mark.parts
def test_a_killed_process_holds_nothing(tmp_path, held_elsewhere):
    held_elsewhere.send_signal(signal.SIGKILL)
    held_elsewhere.wait()
    with FileLock.take(tmp_path / "lock", owner="bob@dale"):
        assert str(locked_by(tmp_path / "lock")).startswith(f"bob@dale (process {os.getpid()}, since ")
    assert locked_by(tmp_path / "lock") is None


@pytest.mark.parts
def test_a_wait_ends_when_the_holder_does(tmp_path, held_elsewhere):
    threading.Timer(0.3, held_elsewhere.kill).start()
    FileLock.take(tmp_path / "lock", wait_s=60).release()
    FileLock.take(tmp_path / "lock", wait_s=None).release()


@pytest.mark.rules
def test_a_wait_ends_at_its_deadline_by_the_injected_clock(tmp_path):
    clock = ManualClock()
    with FileLock.take(tmp_path / "lock"), pytest.raises(LockHeld, match=f"by pid {os.getpid()}"):
        FileLock.take(tmp_path / "lock", wait_s=600, poll_s=0.1, clock=clock)
    assert 600 <= clock.elapsed < 601


@pytest.mark.rules
def test_the_caller_words_the_refusal(tmp_path):
    with FileLock.take(tmp_path / "lock", owner="ann@hill"), pytest.raises(NotFound, match="ask ann@hill"):
        FileLock.take(tmp_path / "lock", refusal=lambda holder: NotFound(f"ask {holder}"))


@pytest.mark.rules
def test_shared_locks_exclude_only_those_who_want_it_alone(tmp_path):
    with FileLock.take(tmp_path / "lock", shared=True), FileLock.take(tmp_path / "lock", shared=True):
        with pytest.raises(LockHeld):
            FileLock.take(tmp_path / "lock")
        assert locked_by(tmp_path / "lock") is None  # several share it: nobody has it alone
    FileLock.take(tmp_path / "lock").release()


@pytest.mark.rules
def test_a_lock_of_a_program_that_writes_nothing_excludes_too(tmp_path):
    with (tmp_path / "lock").open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockHeld, match=f"locked by pid {os.getpid()}"):
            FileLock.take(tmp_path / "lock")


@pytest.mark.rules
def test_a_lock_without_an_owner_leaves_the_file_as_it_is(tmp_path):
    (tmp_path / "data").write_text("changing")
    with FileLock.take(tmp_path / "data") as lock:
        assert os.pread(lock.descriptor, 100, 0) == b"changing"
        lock.write("x")
    assert (tmp_path / "data").read_text() == "x"
    lock.release()  # once more does nothing


@pytest.mark.rules
def test_a_folder_is_locked_itself_and_never_made(tmp_path):
    with FileLock.take(tmp_path, folder=True), pytest.raises(LockHeld, match=f"pid {os.getpid()}"):
        FileLock.take(tmp_path, folder=True)
    with pytest.raises(FileNotFoundError):
        FileLock.take(tmp_path / "gone", folder=True)
    assert not any(tmp_path.iterdir())


@pytest.mark.rules
def test_who_only_looks_keeps_no_one_out(tmp_path):
    (tmp_path / "lock").touch()
    stop = threading.Event()

    def look():
        while not stop.is_set():
            locked_by(tmp_path / "lock")
            time.sleep(0.005)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(50):
            FileLock.take(tmp_path / "lock").release()
    finally:
        stop.set()
        looking.join()
