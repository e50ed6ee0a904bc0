from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from cube_reference import DELTA, KEY3, RECORDS, load_part, part_files, sequence_bytes, shard_of
from safetensors.numpy import save_file

from cloudedge import seqfile
from cloudedge.cube import BuildName, build, plan_build, run_build
from cloudedge.cube._workspace import Workspace
from cloudedge.errors import Conflict, InputError, StorageError


@pytest.fixture
def vector(tmp_path: Path) -> Path:
    path = tmp_path / "input" / "feature"
    path.parent.mkdir()
    path.write_bytes(sequence_bytes(RECORDS))
    return path


def sequence(path: Path, records) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sequence_bytes(records))
    return path


def files_of(part: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in part.iterdir()}


SHARD_0 = {
    "index.0": "0200000000000000 0000000000000000",
    "data.0": "0c000000 0000003f 000080be",
    "index.n": "00000000 01000000 01000000 1000000000000000",
    "data.n": "01000000 0c000000",
}
SHARD_1 = {
    "index.0": "0100000000000000 0000000000000000 0907060504030201 0c00000000000000",
    "data.0": "0c000000 0000803f 00000040 0c000000 00004040 0000c0bf",
    "index.n": "00000000 02000000 01000000 2000000000000000",
    "data.n": "01000000 18000000",
}
DELTA_1 = {
    "index.1": "0100000000000000 0000000001000000 0500000000000000 0c00000001000000",
    "data.1": "0c000000 00001041 00001041 0c000000 0000e040 0000e040",
    "index.n": "00000000 04000000 02000000 2000000000000000 2000000000000000",
    "data.n": "02000000 18000000 18000000",
}


def decoded(vector: dict[str, str]) -> dict[str, bytes]:
    return {name: bytes.fromhex(text) for name, text in vector.items()}


