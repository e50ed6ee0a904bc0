from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from cloudedge import seqfile
from cloudedge.cube import PartStore, build, plan_build, run_build
from cloudedge.errors import InputError
from tests.cube.reference import DELTA, KEY3, RECORDS, files_of, load_part, part_files, shard_of, write_sequence

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


@pytest.mark.rules
def test_the_published_base_is_built_byte_for_byte(tmp_path, vector):
    report = build([vector.parent], output=tmp_path / "out", table="dict", shards=2, version=100)
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


@pytest.mark.parts
def test_parts_are_packed_as_delivered(tmp_path, vector):
    build([vector], output=tmp_path / "out", table="dict", shards=2, version=100)
    tar = tmp_path / "out" / "100_100" / "dict_part1.tar"
    with tarfile.open(tar) as packed:
        names = packed.getnames()
        contents = {m.name: packed.extractfile(m).read() for m in packed if m.isfile()}
    assert names == ["./data.0", "./index.0", "./data.n", "./index.n"]
    assert {name[2:]: content for name, content in contents.items()} == decoded(SHARD_1)
    listed = subprocess.run(["tar", "tf", tar], capture_output=True, text=True, check=True).stdout.split()
    assert listed == ["./data.0", "./index.0", "./data.n", "./index.n"]
    line = tar.with_name("dict_part1.tar.md5").read_text()
    assert line == f"{hashlib.md5(tar.read_bytes()).hexdigest()}  {tar}\n"
    assert subprocess.run(["md5sum", "-c", f"{tar}.md5"], capture_output=True, check=False).returncode == 0


@pytest.mark.rules
def test_the_same_input_gives_the_same_bytes(tmp_path, vector):
    tars = []
    for name in ("a", "b"):
        build([vector], output=tmp_path / name, table="dict", shards=2, version=100)
        tars.append((tmp_path / name / "100_100" / "dict_part0.tar").read_bytes())
    assert tars[0] == tars[1]


@pytest.mark.rules
def test_the_published_delta_is_built_byte_for_byte(tmp_path, vector):
    out = tmp_path / "out"
    build([vector], output=out, table="dict", shards=2, version=100)
    delta = write_sequence(tmp_path / "delta", DELTA)
    report = build([delta], output=out, table="dict", shards=2, version=101, base=100)
    version = out / "100_101"
    assert report.directory == version
    assert files_of(version / "dict_part1") == decoded(DELTA_1)
    lists = {name: content for name, content in decoded(SHARD_0).items() if name.endswith(".n")}
    assert files_of(version / "dict_part0") == lists
    told = json.loads((out / "meta_info" / "101_100_1_0.json").read_text())
    assert told == {"data_len_list": ["24", "24"], "index_len_list": ["32", "32"], "index_total_count": "4"}
    with tarfile.open(version / "dict_part1.tar") as packed:
        assert packed.getnames() == ["./data.1", "./index.1", "./data.n", "./index.n"]
    # Beside its base's files it loads from scratch.
    for name in ("index.0", "data.0"):
        shutil.copy(out / "100_100" / "dict_part1" / name, version / "dict_part1" / name)
    assert load_part(version / "dict_part1") == {**dict(shard_of(RECORDS, 1, 2)), **dict(DELTA)}


@pytest.mark.rules
def test_a_delta_continues_from_the_delta_before_it(tmp_path, vector):
    out = tmp_path / "out"
    build([vector], output=out, table="d", shards=1, version=100)
    build([write_sequence(tmp_path / "d1", DELTA)], output=out, table="d", shards=1, version=101, base=100)
    second = [(8, b"12345678")]
    build([write_sequence(tmp_path / "d2", second)], output=out, table="d", shards=1, version=102, base=100, last=101)
    part = out / "100_102" / "d_part0"
    assert sorted(path.name for path in part.iterdir()) == ["data.2", "data.n", "index.2", "index.n"]
    assert (part / "index.2").read_bytes() == struct.pack("<QQ", 8, 2 << 32)


@pytest.mark.rules
def test_a_delta_needs_the_meta_files_and_the_shards_of_its_base(tmp_path, vector):
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"100_100_0_0\.json: No such file"):
        plan_build([vector], output=out, table="d", shards=2, version=101, base=100)
    build([vector], output=out, table="d", shards=2, version=100)
    with pytest.raises(InputError, match="more than 1 shards"):
        plan_build([vector], output=out, table="d", shards=1, version=101, base=100)
    (out / "meta_info" / "100_100_1_0.json").write_text('{"data_len_list": [24]}')
    with pytest.raises(InputError, match="24 is not a number below 4294967296 written as a string"):
        plan_build([vector], output=out, table="d", shards=2, version=101, base=100)


def corpus() -> list[tuple[int, bytes]]:
    draw = random.Random(8)
    sizes = [0, 1, 3, 4, 36, 1023, 1024]
    keys = [0, 2**64 - 1, 2**63, 1, KEY3] + [draw.getrandbits(64) for _ in range(900)]
    keys += list(range(200))  # so that a hundred shards all have some
    return [(key, draw.randbytes(draw.choice(sizes))) for key in dict.fromkeys(keys)]


@pytest.mark.rules
@pytest.mark.parametrize("shards", [1, 7, 100])
@pytest.mark.parametrize("limit", [1 << 30, 2048])
def test_a_corpus_agrees_with_the_plain_reader(tmp_path, shards, limit):
    records = corpus()
    path = write_sequence(tmp_path / "s", records)
    plan = plan_build([path], output=tmp_path / "out", table="d", shards=shards, version=1, tar=False)
    report = run_build(plan, data_file_limit=limit)
    found = {}
    for i in range(shards):
        mine = shard_of(records, i, shards)
        part = report.directory / f"d_part{i}"
        assert files_of(part) == part_files(mine, limit)
        found |= load_part(part)
    assert found == dict(records)
    assert report.rows == len(records)


