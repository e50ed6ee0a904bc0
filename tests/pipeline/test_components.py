"""The component files: what they take, and that both generations of Kubeflow's SDK read them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from kfp import components, dsl

from cloudedge.errors import InputError
from cloudedge.pipeline import STEPS, component, component_yaml
from cloudedge.pipeline import _components as made
from tests import ROOT

SHIPPED = ROOT / "cloudedge" / "pipeline" / "components"
EVERY = {
    "Name": ("String", None),
    "Namespace": ("String", "kubeflow"),
    "Action": ("String", "apply"),
    "Timeout Minutes": ("Integer", "1440"),
}
ENDPOINT = "http://minio-service.kubeflow:9000"
# As pipelines know them; None has to be given.
TAKEN = {
    "dataset": EVERY
    | {"Partitions": ("Integer", "1"), "Source Uri": ("String", None), "Source Secret": ("String", None)},
    "training": EVERY
    | dict.fromkeys(("Project", "Image", "Config Path", "Dataset", "PVC Name"), ("String", None))
    | {"Worker Replicas": ("Integer", None)}
    | dict.fromkeys(("Config Changes", "Pretrain Model", "Train Label", "Test Label"), ("String", ""))
    | {"PS Replicas": ("Integer", "0"), "GPU Per Node": ("Integer", "0"), "Use VisualDL": ("Boolean", "False")}
    | {"Save Inference": ("Boolean", "True"), "Need Convert": ("Boolean", "True")},
    "modelhub": EVERY
    | {"Endpoint": ("String", ENDPOINT), "Model Name": ("String", None), "PVC Name": ("String", None)}
    | {"Model Version": ("String", "latest")},
    "serving": EVERY
    | {"Image": ("String", None), "Model Name": ("String", None), "Model Version": ("String", "latest")}
    | {"Endpoint": ("String", ENDPOINT), "Port": ("Integer", "9292"), "Server": ("String", "paddle-serving")},
    "visualdl": EVERY
    | {"PVC Name": ("String", None), "Logdir": ("String", None), "Mount Path": ("String", "/mnt/task-center/")}
    | {"Model": ("String", ""), "Port": ("Integer", "8040"), "Cache Timeout": ("Integer", "0")}
    | {"Language": ("String", ""), "Public Path": ("String", ""), "Api Only": ("Boolean", "False")}
    | {"Image": ("String", "")},
}
# Runs in an interpreter that has the first generation; prints what it understood.
READ_BY_V1 = """
import json, sys
from kfp import components
found = {}
for path in sys.argv[1:]:
    spec = components.load_component_from_file(path).component_spec
    found[path] = {each.name: [each.type, each.default] for each in spec.inputs}
print(json.dumps(found))
"""


@pytest.mark.rules
@pytest.mark.parametrize("step", STEPS)
def test_every_input_has_its_name_type_and_default(step):
    described = yaml.safe_load(component_yaml(step))
    assert {each["name"]: (each["type"], each.get("default")) for each in described["inputs"]} == TAKEN[step]
    assert "outputs" not in described


@pytest.mark.rules
@pytest.mark.parametrize("step", STEPS)
def test_what_is_shipped_is_what_would_be_written(step, monkeypatch):
    monkeypatch.delenv(made.IMAGE_VARIABLE, raising=False)
    assert (SHIPPED / f"{step}.yaml").read_text() == component_yaml(step)


@pytest.mark.rules
@pytest.mark.parametrize("step", STEPS)
def test_the_second_generation_reads_it(step):
    loaded = components.load_component_from_file(str(SHIPPED / f"{step}.yaml"))
    inputs = loaded.component_spec.inputs
    words = {title.lower().replace(" ", "_"): value for title, value in TAKEN[step].items()}
    assert set(inputs) == set(words)
    types = {"String": "String", "Integer": "Integer", "Boolean": "Boolean"}
    for name, (kind, default) in words.items():
        assert inputs[name].type == types[kind], name  # a parameter, not an artifact
        assert inputs[name].optional == (default is not None), name


@pytest.mark.parts
def test_the_first_generation_reads_it():
    tools = Path(os.environ.get("CLOUDEDGE_TEST_TOOLS") or ROOT / ".peers")
    python = tools / "kfp-v1" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs kfp 1.8 in an environment of its own: make peers")
    files = [str(SHIPPED / f"{step}.yaml") for step in STEPS]
    done = subprocess.run([python, "-c", READ_BY_V1, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for path, found in json.loads(done.stdout).items():
        assert {name: tuple(each) for name, each in found.items()} == TAKEN[Path(path).stem]


@pytest.mark.rules
def test_a_step_is_never_taken_from_the_cache():
    @dsl.pipeline
    def one():
        component("modelhub")(name="m", model_name="m", pvc_name="p")

    task = one.pipeline_spec.root.dag.tasks["modelhub"]
    assert not task.caching_options.enable_cache


@pytest.mark.rules
def test_the_launcher_learns_its_own_image():
    container = yaml.safe_load(component_yaml("modelhub", image="host:5000/own:1"))["implementation"]["container"]
    assert container["image"] == container["env"][made.IMAGE_VARIABLE] == "host:5000/own:1"
    assert container["command"] == ["python3", "-m", "cloudedge.pipeline", "modelhub"]


@pytest.mark.rules
def test_there_is_no_sixth_step():
    with pytest.raises(InputError, match="step 'notebook' does not exist"):
        component_yaml("notebook")