def test_the_published_base_is_built_byte_for_byte(tmp_path, vector):
    report = build([vector.parent], output=tmp_path / "out", dict_name="dict", shards=2, version=100)
    version = tmp_path / "out" / "100_100"
    assert report.directory == version
    assert files_of(version / "dict_part0") == decoded(SHARD_0) == part_files(shard_of(RECORDS, 0, 2))
    assert files_of(version / "dict_part1") == decoded(SHARD_1) == part_files(shard_of(RECORDS, 1, 2))
    meta = tmp_path / "out" / "meta_info"
    assert sorted(path.name for path in meta.iterdir()) == ["100_100_0_0.json", "100_100_1_0.json"]
    told = [json.loads((meta / f"100_100_{i}_0.json").read_text()) for i in range(2)]
    assert told == [
        {"data_len_list": ["12"], "index_len_list": ["16"], "index_total_count": "1"},
        {"data_len_list": ["24"], "index_len_list": ["32"], "index_total_count": "2"},
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["100_100", "meta_info"]


def test_parts_are_packed_as_delivered(tmp_path, vector):
    build([vector], output=tmp_path / "out", dict_name="dict", shards=2, version=100)
    tar = tmp_path / "out" / "100_100" / "dict_part1.tar"
    with tarfile.open(tar) as packed:
        names = packed.getnames()
        contents = {m.name: packed.extractfile(m).read() for m in packed if m.isfile()}
    assert names == [".", "./data.0", "./index.0", "./data.n", "./index.n"]
    assert {name[2:]: content for name, content in contents.items()} == decoded(SHARD_1)
    listed = subprocess.run(["tar", "tf", tar], capture_output=True, text=True, check=True).stdout.split()
    assert listed == ["./", "./data.0", "./index.0", "./data.n", "./index.n"]
    line = tar.with_name("dict_part1.tar.md5").read_text()
    assert line == f"{hashlib.md5(tar.read_bytes()).hexdigest()}  {tar}\n"
    assert subprocess.run(["md5sum", "-c", f"{tar}.md5"], capture_output=True, check=False).returncode == 0


def test_the_same_input_gives_the_same_bytes(tmp_path, vector):
    tars = []
    for name in ("a", "b"):
        build([vector], output=tmp_path / name, dict_name="dict", shards=2, version=100)
        tars.append((tmp_path / name / "100_100" / "dict_part0.tar").read_bytes())
    assert tars[0] == tars[1]


def test_the_published_delta_is_built_byte_for_byte(tmp_path, vector):
    out = tmp_path / "out"
    build([vector], output=out, dict_name="dict", shards=2, version=100)
    delta = sequence(tmp_path / "delta", DELTA)
    report = build([delta], output=out, dict_name="dict", shards=2, version=101, base=100)
    version = out / "100_101"
    assert report.directory == version
    assert files_of(version / "dict_part1") == decoded(DELTA_1)
    lists = {name: content for name, content in decoded(SHARD_0).items() if name.endswith(".n")}
    assert files_of(version / "dict_part0") == lists
    told = json.loads((out / "meta_info" / "101_100_1_0.json").read_text())
    assert told == {"data_len_list": ["24", "24"], "index_len_list": ["32", "32"], "index_total_count": "4"}
    with tarfile.open(version / "dict_part1.tar") as packed:
        assert packed.getnames() == [".", "./data.1", "./index.1", "./data.n", "./index.n"]
    # Beside its base's files it loads from scratch.
    for name in ("index.0", "data.0"):
        shutil.copy(out / "100_100" / "dict_part1" / name, version / "dict_part1" / name)
    assert load_part(version / "dict_part1") == {**dict(shard_of(RECORDS, 1, 2)), **dict(DELTA)}


def test_a_delta_continues_from_the_delta_before_it(tmp_path, vector):
    out = tmp_path / "out"
    build([vector], output=out, dict_name="d", shards=1, version=100)
    build([sequence(tmp_path / "d1", DELTA)], output=out, dict_name="d", shards=1, version=101, base=100)
    second = [(8, b"12345678")]
    build([sequence(tmp_path / "d2", second)], output=out, dict_name="d", shards=1, version=102, base=100, last=101)
    part = out / "100_102" / "d_part0"
    assert sorted(path.name for path in part.iterdir()) == ["data.2", "data.n", "index.2", "index.n"]
    assert (part / "index.2").read_bytes() == struct.pack("<QQ", 8, 2 << 32)


def test_a_delta_needs_the_meta_files_and_the_shards_of_its_base(tmp_path, vector):
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"100_100_0_0\.json: No such file"):
        plan_build([vector], output=out, dict_name="d", shards=2, version=101, base=100)
    build([vector], output=out, dict_name="d", shards=2, version=100)
    with pytest.raises(InputError, match="more than 1 shards"):
        plan_build([vector], output=out, dict_name="d", shards=1, version=101, base=100)
    (out / "meta_info" / "100_100_1_0.json").write_text('{"data_len_list": [24]}')
    with pytest.raises(InputError, match="24 is not a number below 4294967296 written as a string"):
        plan_build([vector], output=out, dict_name="d", shards=2, version=101, base=100)


def corpus() -> list[tuple[int, bytes]]:
    draw = random.Random(8)
    sizes = [0, 1, 3, 4, 36, 1023, 1024]
    keys = [0, 2**64 - 1, 2**63, 1, KEY3] + [draw.getrandbits(64) for _ in range(900)]
    keys += list(range(200))  # so that a hundred shards all have some
    return [(key, draw.randbytes(draw.choice(sizes))) for key in dict.fromkeys(keys)]


@pytest.mark.parametrize("shards", [1, 7, 100])
@pytest.mark.parametrize("limit", [1 << 30, 2048])
def test_a_corpus_agrees_with_the_plain_reader(tmp_path, shards, limit):
    records = corpus()
    path = sequence(tmp_path / "s", records)
    plan = plan_build([path], output=tmp_path / "out", dict_name="d", shards=shards, version=1, tar=False)
    report = run_build(plan, data_file_limit=limit)
    found = {}
    for i in range(shards):
        mine = shard_of(records, i, shards)
        part = report.directory / f"d_part{i}"
        assert files_of(part) == part_files(mine, limit)
        found |= load_part(part)
    assert found == dict(records)
    assert report.rows == len(records)


