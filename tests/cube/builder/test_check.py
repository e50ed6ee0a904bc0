from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cloudedge import _core, seqfile
from cloudedge.cli.cube import app
from cloudedge.cube import build, check, inspect
from cloudedge.errors import CloudEdgeError, InputError
from tests.cube.reference import DELTA, RECORDS, part_files, sequence_bytes, write_part


@pytest.fixture
def version(tmp_path: Path) -> Path:
    (tmp_path / "s").write_bytes(sequence_bytes(RECORDS))
    return build([tmp_path / "s"], output=tmp_path / "out", table="d", shards=2, version=100).directory


@pytest.mark.rules
def test_a_version_as_built_is_whole(version):
    report = check(version)
    assert report.all_faults == []
    assert (report.kind, report.facts["rows"], report.facts["shards"]) == ("version", 3, 2)
    keys = np.array([key for key, _ in RECORDS], np.uint64)
    values = np.frombuffer(b"".join(value for _, value in RECORDS), np.uint8).reshape(3, 8)
    low, high = _core.checksum(keys, [values])
    assert report.facts["checksum"] == f"{high:016x}{low:016x}"
    assert [part.facts["rows"] for part in report.parts] == [1, 2]


def damage(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


FAULTS = {
    "a value": (lambda v: damage(v / "d_part1" / "data.0"), "data.0, byte 23: not what d_part1.tar holds"),
    "an address": (lambda v: damage(v / "d_part1" / "index.0", 8), "its record starts at data.0 offset 0"),
    "a list": (lambda v: damage(v / "d_part1" / "data.n"), "data.n says"),
    "a tar": (lambda v: damage(v / "d_part0.tar"), "has the MD5"),
    "an md5": (lambda v: (v / "d_part0.tar.md5").write_text("?"), "32 hexadecimal digits"),
    "no md5": (lambda v: (v / "d_part0.tar.md5").unlink(), "d_part0.tar.md5"),
    "a meta file": (lambda v: damage(v.parent / "meta_info" / "100_100_0_0.json", 25), "meta_info/100_100_0_0.json"),
    "no meta file": (lambda v: (v.parent / "meta_info" / "100_100_0_0.json").unlink(), "No such file"),
    "no list": (lambda v: (v / "d_part0" / "index.n").unlink(), "no index.n"),
    "swapped parts": (
        lambda v: [(v / a).rename(v / b) for a, b in [("d_part0", "x"), ("d_part1", "d_part0"), ("x", "d_part1")]],
        "belongs to shard 1 of 2",
    ),
    "a missing part": (lambda v: shutil.rmtree(v / "d_part0"), "not numbered"),
}


@pytest.mark.rules
@pytest.mark.parametrize(("do", "message"), FAULTS.values(), ids=FAULTS)
def test_whatever_is_wrong_with_a_version_is_found(version, do, message):
    do(version)
    assert any(message in fault for fault in check(version).all_faults)


@pytest.mark.rules
def test_a_delta_is_checked_with_and_without_its_base_s_files(tmp_path, version):
    (tmp_path / "d").write_bytes(sequence_bytes(DELTA))
    delta = build([tmp_path / "d"], output=tmp_path / "out", table="d", shards=2, version=101, base=100).directory
    assert check(delta).all_faults == []
    data = delta / "d_part1" / "data.1"
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    assert any("has 23 bytes, the lists say 24" in fault for fault in check(delta).all_faults)
    data.write_bytes(content)
    for part in ("d_part0", "d_part1"):
        (delta / f"{part}.tar").unlink()
        for name in ("index.0", "data.0"):
            shutil.copy(version / part / name, delta / part / name)
    report = check(delta)
    assert report.all_faults == []
    assert report.facts["rows"] == 4


@pytest.mark.rules
def test_a_sequence_file_is_counted_and_its_damage_found(tmp_path):
    path = tmp_path / "s"
    path.write_bytes(sequence_bytes([*RECORDS, (9, b"")]))
    report = check(path)
    assert (report.faults, report.facts["records"]) == ([], 4)
    assert (report.facts["shortest_value"], report.facts["longest_value"]) == (0, 8)
    path.write_bytes(path.read_bytes()[:-1])
    assert "byte 168" in check(path).faults[0]


@pytest.mark.rules
def test_values_that_servers_do_not_deliver_are_a_fault(tmp_path):
    part = write_part(tmp_path / "p", part_files([(1, bytes(2000))]))
    assert "1 values are longer than 1024 bytes" in check(part).faults[0]


@pytest.mark.rules
@pytest.mark.parametrize("function", [check, inspect])
def test_who_names_the_output_of_builds_is_told_its_versions(version, function):
    with pytest.raises(InputError) as caught:
        function(version.parent)
    assert str(version) in caught.value.hint


@pytest.mark.rules
@pytest.mark.parametrize("function", [check, inspect])
def test_what_is_nothing_is_refused(tmp_path, function):
    (tmp_path / "x").write_text("what?")
    (tmp_path / "empty").mkdir()
    for name in ("x", "empty", "nothing"):
        with pytest.raises(InputError):
            function(tmp_path / name)


@pytest.mark.rules
def test_a_first_look_at_each_kind(tmp_path, version):
    seen = inspect(tmp_path / "s", rows=2)
    assert seen["kind"] == "SequenceFile"
    assert seen["first"] == [
        {"key": 1, "bytes": 8, "value": [1.0, 2.0]},
        {"key": 2, "bytes": 8, "value": [0.5, -0.25]},
    ]
    seen = inspect(version)
    assert (seen["kind"], seen["version"], seen["depend"]) == ("version", 100, 100)
    assert [part["entries"] for part in seen["parts"]] == [1, 2]
    assert inspect(version / "d_part1")["data_bytes"] == 24


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.rules
def test_the_command_line_from_array_to_checked_version(tmp_path):
    np.save(tmp_path / "emb.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    code, out, _ = run("dump", tmp_path / "emb.npy", tmp_path / "seq", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 6)
    arguments = [
        "build", tmp_path / "seq", "--output", tmp_path / "out", "--table", "ctr", "--shards", 2, "--version", 7,
    ]  # fmt: skip
    code, out, _ = run(*arguments, "--dry-run", "--json")
    assert (code, json.loads(out)["parts"]) == (0, ["ctr_part0", "ctr_part1"])
    assert not (tmp_path / "out").exists()
    code, out, err = run(*arguments)
    assert code == 0
    assert "6 rows in 2 parts" in out
    assert f"next: cloudedge cube check {tmp_path / 'out' / '7_7'}" in err
    code, out, _ = run("inspect", tmp_path / "out" / "7_7")
    assert code == 0
    assert "ctr_part1" in out
    code, out, _ = run("check", tmp_path / "out" / "7_7", "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    assert json.loads(out)["table"] == json.loads(out)["dict_name"] == "ctr"
    damage(tmp_path / "out" / "7_7" / "ctr_part0" / "data.0")
    code, out, err = run("check", tmp_path / "out" / "7_7")
    assert code == 1
    assert "fault: " in err
    with pytest.raises(CloudEdgeError, match="7_7 exists already"):
        run(*arguments)


@pytest.mark.rules
def test_the_old_option_of_the_table_works_and_warns(tmp_path):
    seqfile.write(tmp_path / "s", [(0, b"1234")])
    plan = ("build", tmp_path / "s", "--output", tmp_path / "out", "--shards", 1, "--version", 1, "--dry-run", "--json")
    code, out, err = run(*plan, "--dict", "d")
    assert (code, json.loads(out)["parts"]) == (0, ["d_part0"])
    assert "--dict is now --table" in err
    code, out, err = run(*plan, "--table", "d")
    assert (code, json.loads(out)["parts"], err) == (0, ["d_part0"], "")
    code, _, err = run(*plan)
    assert code == 2
    assert "Missing option '--table'" in err
    _, out, _ = run("build", "--help")
    assert "--table" in out
    assert "--dict" not in out


@pytest.mark.rules
def test_what_a_build_did_is_told(tmp_path):
    seqfile.write(tmp_path / "s", [(0, b"1234"), (0, b"5678")])
    common = ("--output", tmp_path / "out", "--table", "d", "--no-tar", "--shards", 2)
    code, _, err = run("build", tmp_path / "s", *common, "--version", 1, "--reserve-key")
    assert code == 0
    assert "1 rows had a key that comes again later" in err
    assert "shard 1 had no key and got 9223372036854775809" in err
    code, out, _ = run("build", tmp_path / "s", *common, "--version", 2, "--reserve-key", "--json")
    report = json.loads(out)
    assert (code, report["rows"], report["duplicates"]) == (0, 2, 1)
    assert report["parts"][1]["reserved_key"] == 2**63 + 1


@pytest.mark.rules
@pytest.mark.parametrize("command", ["dump", "build", "inspect", "check"])
def test_help_teaches_with_an_example(command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"Example: cloudedge cube {command}" in out


@pytest.mark.parts
def test_help_loads_no_numpy(tmp_path):
    program = "import sys; import cloudedge.cli.cube; assert 'numpy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
