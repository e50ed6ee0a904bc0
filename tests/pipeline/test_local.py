"""The click model's pipeline really run on this machine by kfp's local runner: nothing in it is a stand-in."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
import requests
from boto3.session import Session

from cloudedge.cache.local import LocalDatasets
from cloudedge.errors import CloudEdgeError, Conflict, InputError, NotFound
from cloudedge.pipeline import (
    DatasetInputs,
    LocalSteps,
    ModelHub,
    ModelHubInputs,
    PipelineFailed,
    ServingInputs,
    TrainingInputs,
    VisualDLInputs,
    compile_file,
    run_local,
    stop,
)
from cloudedge.pipeline import _local as module
from cloudedge.serving import Client
from cloudedge.supervisor import find_processes
from tests import ROOT
from tests.hub.objects.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, rclone

CTR = ROOT / "examples" / "ctr"
COUNT = 1500


def free_ports(count: int) -> list[int]:
    """Find ports that nobody gets by chance while training runs: below those that the kernel gives away."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found


def command(*words, **env) -> subprocess.CompletedProcess:
    told = os.environ | {"GLOG_minloglevel": "2"} | env
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, env=told, capture_output=True, text=True, check=False
    )


@pytest.mark.parts
@pytest.mark.timeout(1200)  # a minute on two idle cores; how busy they are says nothing about it
def test_the_whole_pipeline(tmp_path):
    # One test: what it takes a minute to make is looked at from every side.
    source, root = tmp_path / "clicks", tmp_path / "root"
    assert command(CTR / "task.py", "draw", "--output", source, "--count", COUNT).returncode == 0
    serving, visualdl = free_ports(2)
    values = {"source": f"file://{source}", "changes": "epochs=2", "version": "1"}
    values |= {"serving_port": serving, "visualdl_port": visualdl}
    settings = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    words = ["-m", "cloudedge", "pipeline", "run", CTR / "pipeline.py", "--local", "--root", root, "--json"]
    try:
        done = command(*words, *settings)
        assert done.returncode == 0, done.stderr
        ran = root, {each["step"]: each for each in json.loads(done.stdout)}
        every_step_was_done_in_order(*ran)
        what_is_served_is_what_was_trained(*ran)
        the_real_visualdl_reads_the_logs(*ran)
        visualdl_shows_them(*ran)
        a_step_that_is_done_again_is_done_once(*ran)
        services_are_taken_away_twice(*ran)
    finally:
        stop(root)


def every_step_was_done_in_order(root, results):
    assert list(results) == ["dataset", "training", "modelhub", "serving", "visualdl"]
    assert results["dataset"]["files"] == 1
    record = ModelHub.at(str(root / "hub")).record("ctr", "1")
    assert record.sha256 == results["modelhub"]["sha256"] == results["serving"]["sha256"]


def what_is_served_is_what_was_trained(root, results):
    asked = {"dense": np.full((3, 13), 0.5, "float32"), "ids": np.arange(26)[None, :].repeat(3, 0) * 20_000}
    np.savez(root / "asked.npz", **asked)
    score = (
        "import sys; sys.path.insert(0, 'examples/ctr')\n"
        "import json, numpy, paddle\nfrom network import Trainer\n"
        "trainer = Trainer(); trainer.restore(sys.argv[1]); asked = numpy.load(sys.argv[2])\n"
        "print(json.dumps(trainer.net(paddle.to_tensor(asked['dense']), paddle.to_tensor(asked['ids'])).tolist()))"
    )
    done = command("-c", score, f"{results['training']['models']}model.pdparams", root / "asked.npz")
    expected = np.array(json.loads(done.stdout.splitlines()[-1]))
    with Client(results["serving"]["url"]) as client:
        (answered,) = client.predict(asked).outputs.values()
    assert np.allclose(answered, expected, atol=1e-5)


def the_real_visualdl_reads_the_logs(root, results):
    from visualdl import LogReader  # noqa: PLC0415 - slow to import

    logs = Path(results["visualdl"]["logs"])
    (file,) = logs.glob("vdlrecords.*.log")
    reader = LogReader(file_path=str(file))
    assert set(reader.get_tags()["scalar"]) == {"train/loss", "train/auc", "test/loss", "test/auc"}
    steps = [each.id for each in reader.get_data("scalar", "test/auc")]
    assert steps == [0, 1]