def test_a_record_that_would_pass_the_limit_starts_the_next_file(tmp_path):
    records = [(i, bytes(508)) for i in range(5)]  # 512 bytes each, two fill a file exactly
    plan = plan_build([sequence(tmp_path / "s", records)], output=tmp_path / "o", dict_name="d", shards=1, version=1)
    report = run_build(plan, data_file_limit=1028)
    part = report.directory / "d_part0"
    assert [(part / f"data.{i}").stat().st_size for i in range(3)] == [1024, 1024, 512]
    addresses = [address for _, address in struct.iter_unpack("<QQ", (part / "index.0").read_bytes())]
    assert addresses == [0, 512, 1 << 32, (1 << 32) + 512, 2 << 32]
    assert report.parts[0].data_files == 3


def test_upstream_s_odd_cases(tmp_path):
    records = [(2**64 - 1, b"")]
    report = build([sequence(tmp_path / "s", records)], output=tmp_path / "o", dict_name="d", shards=1, version=1)
    part = report.directory / "d_part0"
    assert (part / "index.0").read_bytes() == b"\xff" * 8 + bytes(8)
    assert (part / "data.0").read_bytes() == bytes.fromhex("04000000")


def test_a_table_gives_the_same_parts_as_its_sequence_file(tmp_path):
    draw = np.random.default_rng(5)
    keys = np.unique(draw.integers(0, 2**64, 5000, np.uint64))
    for dtype in (np.float32, np.float16):
        values = draw.normal(size=(len(keys), 9)).astype(dtype)
        name = np.dtype(dtype).name
        save_file({"values": values, "keys": keys}, tmp_path / f"{name}.safetensors")
        records = [(int(k), v.tobytes()) for k, v in zip(keys, values, strict=True)]
        report = build(
            [tmp_path / f"{name}.safetensors"], output=tmp_path / name, dict_name="d", shards=3, version=1, tar=False
        )
        for i in range(3):
            assert files_of(report.directory / f"d_part{i}") == part_files(shard_of(records, i, 3))
        assert report.duplicates == 0


def test_the_last_row_of_a_key_wins_in_the_order_of_names(tmp_path):
    folder = tmp_path / "in"
    sequence(folder / "b", [(1, b"from b"), (2, b"only b")])
    sequence(folder / "a", [(1, b"from a"), (1, b"again a")])
    sequence(folder / "c" / "x", [(2, b"from cx")])
    sequence(folder / ".hidden", [(9, b"never")])
    (folder / "link").symlink_to(folder / "b")
    report = build([folder], output=tmp_path / "out", dict_name="d", shards=1, version=1)
    assert load_part(report.directory / "d_part0") == {1: b"from b", 2: b"from cx"}
    assert (report.rows, report.duplicates) == (2, 3)
    assert report.parts[0].entries == 5  # as upstream: all are written, the later ones count


def test_duplicates_are_counted_exactly(tmp_path):
    draw = random.Random(2)
    keys = [draw.randrange(3000) for _ in range(20_000)]
    path = sequence(tmp_path / "s", [(key, b"1234") for key in keys])
    report = build([path], output=tmp_path / "out", dict_name="d", shards=4, version=1, tar=False)
    assert report.duplicates == len(keys) - len(set(keys))
    assert report.rows == len(set(keys))


def test_an_empty_shard_is_refused_with_the_way_out(tmp_path, vector):
    with pytest.raises(InputError, match=r"no key belongs to shard 0, 3, 4 \(of 5\)") as caught:
        build([vector], output=tmp_path / "out", dict_name="d", shards=5, version=1)
    assert "--reserve-key" in caught.value.hint
    assert list((tmp_path / "out").iterdir()) == []


