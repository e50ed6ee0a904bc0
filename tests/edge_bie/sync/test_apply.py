"""Applying to the lab: once is enough, whose things are touched, going back, drift, and being killed half-way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import requests

from cloudedge.clock import ManualClock
from cloudedge.config import HubConfig, ObjectsConfig
from cloudedge.edge_bie.client import AuditFile, Bie, Config, Node, Text, open_objects
from cloudedge.edge_bie.client._writer_lock import turn
from cloudedge.edge_bie.lab import Faults, Lab
from cloudedge.edge_bie.sync import Sync, desired_state, export_documents, load_documents, write_documents
from cloudedge.errors import Conflict, InputError, NotFound, Unavailable
from tests.edge_bie.sync.samples import app, config, desired, example

pytestmark = pytest.mark.parts


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path / "lab") as running:
        yield running


@pytest.fixture
def bie(lab, tmp_path):
    with Bie.from_url(lab.admin_url, audit=AuditFile(tmp_path / "audit.jsonl")) as opened:
        yield opened


@pytest.fixture
def sync(bie, lab, tmp_path):
    objects = open_objects(ObjectsConfig(store=HubConfig(url=str(lab.objects)), public_url=lab.objects_url))
    with Sync(bie, objects=objects, folder=tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def seed(sync, bie, tmp_path):
    bie.put_node(Node("paddle-serving-test"))
    return desired_state(load_documents(example(tmp_path / "f")), sync.objects)


def writes(lab):
    counts = requests.get(f"{lab.admin_url}/_lab/requests", timeout=5).json()["requests"]
    return [each for each in counts if not str(each.get("method", "")).startswith("GET")]


def audit(tmp_path):
    return [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]


def verbs(planned):
    return [(step.verb, f"{step.kind}/{step.name}") for step in planned.steps]


def test_the_seed_scenario(sync, bie, lab, seed, tmp_path):
    done = sync.apply(seed)
    assert verbs(done.plan) == [
        ("create", "config/paddle-yolov3-model"),
        ("create", "config/paddle-yolov3-run-script"),
        ("create", "app/paddle-serving"),
        ("label", "node/paddle-serving-test"),
    ]
    assert done.sent_bytes == len(b"a model")
    serving = bie.app("paddle-serving")
    assert bie.node("paddle-serving-test").desire_apps["paddle-serving"] == serving.version
    (model,) = bie.config("paddle-yolov3-model").items.values()
    assert requests.get(model.url, timeout=5).content == b"a model"
    lines = audit(tmp_path)
    assert [line["object"] for line in lines][1:] == [f"{s.kind}/{s.name}" for s in done.plan.steps]
    assert all(line["outcome"] == "done" and line["request_id"] and line["who"] and line["at"] for line in lines)
    assert lines[-1]["old_version"] != lines[-1]["new_version"]


def test_a_second_apply_writes_nothing(sync, lab, seed):
    sync.apply(seed)
    before = len(writes(lab))
    assert before
    again = sync.apply(seed)
    assert (again.number, again.plan.is_in_sync, len(writes(lab))) == (None, True, before)


def test_export_then_plan_is_in_sync(sync, bie, seed, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "t0p-s3cret")
    sync.apply(seed)
    sync.apply(
        desired(
            {"kind": "secret", "name": "keys", "values": {"token": "env:TOKEN"}, "description": "of ours"},
            {"kind": "registry", "name": "images", "address": "r.example", "username": "u", "password": "env:TOKEN"},
            app("second", "paddle-yolov3-run-script", registries=["images"], replica=2, workload="daemonset"),
        )
    )
    bie.put_config(Config("somebody-elses", {"a": Text("x\n\ty: [")}, labels={"team": "vision"}, description="hi"))
    files = write_documents(export_documents(bie), tmp_path / "exported")
    assert {file.name for file in files} == {
        "set.yaml", "configs.yaml", "secrets.yaml", "registries.yaml", "apps.yaml", "nodes.yaml",
    }  # fmt: skip
    assert "s3cret" not in "".join(file.read_text() for file in files)
    exported = desired_state(load_documents(tmp_path / "exported"))
    assert len(exported.configs) == 3
    planned = sync.plan(exported)
    assert planned.is_in_sync, planned
    with pytest.raises(Conflict, match="would be overwritten"):
        write_documents(export_documents(bie), tmp_path / "exported")
    only = export_documents(bie, only="seed")
    assert only[0].name == "seed"
    assert {d.name for d in only if d.kind == "config"} == {"paddle-yolov3-model", "paddle-yolov3-run-script"}


def test_drift_names_what_others_changed(sync, bie, seed):
    with pytest.raises(NotFound, match="never applied"):
        sync.drift("seed")
    sync.apply(seed)
    assert sync.drift("seed").is_in_sync
    script = bie.config("paddle-yolov3-run-script")
    bie.put_config(replace(script, items={"run.sh": Text("rm -rf /\n")}))
    bie.put_app(replace(bie.app("paddle-serving"), selector="serves=everything"))
    bie.set_labels("paddle-serving-test", {"serves": "nothing", "other": "stays"})
    found = sync.drift("seed")
    assert verbs(found) == [
        ("update", "config/paddle-yolov3-run-script"),
        ("update", "app/paddle-serving"),
        ("label", "node/paddle-serving-test"),
    ]
    assert sync.apply(seed).plan.steps
    assert sync.drift("seed").is_in_sync
    assert bie.node("paddle-serving-test").labels["other"] == "stays"


def test_foreign_objects_stand_in_the_way_until_adopted(sync, bie, lab):
    bie.put_config(Config("greeting", {"a": Text("theirs")}))
    wanted = desired(config(text="ours"), app())
    before = len(writes(lab))
    with pytest.raises(InputError, match="take it over with `--adopt`") as caught:
        sync.apply(wanted)
    assert caught.value.problems
    assert len(writes(lab)) == before, "not even the app was written"
    sync.apply(wanted, adopt=True)
    assert bie.config("greeting").labels == {"cloudedge": "owned", "cloudedge-set": "ours"}
    assert bie.config("greeting").items == {"a": Text("ours")}


def test_adopting_what_is_the_same_only_marks_it(sync, bie):
    bie.put_config(Config("greeting", {"a": Text("hello")}))
    assert sync.plan(desired(config())).is_in_sync
    assert verbs(sync.apply(desired(config()), adopt=True).plan) == [("adopt", "config/greeting")]
    assert sync.plan(desired(config()), adopt=True).is_in_sync


def test_deletes_keep_what_is_mounted_and_what_going_back_needs(sync, bie):
    sync.apply(desired(config("one"), config("two"), config("three"), app("first", "one"), app("second", "two")))
    smaller = desired(config("one"), app("first", "one"))
    assert sync.apply(smaller).plan.is_in_sync, "deletes are off"
    done = sync.apply(smaller, delete=True)
    assert verbs(done.plan) == [("delete", "app/second"), ("delete", "config/three")]
    assert bie.config("two") is not None
    assert any("config two is no longer in the documents and stays" in note for note in done.plan.notes)
    back = sync.recall(sync.history.before("ours"))
    sync.apply(back)
    assert bie.app("second").configs.keys() == {"two"}


def test_going_back_and_there_again(sync, bie, seed, tmp_path):
    with pytest.raises(NotFound, match="no previous state"):
        sync.history.before("seed")
    sync.apply(seed)
    (tmp_path / "f/model.zip").write_bytes(b"another model")
    (tmp_path / "f/scripts/run.sh").write_text("echo two\n")
    newer = desired_state(load_documents(tmp_path / "f"), sync.objects)
    second = sync.apply(newer)
    assert second.sent_bytes == len(b"another model")
    (tmp_path / "f/model.zip").unlink()
    back = sync.recall(sync.history.before("seed"))
    done = sync.apply(back)
    assert done.sent_bytes == 0
    assert bie.config("paddle-yolov3-run-script").items == seed.configs["paddle-yolov3-run-script"].items
    assert bie.config("paddle-yolov3-model").items == seed.configs["paddle-yolov3-model"].items
    sync.apply(sync.recall(sync.history.before("seed")))
    assert bie.config("paddle-yolov3-run-script").items == {"run.sh": Text("echo two\n")}
    assert [s.number for s in sync.history.states("seed")] == [4, 3, 2, 1]
    assert sync.history.before("seed", 1).documents == seed.documents


def test_a_password_is_applied_once_and_again_when_it_changes(sync, lab, tmp_path, monkeypatch):
    monkeypatch.setenv("PASSWORD", "p4ss-s3cret")
    document = {"kind": "registry", "name": "images", "address": "r", "username": "u", "password": "env:PASSWORD"}
    assert verbs(sync.apply(desired(document)).plan) == [("create", "registry/images")]
    assert sync.plan(desired(document)).is_in_sync
    monkeypatch.setenv("PASSWORD", "n3w-s3cret")
    assert verbs(sync.apply(desired(document)).plan) == [("refresh", "registry/images")]
    assert sync.plan(desired(document)).is_in_sync
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert b"s3cret" not in kept + (tmp_path / "audit.jsonl").read_bytes()


class Forgetful(Bie):
    """A control plane that forgets to tell nodes of apps until the node itself is written."""

    written = 0

    def node(self, name):
        found = super().node(name)
        return found if found is None or self.written else replace(found, desire_apps={})


def test_nodes_that_were_not_told_are_told(lab, tmp_path):
    def note(write):
        bie.written += write.object == "node/n1" and write.verb == "update"

    wanted = desired(config(), app(selector="ring=canary"))
    with Forgetful.from_url(lab.admin_url, audit=note) as bie, Sync(bie, folder=tmp_path / "state") as sync:
        bie.put_node(Node("n1", labels={"ring": "canary"}))
        sync.apply(wanted)
        assert bie.written == 1
        assert bie.node("n1").desire_apps["serving"] == bie.app("serving").version


def faults(lab, **shares):
    calm = dict.fromkeys(("delay", "error", "drop", "lost_answer", "cut", "lost_write", "duplicate"), 0.0)
    answer = requests.put(f"{lab.admin_url}/_lab/faults", json={"seed": 1, **calm, **shares}, timeout=5)
    assert answer.ok, answer.text


def test_a_desire_that_was_lost_is_seen_by_the_next_plan_and_mended_by_the_next_apply(lab, bie, sync):
    """As when the process is killed after a write and before it looked whether nodes were told."""
    wanted = desired(config(), app(selector="ring=canary"))
    bie.put_node(Node("n1"))
    sync.apply(wanted)
    faults(lab, lost_desire=1.0)
    body = requests.get(f"{lab.admin_url}/v1/nodes/n1", timeout=5).json()
    body["labels"]["ring"] = "canary"
    assert requests.put(f"{lab.admin_url}/v1/nodes/n1", json=body, timeout=5).ok
    faults(lab)
    assert verbs(sync.plan(wanted)) == [("tell", "app/serving")]
    assert verbs(sync.drift("ours")) == [("tell", "app/serving")]
    sync.apply(wanted)
    assert bie.node("n1").desire_apps["serving"] == bie.app("serving").version
    assert sync.plan(wanted).is_in_sync


def test_a_control_plane_that_forgets_to_tell_nodes(lab, bie, sync):
    """Only labels change: the app that nodes then match is not written, and they have to be told all the same."""
    names = [f"n{number}" for number in range(6)]
    for name in names:
        bie.put_node(Node(name))

    def wanted(ring):
        nodes = [{"kind": "node", "name": name, "labels": {"ring": ring}} for name in names]
        return desired(config(), app(selector="ring=canary"), *nodes)

    sync.apply(wanted("beta"))
    faults(lab, lost_desire=0.5)
    sync.apply(wanted("canary"))
    assert {bie.node(name).desire_apps["serving"] for name in names} == {bie.app("serving").version}
    assert sync.plan(wanted("canary")).is_in_sync


def test_two_at_once_on_one_machine(sync, tmp_path):
    with sync.history.writing(), pytest.raises(Conflict, match="is at work here"):
        sync.apply(desired(config()))


def test_what_is_planned_is_what_there_is_when_it_is_our_turn(lab, bie, sync, tmp_path):
    """Another writer of the same account, a fleet say, is at it: nothing is looked at before it is done."""
    wanted, looked = desired(config()), []
    honest = sync.observe
    sync.observe = lambda state: looked.append(1) or honest(state)
    with ThreadPoolExecutor(1) as pool:
        with bie.turn():
            waiting = pool.submit(sync.apply, wanted)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            assert not looked
            bie.put_config(wanted.configs["greeting"])
        assert waiting.result(60).plan.is_in_sync  # somebody did it meanwhile


def test_who_waits_too_long_for_its_turn_is_told_who_has_it(bie):
    with (
        bie.turn(),
        pytest.raises(Conflict, match=rf"process {os.getpid()}.* has been writing"),
        turn(bie.settings, ManualClock(), wait_s=5),
    ):
        pytest.fail("two at once")


def test_keys_of_storage_are_named_and_kept_nowhere(sync, bie, tmp_path, monkeypatch):
    monkeypatch.setenv("BOS_SK", "s3cret-key")
    entry = {"url": "https://x/m.zip", "md5": "0" * 32, "extra": {"sk": "env:BOS_SK", "bucket": "models"}}
    model = {"kind": "config", "name": "model", "files": {"m.zip": entry}}
    sync.apply(desired(model))
    assert bie.config("model").items["m.zip"].extra["sk"] == "s3cret-key"
    assert b"s3cret-key" not in b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert sync.plan(desired(model)).is_in_sync
    monkeypatch.setenv("BOS_SK", "another-s3cret")
    assert verbs(sync.plan(desired(model))) == [("update", "config/model")]
    entry["extra"]["sk"] = "s3cret-key"
    with pytest.raises(InputError, match=r"extra\.sk is a secret") as caught:
        desired(model)
    assert "s3cret-key" not in str(caught.value)


def test_a_file_that_changes_after_the_plan_is_not_applied(sync, bie, seed, tmp_path):
    (tmp_path / "f/model.zip").write_bytes(b"changed meanwhile")
    with pytest.raises(Exception, match="digest"):
        sync.apply(seed)
    assert bie.config("paddle-yolov3-model") is None
    assert sync.history.states("seed")[0].state == "failed"


APPLY = """
    import os, sys
    from pathlib import Path
    from cloudedge.edge_bie.client import Bie
    from cloudedge.edge_bie.sync import Sync, desired_state, load_documents
    url, folder, state, last = sys.argv[1:]
    with Bie.from_url(url) as bie, Sync(bie, folder=Path(state)) as sync:
        seen = []
        def step(each):
            seen.append(each)
            if len(seen) == int(last):
                os.kill(os.getpid(), 9)
        sync.apply(desired_state(load_documents(Path(folder))), on_step=step)
