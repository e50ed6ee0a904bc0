"""Hot loads: the stamp comes last and only when something changed; what a crash leaves is mended by the next try."""

import hashlib
import json
import signal
import subprocess
import sys
import tarfile
from datetime import datetime, timezone

import pytest

from cloudedge.bundle import Bundle, Signature, Variable
from cloudedge.clock import ManualClock
from cloudedge.errors import InputError, NotFound
from cloudedge.serving import export, follow, load_into, plan_export, publish_for_monitor
from cloudedge.serving.stock import _hotload

SIGNATURE = Signature(feed=(Variable(name="x", shape=(4,)),), fetch=(Variable(name="out"),))


@pytest.fixture
def packed(tmp_path, hub):
    def pack(content, program="model.pdmodel"):
        folder = tmp_path / f"source-{content}"
        folder.mkdir()
        (folder / program).write_text(f"program {content}")
        (folder / "model.pdiparams").write_text(f"parameters {content}")
        return Bundle.pack(folder, name="ctr", signature=SIGNATURE, framework_version="2.6.2", hub=hub)

    return pack


@pytest.fixture
def live(tmp_path, packed):
    bundle = packed("one")
    export(bundle, plan_export(bundle), tmp_path / "server")
    return tmp_path / "server/serving_server"


def seconds(path):
    return int(path.stat().st_mtime)


@pytest.mark.rules
def test_files_are_replaced_and_the_stamp_changes_by_whole_seconds(live, packed):
    bundle, stamp = packed("two"), live / "fluid_time_file"
    before = seconds(stamp)
    clock = ManualClock(datetime.fromtimestamp(before, timezone.utc))
    done = load_into(bundle, plan_export(bundle), live, clock=clock)
    assert "model.pdmodel" in done.written
    assert (live / "model.pdmodel").read_text() == "program two"
    assert (live / "model.pdiparams").read_text() == "parameters two"
    assert seconds(stamp) == before + 1  # though no second has passed
    assert sorted(path.name for path in live.iterdir() if path.name.endswith(".new")) == []


@pytest.mark.rules
def test_the_same_bundle_again_reloads_nothing(live, packed):
    bundle = packed("two")
    load_into(bundle, plan_export(bundle), live)
    stamped = seconds(live / "fluid_time_file")
    assert load_into(bundle, plan_export(bundle), live).stamp is None
    assert seconds(live / "fluid_time_file") == stamped


@pytest.mark.rules
def test_a_dry_run_changes_nothing(live, packed):
    bundle = packed("two")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in live.iterdir()}
    assert load_into(bundle, plan_export(bundle), live, dry_run=True).stamp == live / "fluid_time_file"
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in live.iterdir()} == before


@pytest.mark.rules
def test_programs_the_engine_could_take_instead_are_removed(live, packed):
    (live / "__model__").write_text("an older layout")
    (live / "params").write_text("an older layout")
    (live / "README").write_text("kept")
    bundle = packed("two")
    assert load_into(bundle, plan_export(bundle), live).removed == ("__model__", "params")
    assert (live / "README").exists()
    assert not (live / "__model__").exists()


@pytest.mark.rules
def test_a_folder_that_no_server_reads_is_refused(tmp_path, packed):
    bundle = packed("one")
    with pytest.raises(InputError, match="fluid_time_file"):
        load_into(bundle, plan_export(bundle), tmp_path)


CRASH = """
import os, signal, sys
from pathlib import Path
from cloudedge.bundle import Bundle
from cloudedge.hub import LocalHub
from cloudedge.serving import load_into, plan_export
from cloudedge.serving.stock import _hotload
calls = 0
def count(function):
    def counted(*arguments):
        global calls
        if calls == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return function(*arguments)
    return counted
_hotload._replace, _hotload._touch = count(_hotload._replace), count(_hotload._touch)
bundle = Bundle.open("ctr:2", hub=LocalHub(Path(sys.argv[1])))
load_into(bundle, plan_export(bundle), sys.argv[2])
print(calls)
"""