def test_reserved_keys_fill_empty_shards(tmp_path, vector):
    report = build([vector], output=tmp_path / "out", dict_name="d", shards=5, version=1, reserve_key=True)
    reserved = {p.shard: p.reserved_key for p in report.parts if p.reserved_key is not None}
    empty = {i for i in range(5) if not shard_of(RECORDS, i, 5)}
    assert set(reserved) == empty
    for shard, key in reserved.items():
        assert key % 5 == shard
        assert 2**63 <= key < 2**63 + 5
        assert load_part(report.directory / f"d_part{shard}") == {key: bytes(8)}


def test_a_value_of_1024_bytes_is_the_longest(tmp_path):
    ok = sequence(tmp_path / "ok", [(1, bytes(1024))])
    build([ok], output=tmp_path / "out", dict_name="d", shards=1, version=1)
    bad = sequence(tmp_path / "bad", [(1, b"x"), (7, bytes(1025))])
    with pytest.raises(InputError, match="key 7 has a value of 1025 bytes") as caught:
        build([bad], output=tmp_path / "out", dict_name="d", shards=1, version=2)
    assert caught.value.offset == 96 + 17
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["1_1", "meta_info"]


def test_an_existing_version_is_refused_and_kept(tmp_path, vector):
    build([vector], output=tmp_path / "out", dict_name="d", shards=1, version=1)
    before = files_of(tmp_path / "out" / "1_1" / "d_part0")
    with pytest.raises(Conflict, match="1_1 exists already"):
        build([vector], output=tmp_path / "out", dict_name="d", shards=1, version=1)
    assert files_of(tmp_path / "out" / "1_1" / "d_part0") == before


BAD_ARGUMENTS = {
    "no shards": ({"shards": 0}, "0 shards"),
    "too many shards": ({"shards": 10**6}, "1000000 shards"),
    "version 0": ({"version": 0}, "version 0"),
    "version of 2038": ({"version": 2**31}, "version 2147483648"),
    "name with a slash": ({"dict_name": "a/b"}, "'a/b'"),
    "name of a shell": ({"dict_name": "a;rm"}, "'a;rm'"),
    "delta of itself": ({"base": 100}, "other than its base's 100"),
    "last without base": ({"last": 99}, "give its base too"),
    "no input": ({"inputs": []}, "no input"),
}


@pytest.mark.parametrize(("change", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, vector, change, message):
    good = {"inputs": [vector], "output": tmp_path / "out", "dict_name": "d", "shards": 2, "version": 100}
    with pytest.raises(InputError, match=message):
        plan_build(**good | change)
    assert not (tmp_path / "out").exists()


def test_a_damaged_input_leaves_nothing(tmp_path, vector):
    vector.write_bytes(vector.read_bytes()[:-1])
    with pytest.raises(InputError, match="ends inside a record") as caught:
        build([vector], output=tmp_path / "out", dict_name="d", shards=1, version=1)
    assert (caught.value.path, caught.value.offset) == (str(vector), 0x90)
    assert list((tmp_path / "out").iterdir()) == []


def test_damage_is_skipped_and_counted_when_asked(tmp_path, vector):
    vector.write_bytes(vector.read_bytes()[:-1])
    report = build([vector], output=tmp_path / "out", dict_name="d", shards=1, version=1, skip_damage=True)
    assert (report.rows, report.skipped_bytes) == (2, 23)


def test_a_file_that_is_nothing_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "index.html").write_text("<html>a listing, as wget leaves it</html>")
    with pytest.raises(InputError, match="neither a SequenceFile nor a table") as caught:
        plan_build([tmp_path / "in"], output=tmp_path / "out", dict_name="d", shards=1, version=1)
    assert "cube dump" in caught.value.hint


def test_too_little_space_is_refused_before_writing(tmp_path, vector, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=300))
    with pytest.raises(StorageError, match="has 300 bytes free, building there takes more than 336"):
        plan_build([vector], output=tmp_path / "out", dict_name="d", shards=1, version=1)


