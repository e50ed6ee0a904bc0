from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cloudedge import seqfile
from cloudedge.cube import BuildName, build, plan_build, run_build
from cloudedge.cube.formats._workspace import Workspace
from cloudedge.errors import Conflict, InputError, StorageError
from tests.cube.reference import RECORDS, files_of, load_part, shard_of, write_sequence


@pytest.mark.rules
def test_an_empty_shard_is_refused_with_the_way_out(tmp_path, vector):
    with pytest.raises(InputError, match=r"no key belongs to shard 0, 3, 4 \(of 5\)") as caught:
        build([vector], output=tmp_path / "out", table="d", shards=5, version=1)
    assert "--reserve-key" in caught.value.hint
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.rules
def test_reserved_keys_fill_empty_shards(tmp_path, vector):
    report = build([vector], output=tmp_path / "out", table="d", shards=5, version=1, reserve_key=True)
    reserved = {p.shard: p.reserved_key for p in report.parts if p.reserved_key is not None}
    empty = {i for i in range(5) if not shard_of(RECORDS, i, 5)}
    assert set(reserved) == empty
    for shard, key in reserved.items():
        assert key % 5 == shard
        assert 2**63 <= key < 2**63 + 5
        assert load_part(report.directory / f"d_part{shard}") == {key: bytes(8)}


@pytest.mark.rules
def test_a_value_of_1024_bytes_is_the_longest(tmp_path):
    ok = write_sequence(tmp_path / "ok", [(1, bytes(1024))])
    build([ok], output=tmp_path / "out", table="d", shards=1, version=1)
    bad = write_sequence(tmp_path / "bad", [(1, b"x"), (7, bytes(1025))])
    with pytest.raises(InputError, match="key 7 has a value of 1025 bytes") as caught:
        build([bad], output=tmp_path / "out", table="d", shards=1, version=2)
    assert caught.value.offset == 96 + 17
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["1_1", "meta_info"]


@pytest.mark.rules
def test_an_existing_version_is_refused_and_kept(tmp_path, vector):
    build([vector], output=tmp_path / "out", table="d", shards=1, version=1)
    before = files_of(tmp_path / "out" / "1_1" / "d_part0")
    with pytest.raises(Conflict, match="1_1 exists already"):
        build([vector], output=tmp_path / "out", table="d", shards=1, version=1)
    assert files_of(tmp_path / "out" / "1_1" / "d_part0") == before


BAD_ARGUMENTS = {
    "no shards": ({"shards": 0}, "0 shards"),
    "too many shards": ({"shards": 10**6}, "1000000 shards"),
    "version 0": ({"version": 0}, "version 0"),
    "version of 2038": ({"version": 2**31}, "version 2147483648"),
    "name with a slash": ({"table": "a/b"}, "'a/b'"),
    "name of a shell": ({"table": "a;rm"}, "'a;rm'"),
    "delta of itself": ({"base": 100}, "other than its base's 100"),
    "last without base": ({"last": 99}, "give its base too"),
    "no input": ({"inputs": []}, "no input"),
}


@pytest.mark.rules
@pytest.mark.parametrize(("change", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, vector, change, message):
    good = {"inputs": [vector], "output": tmp_path / "out", "table": "d", "shards": 2, "version": 100}
    with pytest.raises(InputError, match=message):
        plan_build(**good | change)
    assert not (tmp_path / "out").exists()


@pytest.mark.rules
def test_a_damaged_input_leaves_nothing(tmp_path, vector):
    vector.write_bytes(vector.read_bytes()[:-1])
    with pytest.raises(InputError, match="ends inside a record") as caught:
        build([vector], output=tmp_path / "out", table="d", shards=1, version=1)
    assert (caught.value.path, caught.value.offset) == (str(vector), 0x90)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.rules
def test_damage_is_skipped_and_counted_when_asked(tmp_path, vector):
    vector.write_bytes(vector.read_bytes()[:-1])
    report = build([vector], output=tmp_path / "out", table="d", shards=1, version=1, skip_damage=True)
    assert (report.rows, report.skipped_bytes) == (2, 23)


@pytest.mark.rules
def test_a_file_that_is_nothing_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "index.html").write_text("<html>a listing, as wget leaves it</html>")
    with pytest.raises(InputError, match="neither a SequenceFile nor a table") as caught:
        plan_build([tmp_path / "in"], output=tmp_path / "out", table="d", shards=1, version=1)
    assert "cube dump" in caught.value.hint