@pytest.mark.parts
def test_killed_between_any_two_steps_the_next_try_finishes(live, packed, tmp_path):
    bundle = packed("two")
    steps = len(plan_export(bundle).server_files()) + 3
    stamp = live / "fluid_time_file"
    for step in range(steps + 1):
        first = Bundle.open("ctr:1", hub=bundle.hub)
        load_into(first, plan_export(first), live)
        before = seconds(stamp)
        done = subprocess.run(
            [sys.executable, "-c", CRASH, str(tmp_path / "hub"), str(live), str(step)], check=False, capture_output=True
        )
        assert done.returncode == (-signal.SIGKILL if step < steps else 0), done.stderr
        if step < steps - 1:
            assert seconds(stamp) == before  # until the stamp changes a running server reads nothing
        load_into(bundle, plan_export(bundle), live)
        assert (live / "model.pdmodel").read_text() == "program two"
        assert seconds(stamp) > before


@pytest.mark.rules
def test_a_tar_for_the_monitor(tmp_path, packed):
    bundle, place = packed("one"), tmp_path / "www"
    done = publish_for_monitor(bundle, plan_export(bundle), place, model="ctr")
    assert done.written == ("ctr.tar", "donefile")
    with tarfile.open(place / "ctr.tar") as archive:
        names = archive.getnames()
        assert archive.extractfile("ctr/model.pdmodel").read() == b"program one"
    assert names[0] == "ctr"
    assert "ctr/fluid_time_file" not in names  # the monitor touches it when all the others are there
    first, stamped = hashlib.sha256((place / "ctr.tar").read_bytes()).digest(), seconds(place / "donefile")
    assert publish_for_monitor(bundle, plan_export(bundle), place, model="ctr").stamp is None
    newer = packed("two")
    publish_for_monitor(newer, plan_export(newer), place, model="ctr")
    assert hashlib.sha256((place / "ctr.tar").read_bytes()).digest() != first
    assert seconds(place / "donefile") > stamped
    assert sorted(path.name for path in place.iterdir()) == ["ctr.tar", "donefile"]


@pytest.mark.rules
def test_a_tag_is_followed(live, packed, hub):
    """What it names next is handed over, once; what cannot be is said once and does not end it."""
    clock, looks = ManualClock(), []
    packed("two")
    moves = iter(["ctr:2", "ctr:2", "ctr:3", "ctr:3", "ctr:9", "ctr:9", "ctr:4"])
    packed("three", program="model.json")  # which a C++ server cannot run
    packed("four")

    def find():
        looks.append(next(moves))
        return Bundle.open(looks[-1], hub=hub)

    events = follow(find, lambda bundle: load_into(bundle, plan_export(bundle), live), every_s=5, clock=clock)
    bundle, done = next(events)
    assert (bundle.version, done.stamp) == ("2", live / "fluid_time_file")
    assert "PIR program" in next(events).message
    assert looks == ["ctr:2", "ctr:2", "ctr:3"], "the same bundle is not handed over again"
    assert isinstance(next(events), NotFound)
    bundle, _ = next(events)
    assert bundle.version == "4"
    assert (live / "model.pdmodel").read_text() == "program four"


@pytest.mark.parts
def test_a_tag_is_followed_by_the_command(live, packed, tmp_path):
    bundle = packed("two")
    command = [sys.executable, "-m", "cloudedge", "serving", "hot-load", "ctr", "--from", str(bundle.hub.root)]
    command += ["--live", str(live), "--follow", "--every", "0.1", "--local", str(tmp_path / "mine"), "--json"]

    def told(process):
        lines = iter(process.stdout.readline, "}\n")
        return json.loads("".join(lines) + "}")["digest"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert told(process) == bundle.digest
            newer = packed("three")
            assert told(process) == newer.digest
        finally:
            process.terminate()
    assert (live / "model.pdmodel").read_text() == "program three"


@pytest.mark.rules
def test_the_tar_is_there_before_the_donefile(tmp_path, packed, monkeypatch):
    bundle, place = packed("one"), tmp_path / "www"

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_hotload, "_stamp", killed)
    with pytest.raises(KeyboardInterrupt):
        publish_for_monitor(bundle, plan_export(bundle), place)
    assert (place / "model.tar").exists()
    assert not (place / "donefile").exists()
    monkeypatch.undo()
    assert publish_for_monitor(bundle, plan_export(bundle), place).stamp == place / "donefile"