def visualdl_shows_them(root, results):
    url = results["visualdl"]["url"]
    shown = requests.get(f"{url}/app/api/scalar/tags", timeout=30).json()["data"]
    assert set(shown["tags"][0]) == {"train/loss", "train/auc", "test/loss", "test/auc"}
    page = requests.get(url, timeout=30, headers={"Accept-Language": "en"})
    assert "VisualDL" in page.text


def a_step_that_is_done_again_is_done_once(root, results):
    again = LocalSteps(root).run(
        ModelHubInputs(name="ctr", model_name="ctr", model_version="1", pvc_name="task-center")
    )
    assert again["sha256"] == results["modelhub"]["sha256"]
    port = int(results["serving"]["url"].rpartition(":")[2])
    serving = {"name": "ctr", "image": "i:1", "model_name": "ctr", "model_version": "1", "port": port}
    before = find_processes(root / "services")
    assert LocalSteps(root).run(ServingInputs(**serving))["url"] == results["serving"]["url"]
    assert find_processes(root / "services") == before
    assert set(before) == {"serving-ctr", "visualdl-ctr-logs"}
    with pytest.raises(Conflict):
        LocalSteps(root).run(ServingInputs(**serving, action="create"))

    logs = {"name": "ctr-logs", "pvc_name": "task-center", "logdir": "/mnt/task-center/models/vdl/"}
    with pytest.raises(Conflict, match="VisualDL ctr-logs exists already"):
        LocalSteps(root).run(VisualDLInputs(**logs, action="create"))


def services_are_taken_away_twice(root, results):
    for _ in range(2):
        LocalSteps(root).run(
            VisualDLInputs(name="ctr-logs", pvc_name="task-center", logdir="/mnt/task-center/l", action="delete")
        )
        LocalSteps(root).run(ServingInputs(name="ctr", image="i:1", model_name="ctr", action="delete"))
    for step in ("serving", "visualdl"):
        with pytest.raises(requests.RequestException):
            requests.get(results[step]["url"], timeout=5)


class TestSteps:
    """Without JuiceFS, so that they run anywhere."""

    @pytest.fixture
    def steps(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "_has_fuse", lambda: False)
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "part-0").write_text("x")
        return LocalSteps(tmp_path / "root", workdir=tmp_path)

    def data(self, tmp_path, **more):
        return DatasetInputs(name="d", source_uri=f"file://{tmp_path}/source", source_secret="none", **more)

    @pytest.mark.rules
    def test_a_data_set_comes_and_goes(self, steps, tmp_path):
        with pytest.raises(NotFound):
            steps.run(self.data(tmp_path, action="patch"))
        assert steps.run(self.data(tmp_path))["files"] == 1
        assert steps.run(self.data(tmp_path))["files"] == 1
        with pytest.raises(Conflict):
            steps.run(self.data(tmp_path, action="create"))
        for _ in range(2):
            steps.run(self.data(tmp_path, action="delete"))
        assert not (tmp_path / "root" / "data" / "d").exists()

    @pytest.mark.rules
    def test_a_version_and_what_shows_logs_are_made_once_and_changed_only_if_there(self, steps):
        told = {"name": "m", "model_name": "m", "model_version": "1", "pvc_name": "c"}
        (steps.claim("c") / "m.tar.gz").write_bytes(b"packed")
        with pytest.raises(NotFound, match="version 1 of m does not exist"):
            steps.run(ModelHubInputs(**told, action="patch"))
        assert steps.run(ModelHubInputs(**told, action="create"))["size"] == 6
        with pytest.raises(Conflict, match="version 1 of m exists already"):
            steps.run(ModelHubInputs(**told, action="create"))
        assert steps.run(ModelHubInputs(**told, action="patch"))["size"] == 6
        with pytest.raises(NotFound, match="VisualDL v does not exist"):
            steps.run(VisualDLInputs(name="v", pvc_name="c", logdir="/mnt/task-center/models/vdl/", action="patch"))

    @pytest.mark.rules
    def test_what_a_cluster_would_refuse_is_refused_here(self, steps):
        with pytest.raises(InputError, match="scheme"):
            steps.run(DatasetInputs(name="d", source_uri="gopher://x/y/z", source_secret="none"))
        with pytest.raises(InputError, match="neither tag nor digest"):
            steps.run(ServingInputs(name="s", image="untagged", model_name="m"))

    @pytest.mark.rules
    def test_what_comes_before_is_named(self, steps):
        with pytest.raises(NotFound, match="data set 'd' does not exist"):
            steps.run(
                TrainingInputs(
                    name="t", project="Script", image="i:1", config_path="t.py", dataset="d", pvc_name="c",
                    worker_replicas=1,
                )
            )  # fmt: skip
        with pytest.raises(NotFound, match=r"packed model .* does not exist"):
            steps.run(ModelHubInputs(name="m", model_name="m", pvc_name="c"))
        with pytest.raises(NotFound, match="not in the hub"):
            steps.run(ServingInputs(name="s", image="i:1", model_name="m"))
        with pytest.raises(NotFound, match="no VisualDL logs"):
            steps.run(VisualDLInputs(name="v", pvc_name="c", logdir="/mnt/task-center/models/vdl/"))
        with pytest.raises(InputError, match="not below"):
            steps.run(VisualDLInputs(name="v", pvc_name="c", logdir="/etc"))

    @pytest.mark.parts
    def test_a_port_that_somebody_has_is_refused(self, steps):
        logs = steps.claim("c") / "models" / "vdl"
        logs.mkdir(parents=True)
        (logs / "vdlrecords.1.log").touch()
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Conflict, match="cannot use port"):
            steps.run(
                VisualDLInputs(
                    name="v", pvc_name="c", logdir="/mnt/task-center/models/vdl/", port=taken.getsockname()[1]
                )
            )

    @pytest.mark.rules
    def test_a_claim_is_no_way_out(self, steps):
        with pytest.raises(InputError, match="volume claim"):
            steps.claim("../../etc")