@pytest.fixture
def small_disk(tmp_path: Path):
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can only be mounted by root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("tar", [False, True])
def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path, small_disk, tar, monkeypatch):
    size = 3_300_000 if not tar else 2_000_000
    keys = np.arange(size // 52, dtype=np.uint64)
    with seqfile.Writer(tmp_path / "s") as out:
        out.append_rows(keys, np.zeros((len(keys), 36), np.uint8))
    monkeypatch.setattr("cloudedge.cube._build._require_space", lambda _: None)  # it grows while others write
    (small_disk / "ballast").write_bytes(bytes(4 * 2**20 - 3_500_000))
    plan = plan_build([tmp_path / "s"], output=small_disk, dict_name="d", shards=2, version=1, tar=tar)
    with pytest.raises(StorageError, match="No space left"):
        run_build(plan)
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_a_read_only_place_is_a_storage_error(tmp_path, vector):
    with pytest.raises(StorageError):
        build([vector], output="/proc/cube", dict_name="d", shards=1, version=1)


KILLED = """
import os, signal, sys
from pathlib import Path
from cloudedge.cube import _build, _workspace, plan_build, run_build

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
plan = plan_build([sys.argv[1]], output=output, dict_name="d", shards=2, version=7)
run_build(plan, progress=die if point == "rows taken" else lambda _: None)
"""


@pytest.mark.parametrize("point", ["rows taken", "rows packed", "meta files copied"])
def test_a_killed_build_leaves_only_what_the_next_one_removes(tmp_path, vector, point):
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, vector, out, point], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    visible = [p.name for p in out.iterdir() if not p.name.startswith(".7_7.building-")]
    assert visible == (["meta_info"] if point == "meta files copied" else [])
    report = build([vector], output=out, dict_name="d", shards=1, version=8)
    assert report.rows == 3
    assert sorted(p.name for p in out.iterdir()) == ["8_8", "meta_info"]
    assert [p.name for p in (out / "meta_info").iterdir()] == ["8_8_0_0.json"]


def test_a_build_killed_just_after_publishing_is_there(tmp_path, vector):
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, vector, out, "published"], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    build([vector], output=out, dict_name="d", shards=1, version=8)
    assert sorted(p.name for p in out.iterdir()) == ["7_7", "8_8", "meta_info"]
    assert len(list((out / "meta_info").iterdir())) == 3
    assert load_part(out / "7_7" / "d_part1") == dict(shard_of(RECORDS, 1, 2))


def test_a_living_build_is_left_alone(tmp_path, vector):
    out = tmp_path / "out"
    out.mkdir()
    with Workspace(out, BuildName.base(5)) as other:
        build([vector], output=out, dict_name="d", shards=1, version=6)
        assert other.version.exists()
    assert sorted(p.name for p in out.iterdir()) == ["6_6", "meta_info"]


def test_two_builds_of_one_version_publish_one(tmp_path, vector):
    out = tmp_path / "out"
    out.mkdir()
    with Workspace(out, BuildName.base(5)) as slow:
        build([vector], output=out, dict_name="d", shards=1, version=5)
        with pytest.raises(Conflict, match="by someone else meanwhile"):
            slow.publish()
    assert sorted(p.name for p in out.iterdir()) == ["5_5", "meta_info"]


def test_progress_counts_all_of_the_input(tmp_path, vector):
    plan = plan_build([vector.parent], output=tmp_path / "out", dict_name="d", shards=1, version=1)
    seen: list[int] = []
    run_build(plan, progress=seen.append)
    assert sum(seen) == plan.input_bytes == 168


def test_memory_does_not_follow_the_table(tmp_path):
    rows = 1_200_000
    keys = np.random.default_rng(1).permutation(rows).astype(np.uint64)
    with seqfile.Writer(tmp_path / "s") as out:
        for start in range(0, rows, 100_000):
            out.append_rows(keys[start : start + 100_000], np.zeros((100_000, 128), np.uint8))
    program = (
        "import sys; from cloudedge.cube import build\n"
        # not ru_maxrss, which a process inherits from the one that started it
        "def peak(): return int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "before = peak()\n"
        "build([sys.argv[1]], output=sys.argv[2], dict_name='d', shards=3, version=1)\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "s", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) < 90_000  # kB; the table has 173 MB, the buffers 22 MB, the key set of one part 7 MB
