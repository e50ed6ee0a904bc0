"""Files that appear whole or not at all: killed at every step, refused by the file system, seen by readers."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from cloudedge.errors import NotFound, StorageError
from cloudedge.io import atomic_file, publish, storage_errors, write_atomically, write_synced

KILLED = """
import os, signal, sys
from pathlib import Path
from cloudedge.io import _atomic_files

path, last, steps = Path(sys.argv[1]), int(sys.argv[2]), 0

def counted(call):
    def step(*args, **options):
        global steps
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        return call(*args, **options)
    return step

os.open, os.fsync, os.close = counted(os.open), counted(os.fsync), counted(os.close)
Path.replace = counted(Path.replace)
with _atomic_files.atomic_file(path, scratch=path.with_name(".scratch")) as file:
    file.write(b"new" * 5000)
print(steps)
"""


@pytest.mark.parts
def test_a_kill_between_any_two_steps_leaves_the_old_file_or_the_new_one(tmp_path):
    seen = []
    for step in range(100):
        path = tmp_path / str(step) / "file"
        path.parent.mkdir()
        path.write_bytes(b"old")
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(step)], check=False, capture_output=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        seen.append(path.read_bytes())
        assert {each.name for each in path.parent.iterdir()} <= {"file", ".scratch"}
        write_atomically(path, b"later", scratch=path.with_name(".scratch"))
        assert [each.name for each in path.parent.iterdir()] == ["file"]
        assert path.read_bytes() == b"later"
        if done.returncode == 0:
            break
    assert step >= 5  # open, sync, rename, open the folder, sync it, close it
    assert seen[:2] == [b"old", b"old"]
    assert seen[-1] == b"new" * 5000
    assert set(seen) == {b"old", b"new" * 5000}
    assert seen == sorted(seen, key=len)  # never back


@pytest.mark.rules
def test_the_content_is_on_the_device_before_its_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    order = []
    sync = os.fsync

    def noted(descriptor):
        order.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "file").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write_atomically(tmp_path / "file", "text")
    assert order == [(False, False), (True, True)]
    write_atomically(tmp_path / "file", "status", durable=False)
    assert len(order) == 2
    assert (tmp_path / "file").read_text() == "status"


@pytest.mark.rules
def test_a_block_that_fails_changes_nothing_and_leaves_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted():
        with atomic_file(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "old")]


@pytest.mark.rules
def test_a_secret_is_never_readable_by_others_not_even_while_it_is_written(tmp_path):
    with atomic_file(tmp_path / "token", mode=0o600) as file:
        assert [stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()] == [0o600]
        file.write(b"secret")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


@pytest.mark.rules
def test_a_scratch_file_of_a_killed_writer_is_replaced_with_its_permissions(tmp_path):
    scratch = tmp_path / ".scratch"
    scratch.write_text("left by a killed writer, longer than what follows")
    scratch.chmod(0o644)
    write_atomically(tmp_path / "file", "new", mode=0o600, scratch=scratch)
    assert (tmp_path / "file").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.rules
def test_a_folder_is_published_too_and_a_new_file_replaces_none(tmp_path):
    (tmp_path / ".made").mkdir()
    write_synced(tmp_path / ".made" / "file", "text")
    publish(tmp_path / ".made", tmp_path / "made")
    assert (tmp_path / "made" / "file").read_text() == "text"
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "made" / "file", "other")


@pytest.mark.rules
def test_errors_of_the_file_system_say_what_was_attempted(tmp_path):
    with pytest.raises(StorageError, match="remembering it"), storage_errors("remembering it", tmp_path / "x"):
        write_atomically(tmp_path, "a folder is there")
    with pytest.raises(NotFound, match="gone"), storage_errors("remembering it", tmp_path / "gone"):
        write_atomically(tmp_path / "gone" / "file", "no folder")