@pytest.mark.parts
@pytest.mark.skipif(not module._has_fuse(), reason="FUSE cannot be used here")
def test_a_data_set_is_dealt_to_its_partitions_with_the_keys_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / "s3").mkdir()
    told = []
    steps = LocalSteps(tmp_path / "root", tell=told.append)
    try:
        with rclone(tmp_path / "s3") as endpoint:
            session = Session(ACCESS_KEY, SECRET_KEY, region_name="us-east-1")
            with closing(session.client("s3", endpoint_url=endpoint)) as client:
                for number in range(4):
                    client.put_object(Bucket=BUCKET, Key=f"clicks/part-{number}", Body=b"x")
            where = f"minio://{endpoint.removeprefix('http://')}/{BUCKET}/clicks/"
            inputs = {"name": "d", "source_uri": where, "source_secret": "keys"}
            monkeypatch.setenv("CLOUDEDGE_DATASET_ACCESS_KEY", ACCESS_KEY)
            monkeypatch.setenv("CLOUDEDGE_DATASET_SECRET_KEY", "wrong")
            with pytest.raises(CloudEdgeError):
                steps.run(DatasetInputs(**inputs, partitions=2))
            monkeypatch.setenv("CLOUDEDGE_DATASET_SECRET_KEY", SECRET_KEY)
            assert steps.run(DatasetInputs(**inputs, partitions=2))["warmed"] == 4
            made = LocalDatasets(tmp_path / "root" / "datasets").open("data-center")
            assert made.settings.partitions == 2
            steps.run(DatasetInputs(**inputs | {"name": "e"}))
            assert any("share the 2 partition(s)" in line for line in told), "one volume for all of them"
    finally:
        steps.unmount()


@pytest.mark.parts
def test_a_step_that_fails_stops_the_pipeline_and_says_why(tmp_path, capfd):
    file = tmp_path / "p.py"
    file.write_text(
        "from kfp import dsl, kubernetes\nfrom cloudedge.pipeline import component\n@dsl.pipeline\ndef p():\n"
        "  claim = kubernetes.CreatePVC(pvc_name='made', access_modes=['ReadWriteMany'], size='1Gi')\n"
        "  component('modelhub')(name='m', model_name='m', pvc_name=claim.outputs['name'])\n"
    )
    with pytest.raises(PipelineFailed, match="modelhub"):
        run_local(compile_file(file), root=tmp_path / "root")
    assert "claims/made/m.tar.gz" in capfd.readouterr().err  # the claim was a folder, and its name came through
    assert "CLOUDEDGE_PIPELINE_LOCAL" not in os.environ