"""


@pytest.mark.parametrize("last", [1, 3, 5])
def test_killed_anywhere_the_next_apply_goes_on(lab, bie, sync, tmp_path, last):
    folder = tmp_path / "docs"
    folder.mkdir()
    documents = [config(f"c{i}x") for i in range(3)] + [app("first", "c0x"), app("second", "c1x")]
    (folder / "all.json.yaml").write_text("\n---\n".join(json.dumps(each) for each in documents))
    words = [lab.admin_url, str(folder), str(tmp_path / "state"), str(last)]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(APPLY), *words], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert len(bie.configs()) == min(last - 1, 3)
    wanted = desired_state(load_documents(folder))
    assert len(sync.apply(wanted).plan.steps) == 6 - last
    assert [state.state for state in sync.history.states("default")] == ["done", "failed"]
    assert sync.plan(wanted).is_in_sync


@pytest.mark.parametrize("seed_number", range(3))
def test_on_a_bad_day_apply_until_it_is_done(tmp_path, seed_number):
    faults = Faults(seed=seed_number, delay=0, error=0.04, drop=0.04, lost_answer=0.06, lost_write=0.04, duplicate=0.04)
    documents = [config(f"c{i}x", str(i)) for i in range(4)] + [app(f"a{i}x", f"c{i}x") for i in range(4)]
    wanted = desired(*documents)
    lab = Lab(tmp_path / "lab", faults=faults, seed=seed_number)
    with lab, Bie.from_url(lab.admin_url, clock=ManualClock()) as bie, Sync(bie, folder=tmp_path / "state") as sync:
        for _ in range(20):
            try:
                sync.apply(wanted)
                break
            except (Unavailable, Conflict):
                continue
        requests.delete(f"{lab.admin_url}/_lab/faults", timeout=5).raise_for_status()
        assert sync.plan(wanted).is_in_sync
        assert {each.name for each in bie.configs()} == {f"c{i}x" for i in range(4)}