@pytest.mark.rules
def test_a_record_that_would_pass_the_limit_starts_the_next_file(tmp_path):
    records = [(i, bytes(508)) for i in range(5)]  # 512 bytes each, two fill a file exactly
    plan = plan_build([write_sequence(tmp_path / "s", records)], output=tmp_path / "o", table="d", shards=1, version=1)
    report = run_build(plan, data_file_limit=1028)
    part = report.directory / "d_part0"
    assert [(part / f"data.{i}").stat().st_size for i in range(3)] == [1024, 1024, 512]
    addresses = [address for _, address in struct.iter_unpack("<QQ", (part / "index.0").read_bytes())]
    assert addresses == [0, 512, 1 << 32, (1 << 32) + 512, 2 << 32]
    assert report.parts[0].data_files == 3


@pytest.mark.rules
def test_upstream_s_odd_cases(tmp_path):
    records = [(2**64 - 1, b"")]
    report = build([write_sequence(tmp_path / "s", records)], output=tmp_path / "o", table="d", shards=1, version=1)
    part = report.directory / "d_part0"
    assert (part / "index.0").read_bytes() == b"\xff" * 8 + bytes(8)
    assert (part / "data.0").read_bytes() == bytes.fromhex("04000000")


@pytest.mark.rules
def test_a_table_gives_the_same_parts_as_its_sequence_file(tmp_path):
    draw = np.random.default_rng(5)
    keys = np.unique(draw.integers(0, 2**64, 5000, np.uint64))
    for dtype in (np.float32, np.float16):
        values = draw.normal(size=(len(keys), 9)).astype(dtype)
        name = np.dtype(dtype).name
        save_file({"values": values, "keys": keys}, tmp_path / f"{name}.safetensors")
        records = [(int(k), v.tobytes()) for k, v in zip(keys, values, strict=True)]
        report = build(
            [tmp_path / f"{name}.safetensors"], output=tmp_path / name, table="d", shards=3, version=1, tar=False
        )
        for i in range(3):
            assert files_of(report.directory / f"d_part{i}") == part_files(shard_of(records, i, 3))
        assert report.duplicates == 0


@pytest.mark.rules
def test_the_last_row_of_a_key_wins_in_the_order_of_names(tmp_path):
    folder = tmp_path / "in"
    write_sequence(folder / "b", [(1, b"from b"), (2, b"only b")])
    write_sequence(folder / "a", [(1, b"from a"), (1, b"again a")])
    write_sequence(folder / "c" / "x", [(2, b"from cx")])
    write_sequence(folder / ".hidden", [(9, b"never")])
    (folder / "link").symlink_to(folder / "b")
    report = build([folder], output=tmp_path / "out", table="d", shards=1, version=1)
    assert load_part(report.directory / "d_part0") == {1: b"from b", 2: b"from cx"}
    assert (report.rows, report.duplicates) == (2, 3)
    assert report.parts[0].entries == 5  # as upstream: all are written, the later ones count


@pytest.mark.rules
def test_what_rows_add_up_to_is_noted_beside_a_base_and_right_with_duplicates(tmp_path, vector):
    seqfile.write(tmp_path / "twice", [(5, b"late"), (3, b"only"), (5, b"last"), (4, b"even")])
    report = build([tmp_path / "twice"], output=tmp_path / "out", table="d", shards=2, version=1, tar=False)
    assert report.duplicates == 1
    for i, rows in enumerate((1, 2)):
        told = json.loads((report.directory / f"d_part{i}.rows.json").read_text())
        shutil.copytree(report.directory / f"d_part{i}", tmp_path / f"alone{i}")
        assert told == {"checksum": PartStore.open(tmp_path / f"alone{i}").checksum, "rows": rows}
    delta = build([vector.parent], output=tmp_path / "out", table="d", shards=2, version=2, base=1, tar=False)
    assert not list(delta.directory.glob("*.rows.json"))


@pytest.mark.rules
def test_duplicates_are_counted_exactly(tmp_path):
    draw = random.Random(2)
    keys = [draw.randrange(3000) for _ in range(20_000)]
    path = write_sequence(tmp_path / "s", [(key, b"1234") for key in keys])
    report = build([path], output=tmp_path / "out", table="d", shards=4, version=1, tar=False)
    assert report.duplicates == len(keys) - len(set(keys))
    assert report.rows == len(set(keys))


@pytest.mark.rules
def test_progress_counts_all_of_the_input(tmp_path, vector):
    plan = plan_build([vector.parent], output=tmp_path / "out", table="d", shards=1, version=1)
    seen: list[int] = []
    run_build(plan, progress=seen.append)
    assert sum(seen) == plan.input_bytes == 168


@pytest.mark.parts
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
        "build([sys.argv[1]], output=sys.argv[2], table='d', shards=3, version=1)\n"
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


@pytest.mark.rules
def test_the_old_keyword_of_the_table_works_and_warns(tmp_path, vector):
    with pytest.deprecated_call(match="plan_build: dict_name is now table"):
        plan = plan_build([vector], output=tmp_path / "out", dict_name="d", shards=1, version=1)
    with pytest.deprecated_call(match=r"BuildPlan\.dict_name is now BuildPlan\.table"):
        assert plan.dict_name == plan.table == "d"
    with pytest.deprecated_call(match="build: dict_name is now table"):
        report = build([vector], output=tmp_path / "out", dict_name="d", shards=1, version=1)
    assert report.parts[0].path.endswith("d_part0")
