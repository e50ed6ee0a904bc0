"""The same job on this machine: really two workers over gloo, kept alive without a terminal, stopped and explained."""

import os
import signal
import time
from pathlib import Path

import pytest

from cloudedge.errors import Conflict, InputError, NotFound
from cloudedge.training import PvcMount, Role, TrainingFailed, TrainingJob, local
from cloudedge.training.local._keeper import read_state
from tests import ROOT
from tests.training.samples import BUILT, MANIFESTS, check_click_lines, click_job, role

pytestmark = pytest.mark.parts

pytest.importorskip("paddle", reason="needs paddlepaddle")
HERE = Path(__file__).parent
SCRIPT = "allreduce_job.py"


def test_two_workers_train_the_click_model_and_it_is_packed_with_its_table(hub, tmp_path):
    (tmp_path / "bad.py").write_text("raise SystemExit('no such data')\n")
    bad = local.submit(TrainingJob.single("bad", role(command=["python", "bad.py"])), workdir=tmp_path)
    job = click_job()
    run = local.submit(job, workdir=ROOT)
    assert local.submit(job, workdir=ROOT).status().uid == run.status().uid
    with pytest.raises(Conflict, match="--replace"):
        local.submit(job.with_queue("other"), workdir=ROOT)
    lines = [line for line in run.logs(follow=True, timeout_s=200) if line.text.startswith("worker")]
    check_click_lines({rank: [line.text for line in lines if line.pod == f"worker-{rank}"] for rank in (0, 1)})
    done = run.wait(timeout_s=100)
    assert str(done.roles["worker"]) == "2 succeeded of 2"
    mine = [line.text for line in run.logs(role="worker", index=1) if line.text.startswith("worker")]
    assert mine == [line.text for line in lines if line.pod == "worker-1"]
    assert [each.name for each in local.list_runs()] == ["bad", "ctr"]
    bundle = run.outputs.pack("ctr", split=True, hub=hub)
    assert list(bundle.sparse) == ["embedding"]
    assert 0.5 < bundle.lineage.metrics["auc"] < 1
    assert bundle.lineage.job.startswith("local/ctr@")
    run.delete()
    assert run.status().state == "gone"
    with pytest.raises(TrainingFailed, match="no such data"):
        bad.wait(timeout_s=100)


def test_a_run_is_stopped_and_one_whose_keeper_is_killed_is_seen(tmp_path):
    (tmp_path / "slow.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    role = Role("any:1", command=["python", "slow.py"])
    stops, dies = (local.submit(TrainingJob.single(name, role), workdir=tmp_path) for name in ("stops", "dies"))
    workers = {run.name: int(next(iter(run.logs(follow=True, timeout_s=100))).text) for run in (stops, dies)}

    assert stops.status().state == "running"
    assert [line.text for line in stops.logs(tail=1)] == [str(workers["stops"])]
    kept = stops.stop()
    assert (kept / "workerlog.0").read_text() == f"{workers['stops']}\n"
    assert stops.status().state == "stopped"
    assert not _is_alive(workers["stops"])  # it is gone before `stop` returns
    with pytest.raises(TrainingFailed, match="stopped"):
        stops.wait(timeout_s=1)

    assert _is_alive(workers["dies"])
    os.kill(read_state(dies.folder)["pid"], signal.SIGKILL)
    os.utime(dies.folder / "job.yaml", (0, 0))  # long after it was begun
    with pytest.raises(TrainingFailed, match="was killed"):
        dies.wait(timeout_s=60)
    deadline = time.monotonic() + 60
    while _is_alive(workers["dies"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_alive(workers["dies"])
    dies.delete()


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_parameter_servers_are_refused_where_paddle_has_none(tmp_path):
    assert "--server_num" in local.plan(BUILT["ps"]).argv
    if local.supports_servers():
        pytest.skip("this paddlepaddle has parameter servers")
    with pytest.raises(InputError, match="no parameter servers"):
        local.submit(BUILT["ps"], workdir=tmp_path)
    assert not local.list_runs()


def words(*command, **more):
    return local.plan(TrainingJob.collective("w", Role("any:1", replicas=2, command=command, **more))).argv


@pytest.mark.parametrize(
    "command",
    [
        ("python", "train.py", "--lr", "1"),
        ("/usr/bin/python3.9", "-u", "train.py", "--lr", "1"),
        ("python", "-m", "paddle.distributed.launch", "--gpus", "0,1", "--nnodes=2", "train.py", "--lr", "1"),
        ("fleetrun", "--ips=1.2.3.4", "train.py", "--lr", "1"),
        ("bash", "-c", "python -m paddle.distributed.launch train.py --lr 1"),
    ],
)
def test_the_command_is_found(command):
    argv = words(*command)
    assert argv[-3:] == ("train.py", "--lr", "1")
    assert argv[argv.index("--nproc_per_node") + 1] == "2"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ((), "names no command"),
        (("sh", "-c", "cd x && python train.py"), "shell script"),
        (("sh", "run.sh"), "shell script"),
        (("python", "-m", "train"), "cannot start"),
        (("python", "-m", "paddle.distributed.launch", "--gpus", "0"), "names no file"),
        (("./train",), "cannot start"),
    ],
)
def test_what_cannot_be_launched_is_said(command, why):
    with pytest.raises(InputError, match=why):
        words(*command)


def test_the_ctr_job_runs_what_its_entry_says(tmp_path):
    whole = TrainingJob.from_yaml(MANIFESTS / "ctr-volcano.yaml")
    planned = local.plan(whole)
    assert planned.argv[-5:] == ("train.py", "--is_local", "0", "--cloud_train", "1")
    assert (planned.servers, planned.workers) == (2, 2)
    trainers = Role("any:1", replicas=2)
    entry = f"cd /workspace/ctr && python {SCRIPT}"
    built = TrainingJob.ctr(
        "ctr", pserver=Role("any:1"), trainer=trainers, entry=entry, output=PvcMount("m", "/workspace/ctr/models")
    )
    assert any("not to pvc://m" in note for note in local.plan(built).notes)
    if not local.supports_servers():
        with pytest.raises(InputError, match="no parameter servers") as refused:
            local.submit(built, workdir=HERE)
        assert "workers only" in refused.value.hint
    built.manifest["spec"]["tasks"] = [task for task in built.manifest["spec"]["tasks"] if task["name"] == "trainer"]
    run = local.submit(built, workdir=HERE)
    assert str(run.wait(timeout_s=300).roles["trainer"]) == "2 succeeded of 2"
    assert {line.text for line in run.logs() if line.text.startswith("rank")} == {
        f"rank {n} of 2 has 3" for n in (0, 1)
    }


def test_what_makes_no_sense_here_is_said():
    with pytest.raises(InputError, match="heter"):
        local.plan(BUILT["heter"])
    with pytest.raises(NotFound):
        local.attach("nothing")
    many = TrainingJob.collective("many", role(replicas=65))
    with pytest.raises(InputError, match="1 to 64"):
        local.plan(many)
    notes = local.plan(TrainingJob.from_yaml(MANIFESTS / "collective-gpu.yaml")).notes
    assert any("GPUs are not used" in note for note in notes)