@pytest.mark.rules
def test_too_little_space_is_refused_before_writing(tmp_path, vector, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=300))
    with pytest.raises(StorageError, match="has 300 bytes free, building there takes more than 336"):
        plan_build([vector], output=tmp_path / "out", table="d", shards=1, version=1)


@pytest.fixture
def small_disk(tmp_path: Path):
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can only be mounted by root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parts
@pytest.mark.parametrize("tar", [False, True])
def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path, small_disk, tar, monkeypatch):
    size = 3_300_000 if not tar else 2_000_000
    keys = np.arange(size // 52, dtype=np.uint64)
    with seqfile.Writer(tmp_path / "s") as out:
        out.append_rows(keys, np.zeros((len(keys), 36), np.uint8))
    monkeypatch.setattr(
        "cloudedge.cube.builder._build_plan._require_space", lambda _: None
    )  # it grows while others write
    (small_disk / "ballast").write_bytes(bytes(4 * 2**20 - 3_500_000))
    plan = plan_build([tmp_path / "s"], output=small_disk, table="d", shards=2, version=1, tar=tar)
    with pytest.raises(StorageError, match="No space left"):
        run_build(plan)
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


@pytest.mark.rules
def test_a_read_only_place_is_a_storage_error(tmp_path, vector):
    with pytest.raises(StorageError):
        build([vector], output="/proc/cube", table="d", shards=1, version=1)


KILLED = """
import os, signal, sys
from pathlib import Path
from cloudedge.cube import plan_build, run_build
from cloudedge.cube.builder import _build
from cloudedge.cube.formats import _workspace

output, point = Path(sys.argv[2]), sys.argv[3]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def die_after(path):
    if path == (output / "meta_info" if point == "meta files copied" else output):
        die()

if point == "rows packed":
    _build.pack = die
elif point != "rows taken":
    _workspace.sync_directory = die_after
plan = plan_build([sys.argv[1]], output=output, table="d", shards=2, version=7)
run_build(plan, progress=die if point == "rows taken" else lambda _: None)
"""


@pytest.mark.parts
@pytest.mark.parametrize("point", ["rows taken", "rows packed", "meta files copied"])
def test_a_killed_build_leaves_only_what_the_next_one_removes(tmp_path, vector, point):
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, vector, out, point], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    visible = [p.name for p in out.iterdir() if not p.name.startswith(".7_7.building-")]
    assert visible == (["meta_info"] if point == "meta files copied" else [])
    report = build([vector], output=out, table="d", shards=1, version=8)
    assert report.rows == 3
    assert sorted(p.name for p in out.iterdir()) == ["8_8", "meta_info"]
    assert [p.name for p in (out / "meta_info").iterdir()] == ["8_8_0_0.json"]


@pytest.mark.parts
def test_a_build_killed_just_after_publishing_is_there(tmp_path, vector):
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, vector, out, "published"], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    build([vector], output=out, table="d", shards=1, version=8)
    assert sorted(p.name for p in out.iterdir()) == ["7_7", "8_8", "meta_info"]
    assert len(list((out / "meta_info").iterdir())) == 3
    assert load_part(out / "7_7" / "d_part1") == dict(shard_of(RECORDS, 1, 2))


@pytest.mark.rules
def test_a_living_build_is_left_alone(tmp_path, vector):
    out = tmp_path / "out"
    out.mkdir()
    with Workspace(out, BuildName.base(5)) as other:
        build([vector], output=out, table="d", shards=1, version=6)
        assert other.version.exists()
    assert sorted(p.name for p in out.iterdir()) == ["6_6", "meta_info"]


@pytest.mark.rules
def test_two_builds_of_one_version_publish_one(tmp_path, vector):
    out = tmp_path / "out"
    out.mkdir()
    with Workspace(out, BuildName.base(5)) as slow:
        build([vector], output=out, table="d", shards=1, version=5)
        with pytest.raises(Conflict, match=r"another build published .* meanwhile"):
            slow.publish()
    assert sorted(p.name for p in out.iterdir()) == ["5_5", "meta_info"]
