"""What a replica was told survives: kills in the middle of a restart, and versions that cannot be had for a while."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from cloudedge.errors import Conflict, IntegrityError, StorageError, Unavailable
from cloudedge.serving import BundleRows, Routing, Runtime, RuntimeConfig, Shadow, Variant
from cloudedge.serving.model import Version
from cloudedge.serving.model._batching import VersionQueue
from cloudedge.serving.runtime._saved_state import read_state
from tests.serving.models import pack_rows, row_table
from tests.serving.process import Process
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

FEED = {"ids": np.array([[4]]), "more": np.array([[2]])}


@pytest.fixture
def rows(models, tmp_path):
    """Three versions that look rows up."""
    made = []
    for shift in range(3):
        arrays = row_table()
        arrays["values"] += np.float32(shift)
        made.append(pack_rows(tmp_path / f"rows{shift}", models.hub, arrays))
    return made


@pytest.fixture
def state(models, rows, tmp_path):
    """The state file of a replica with three versions, of which the last answers."""
    file = tmp_path / "state.json"
    with Runtime(RuntimeConfig(workers=1), hub=models.hub, state=file) as runtime:
        for bundle in rows:
            runtime.load(models.ref(bundle))
        runtime.activate(rows[2].pin)
        runtime.set_weights([Variant(rows[2].pin, 9), Variant(rows[1].pin, 1, "canary")])
        runtime.set_shadow(Shadow(rows[0].pin))
    return file


def remembered(file):
    found = read_state(file)
    return {ref.pin for ref in found.versions}, found.routing


def source(away):
    """Rows from the bundle, but for versions that are away."""

    def rows(bundle, _):
        if bundle.pin in away:
            raise Unavailable("shard 1 did not answer")
        return BundleRows(bundle.sparse)

    return rows


@pytest.mark.parametrize("kill_at", [1, 2, 3])
def test_killed_again_while_it_restarts_it_forgets_nothing(models, rows, state, kill_at):
    before = remembered(state)
    code = """
import os, signal, sys
from pathlib import Path as P
from cloudedge.hub import LocalHub
from cloudedge.serving import BundleRows, Runtime, RuntimeConfig

asked = []
def rows(bundle, tables):
    asked.append(bundle.pin)
    if len(asked) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return BundleRows(bundle.sparse)

