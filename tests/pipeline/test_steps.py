"""What steps are told, which objects they make of it, and what is refused before anything is made."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from cloudedge.errors import InputError
from cloudedge.pipeline import (
    DatasetInputs,
    ModelHubInputs,
    ModelRecord,
    ServingInputs,
    SuitePaths,
    TrainingInputs,
    VisualDLInputs,
    objects_of,
    register,
    suites,
)
from cloudedge.pipeline._inputs import read_arguments, write_arguments
from cloudedge.pipeline._suites import changes_of, find_suite

TRAINING = {
    "name": "ppocr-det",
    "project": "paddleocr",
    "image": "ocr:1",
    "config_path": "configs/det.yml",
    "dataset": "icdar",
    "pvc_name": "claim",
    "worker_replicas": 1,
}
SERVING = {"name": "ocr", "image": "host:5000/serving:v1", "model_name": "ocr"}
DIGEST = "ab" * 32


def training(**more) -> TrainingInputs:
    return TrainingInputs(**(TRAINING | more))


def command(manifest) -> str:
    return manifest["spec"]["template"]["spec"]["containers"][0]["command"][-1]


def train_command(inputs: TrainingInputs) -> str:
    return command(objects_of(inputs)[0]["spec"]["worker"] | {"spec": objects_of(inputs)[0]["spec"]["worker"]})


class TestInputs:
    @pytest.mark.rules
    def test_what_the_launcher_is_told_is_what_it_reads(self):
        wanted = training(config_changes="-a=1", gpu_per_node=2, use_visualdl=True, need_convert=False)
        assert read_arguments(write_arguments(wanted)) == wanted

    @pytest.mark.rules
    @pytest.mark.parametrize("text", ["True", "true", "1"])
    def test_both_generations_write_truth_differently(self, text):
        words = ["visualdl", "--name", "v", "--pvc-name", "c", "--logdir", "/l", "--api-only", text, "--port", "80.0"]
        found = read_arguments(words)
        assert (found.api_only, found.port) == (True, 80)

    @pytest.mark.rules
    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (["notebook"], "step 'notebook' does not exist"),
            (["dataset", "--name", "a"], "needs Source Uri, Source Secret"),
            (["dataset", "--name"], "pairs"),
            (["dataset", "name", "a"], "pairs"),
            (["dataset", "--nme", "a"], "no input 'nme'"),
            (["modelhub", "--name", "A", "--model-name", "m", "--pvc-name", "p"], "name of an object"),
            (
                ["modelhub", "--name", "a", "--model-name", "m", "--pvc-name", "p", "--action", "get"],
                "action 'get' does not exist",
            ),
            (["serving", "--name", "a", "--image", "i:1", "--model-name", "m", "--port", "80.5"], "Port is '80.5'"),
            (["serving", "--name", "a", "--image", "i:1", "--model-name", "m", "--port", "x"], "not of type int"),
            (
                ["serving", "--name", "a", "--image", "i:1", "--model-name", "m", "--server", "x"],
                "server 'x' does not exist",
            ),
            (
                ["visualdl", "--name", "a", "--pvc-name", "p", "--logdir", "l", "--api-only", "maybe"],
                "not of type bool",
            ),
        ],
    )
    def test_what_is_wrong_is_said(self, words, why):
        with pytest.raises(InputError, match=why):
            read_arguments(words)

    @pytest.mark.rules
    def test_there_is_nothing_to_convert_without_a_model(self):
        with pytest.raises(InputError, match="nothing to convert"):
            training(save_inference=False)


DATASET = {"name": "icdar", "source_uri": "bos://bucket.bj.bcebos.com/icdar/", "source_secret": "none"}


class TestDataset:
    @pytest.mark.rules
    def test_a_data_set_is_a_folder_of_the_shared_one(self):
        sample_set, sync, warmup = objects_of(DatasetInputs(**DATASET, partitions=2))
        assert sample_set["metadata"]["name"] == "data-center"
        assert sample_set["spec"] == {"partitions": 2, "secretRef": {"name": "data-center"}, "noSync": True}
        assert sync["spec"]["syncOptions"]["destination"] == "icdar"
        assert sync["spec"]["secretRef"] == {"name": "none"}
        assert warmup["spec"]["warmupOptions"]["paths"] == ["icdar"]

    @pytest.mark.rules
    def test_deleting_removes_the_folder_and_not_what_others_share(self):
        (only,) = objects_of(DatasetInputs(**DATASET, action="delete"))
        assert (only["kind"], only["spec"]["type"]) == ("SampleJob", "rmr")
        assert only["spec"]["rmrOptions"]["paths"] == ["icdar"]


class TestTraining:
    @pytest.mark.rules
    def test_workers_get_volumes_and_servers_do_not(self):
        job = objects_of(training(ps_replicas=2, gpu_per_node=1))[0]
        worker, ps = (job["spec"][role]["template"]["spec"] for role in ("worker", "ps"))
        assert worker["volumes"][0]["persistentVolumeClaim"]["claimName"] == "claim"
        assert {each["mountPath"] for each in worker["containers"][0]["volumeMounts"]} == {
            "/mnt/task-center",
            "/dev/shm",
        }
        assert worker["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
        assert "volumes" not in ps
        assert "resources" not in ps["containers"][0]
        assert job["spec"]["sampleSetRef"] == {"name": "data-center", "mountPath": "/mnt/data-center"}

    @pytest.mark.rules
    def test_what_is_exported_is_what_was_trained(self):
        inputs = training(pretrain_model="https://h/w/start.pdparams", config_changes="Arch.name=DB")
        export = shlex.split(command(objects_of(inputs)[1]))
        assert "Global.pretrained_model=/mnt/task-center/models/best_accuracy" in export
        assert "Arch.name=DB" in export
        assert not any("start" in word for word in export)
        trained = train_command(inputs)
        assert "Global.pretrained_model=/mnt/task-center/pretrain_model/start " in trained
        assert trained.index("urlopen") < trained.index("tools/train.py")

    @pytest.mark.rules
    def test_a_value_may_hold_commas(self):
        inputs = training(config_changes="a.b=[1,2], c=x,y,d.e=3")
        assert changes_of(inputs) == ["a.b=[1,2]", "c=x,y", "d.e=3"]
        with pytest.raises(InputError, match="not key=value"):
            changes_of(training(config_changes="epochs"))

    @pytest.mark.parts
    def test_nothing_reaches_the_shell_unquoted(self):
        inputs = training(config_path="$(reboot)", pretrain_model="https://h/`reboot`.pdparams;x")
        done = subprocess.run(["bash", "-n", "-c", train_command(inputs)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "'$(reboot)'" in train_command(inputs)
        assert " `" not in train_command(inputs)

    @pytest.mark.rules
    def test_several_workers_are_launched(self):
        assert "paddle.distributed.launch --gpus 0,1 --log_dir" in train_command(
            training(worker_replicas=2, gpu_per_node=2)
        )
        assert "launch" not in train_command(training())

    @pytest.mark.rules
    def test_visualdl_shows_one_worker(self):
        with pytest.raises(InputError, match="2 workers would write the same logs"):
            training(use_visualdl=True, worker_replicas=2)

    @pytest.mark.rules
    def test_only_what_is_wanted_is_made(self):
        kinds = [each["kind"] for each in objects_of(training(save_inference=False, need_convert=False))]
        assert kinds == ["PaddleJob"]
        kinds = [each["kind"] for each in objects_of(training(use_visualdl=True))]
        assert kinds == ["PaddleJob", "Job", "Job", "Deployment", "Service"]

    @pytest.mark.parts
    def test_the_packed_model_is_the_same_bytes_again(self, tmp_path):
        (tmp_path / "ppocr-det" / "server").mkdir(parents=True)
        (tmp_path / "ppocr-det" / "server" / "model").write_text("weights")
        script = command(objects_of(training())[2])
        packing = script[script.index("tar --sort") :]
        found = set()
        for when in ("2001-01-01", "2011-11-11"):
            subprocess.run(["touch", "-d", when, tmp_path / "ppocr-det" / "server" / "model"], check=True)
            subprocess.run(["bash", "-c", packing], cwd=tmp_path, check=True)
            found.add((tmp_path / "ppocr-det.tar.gz").read_bytes())
        assert len(found) == 1


class TestSuites:
    @pytest.mark.rules
    def test_a_suite_of_ones_own(self):
        class PaddleClas:
            name = "PaddleClas"
            default_image = "clas:1"

            def train_command(self, task, place):
                return ["python", "tools/train.py", "-c", task.config_path, "-o", f"Global.output_dir={place.models}"]

            def export_command(self, task, place):
                return ["python", "tools/export_model.py"]

            def convert_command(self, task, place):
                return ["true"]

        register(PaddleClas())
        try:
            job = objects_of(training(project="paddleclas", image=""))[0]
            container = job["spec"]["worker"]["template"]["spec"]["containers"][0]
            assert container["image"] == "clas:1"
            assert "Global.output_dir=/mnt/task-center/models/" in container["command"][-1]
        finally:
            suites_there = find_suite.__globals__["_SUITES"]
            del suites_there["paddleclas"]

    @pytest.mark.rules
    def test_an_unknown_one_names_the_others(self):
        assert {"paddleocr", "script"} <= set(suites())
        with pytest.raises(InputError, match="suite 'PaddleX' does not exist") as refused:
            objects_of(training(project="PaddleX"))
        assert "PaddleOCR" in refused.value.hint

    @pytest.mark.rules
    def test_a_program_of_ones_own(self):
        words = find_suite("Script").train_command(training(config_changes="epochs=1"), SuitePaths("/d", "/t"))
        assert words == [
            *("python", "configs/det.yml", "train", "--data", "/d/icdar/", "--models", "/t/models/"),
            *("--logs", "/t/models/vdl/", "-o", "epochs=1"),
        ]
        with pytest.raises(InputError, match="names no image"):
            objects_of(training(project="Script", image=""))


class TestServing:
    @pytest.mark.rules
    def test_one_port_and_a_checked_model(self):
        (service,) = objects_of(ServingInputs(**SERVING, port=8000), record=ModelRecord(DIGEST, 1))
        endpoint = service["spec"]["default"]
        assert (endpoint["containerImage"], endpoint["tag"]) == ("host:5000/serving", "v1")
        assert endpoint["port"] == 8000
        assert endpoint["arg"].endswith("exec python3 -m paddle_serving_server.serve --model ocr/server --port 8000")
        assert endpoint["arg"].index(DIGEST) < endpoint["arg"].index("tar xzf")

    @pytest.mark.rules
    @pytest.mark.parametrize("image", ["serving", "host:5000/serving"])
    def test_an_image_without_a_tag_is_refused(self, image):
        with pytest.raises(InputError, match="neither tag nor digest"):
            objects_of(ServingInputs(**(SERVING | {"image": image})))

    @pytest.mark.parts
    def test_the_shell_really_refuses_other_bytes(self, tmp_path):
        (tmp_path / "ocr.tar.gz").write_bytes(b"other")
        (service,) = objects_of(ServingInputs(**SERVING), record=ModelRecord(DIGEST, 5))
        check = next(each for each in service["spec"]["default"]["arg"].split(" && ") if "sha256sum" in each)
        assert subprocess.run(["bash", "-c", check], cwd=tmp_path, capture_output=True, check=False).returncode == 1

    @pytest.mark.rules
    def test_a_version_that_is_pushed_anew_is_another_command(self):
        inputs = ServingInputs(**SERVING)
        one, other = (objects_of(inputs, record=ModelRecord(digit * 64, 1))[0] for digit in "ab")
        assert one["spec"]["default"] != other["spec"]["default"]

    @pytest.mark.rules
    @pytest.mark.parametrize("version", ["../../x", "a/b", "", "-x"])
    def test_a_version_leads_nowhere_else(self, version):
        with pytest.raises(InputError, match="Model Version"):
            objects_of(ServingInputs(**SERVING, model_version=version))
        with pytest.raises(InputError, match="Model Version"):
            objects_of(ModelHubInputs(name="m", model_name="m", pvc_name="p", model_version=version))


@pytest.mark.parts
def test_visualdl_takes_every_flag_it_is_given(tmp_path):
    inputs = VisualDLInputs(
        name="v",
        pvc_name="claim",
        logdir="/mnt/task-center/models/vdl/",
        model="/mnt/task-center/m",
        cache_timeout=20,
        language="en",
        public_path="/vdl",
        api_only=True,
    )
    words = objects_of(inputs)[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert words[0] == "visualdl"
    code = "import json, sys; from visualdl.server.args import parse_args; print(json.dumps(parse_args(), default=str))"
    done = subprocess.run([sys.executable, "-c", code, *words[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for said in ('"host": "0.0.0.0"', '"cache_timeout": 20', '"public_path": "/vdl"', '"api_only": true', "8040"):
        assert said in done.stdout, (said, done.stdout)


@pytest.mark.parts
def test_the_launcher_needs_little_on_a_cluster():
    code = "import sys, cloudedge.pipeline.__main__, cloudedge.pipeline._cluster; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"kfp", "paddle", "grpc", "httptools", "visualdl", "boto3"}.isdisjoint(loaded)