Runtime(RuntimeConfig(workers=1), hub=LocalHub(P(sys.argv[1])), rows=rows, state=P(sys.argv[2])).restore()
"""
    arguments = [str(models.folder / "hub"), str(state), str(kill_at)]
    killed = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert remembered(state) == before
    with Runtime(RuntimeConfig(workers=1), hub=models.hub, state=state) as runtime:
        assert runtime.restore() == []
        assert runtime.routing == before[1]
        assert runtime.queues.keys() == {bundle.pin for bundle in rows}


def test_what_could_not_be_had_is_remembered_and_comes_back(models, rows, state):
    before, away = remembered(state), {rows[2].pin}
    with Runtime(RuntimeConfig(workers=1), hub=models.hub, rows=source(away), state=state) as runtime:
        assert [lost.partition(":")[0] for lost in runtime.restore()] == [rows[2].pin]
        assert runtime.routing == Routing(shadow=Shadow(rows[0].pin))
        assert remembered(state) == before
        with pytest.raises(Conflict, match="active"):
            runtime.unload(rows[2].pin)
        away.clear()
        assert runtime.restore() == []
        assert runtime.routing == before[1]
        assert remembered(state) == before


def test_what_is_ordered_meanwhile_is_not_undone(models, rows, state):
    away = {rows[2].pin}
    with Runtime(RuntimeConfig(workers=1), hub=models.hub, rows=source(away), state=state) as runtime:
        runtime.restore()
        runtime.activate(rows[1].pin)
        assert remembered(state) == ({bundle.pin for bundle in rows}, runtime.routing)
        runtime.unload(rows[2].pin)
        away.clear()
        assert runtime.restore() == []
        assert runtime.routing.active == rows[1].pin
        assert remembered(state)[0] == {rows[0].pin, rows[1].pin}


def test_an_order_that_cannot_be_remembered_is_not_obeyed(models, tmp_path):
    zero, one = models.marked[:2]
    state = tmp_path / "state" / "file.json"
    with Runtime(RuntimeConfig(workers=1), hub=models.hub, state=state) as runtime:
        for bundle in (zero, one):
            runtime.load(models.ref(bundle))
        runtime.activate(zero.pin)
        state.unlink()
        state.mkdir()  # nothing can be put in its place
        with pytest.raises(StorageError):
            runtime.activate(one.pin)
        assert runtime.routing == runtime.wanted == Routing(zero.pin)


def test_a_replica_whose_active_version_is_away_waits_for_it(models, tmp_path):
    """Nobody else answers in its place, and it comes back by itself."""
    zero, one = models.marked[:2]
    state = tmp_path / "state.json"
    common = ["--hub", models.folder / "hub", "--port", 0, "--admin-port", 0, "--state", state]
    with Process(models.ref(one), *common) as process:
        assert process.ports["active"] == one.pin
        process.stop(signal.SIGKILL)
    parameters = next(file for path, file in one.dense.items() if path.endswith(".pdiparams"))
    hidden = parameters.with_name(f"{parameters.name}.away")
    parameters.rename(hidden)
    try:
        with Process(models.ref(zero), *common) as process:
            assert process.ports["active"] is None
            with Http(process.ports["port"]) as http:
                assert http.ask("GET", "/readyz").status == 503
                hidden.rename(parameters)
                end = time.monotonic() + 60
                while http.ask("GET", "/readyz").status != 200 and time.monotonic() < end:
                    time.sleep(0.1)
                assert http.predict([[1.0, 2.0]]).json()["pin"] == one.pin
    finally:
        if hidden.exists():
            hidden.rename(parameters)


def test_unloaded_twice_at_once_and_loaded_again_it_stays(marked, models, monkeypatch):
    """The second of two who unload comes late: what was loaded meanwhile is not its to take away."""
    bundle = models.marked[1]
    marked.load(models.ref(bundle))
    first = marked.queues[bundle.pin]
    late, go_on, close = threading.Event(), threading.Event(), VersionQueue.close

    def slow(queue, *arguments, **more):
        closed = close(queue, *arguments, **more)
        if threading.current_thread().name == "late":
            late.set()
            assert go_on.wait(60)
        return closed

    monkeypatch.setattr(VersionQueue, "close", slow)
    failures = []

    def unload():
        try:
            marked.unload(bundle.pin)
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    thread = threading.Thread(target=unload, name="late")
    thread.start()
    assert late.wait(60)
    marked.unload(bundle.pin)
    marked.load(models.ref(bundle))
    go_on.set()
    thread.join(60)
    assert not failures
    assert marked.version(bundle.pin).state == "ready"
    assert marked.queues[bundle.pin] is not first
    assert marked.ask({"x": np.ones((1, 2), np.float32)}, pin=bundle.pin).pin == bundle.pin


def test_who_asks_while_a_runtime_closes_is_told_at_once(models):
    runtime = Runtime(RuntimeConfig(workers=1, unload_wait_s=60), hub=models.hub)
    runtime.activate(runtime.load(models.ref(models.marked[0])).pin)
    queue = next(iter(runtime.queues.values()))
    queue.pending += 1  # a request that does not end: closing waits for it
    closing = threading.Thread(target=runtime.close)
    closing.start()
    while runtime.queues:
        time.sleep(0.01)
    with pytest.raises(Unavailable, match="no version is active"):
        runtime.hold()
    queue._finish(1)
    closing.join(60)
    assert not closing.is_alive()


def edit(path, at=-1):
    """Change one byte of a blob, as a broken disk or a careless editor does; its size stays."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("what", ["dense", "table"])
def test_a_version_whose_bytes_are_not_those_of_its_pin_does_not_answer_after_a_restart(models, rows, state, what):
    live = rows[2]
    blob = next(iter(live.dense.values())) if what == "dense" else live.sparse["t"].files[0]
    before = blob.read_bytes()
    edit(blob)
    with Runtime(RuntimeConfig(workers=1), hub=models.hub, state=state) as runtime:
        (lost,) = (text for text in runtime.restore() if text.startswith(live.pin))
        assert "is not what its digest says" in lost
        found = runtime.version(live.pin)
        assert found.state == "failed"
        assert blob.name in found.error
        assert live.pin not in runtime.queues
        assert live.pin in remembered(state)[0]
        blob.write_bytes(before)
        assert runtime.restore() == []
        assert runtime.routing.active == live.pin


def test_bytes_that_change_while_they_are_loaded_are_noticed(models, rows, monkeypatch):
    bundle = rows[0]
    blob = next(iter(bundle.dense.values()))
    before, ask = blob.read_bytes(), Version._tune

    def tune(self, *words):
        blob.write_bytes(before + b" ")
        return ask(self, *words)

    monkeypatch.setattr(Version, "_tune", tune)
    with Runtime(RuntimeConfig(workers=1), hub=models.hub) as runtime:
        with pytest.raises(IntegrityError, match="was changed while it was in use"):
            runtime.load(models.ref(bundle))
        blob.write_bytes(before)


def test_a_mapped_table_that_is_written_to_fails_its_probes(models, rows):
    bundle = rows[1]
    with Runtime(RuntimeConfig(workers=1), hub=models.hub) as runtime:
        runtime.load(models.ref(bundle))
        runtime.activate(bundle.pin)
        assert runtime.is_ready(0)
        file = bundle.sparse["t"].files[0]
        twin = file.with_name("twin")
        twin.hardlink_to(file)
        assert runtime.is_ready(0)  # a new name is no change
        twin.unlink()
        edit(file)
        assert not runtime.is_ready(0)
        assert "was changed while it was in use" in runtime.version(bundle.pin).probes_failed[0]
        edit(file)
