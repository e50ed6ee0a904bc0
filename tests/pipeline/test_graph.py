"""Pipelines as files: compiled, looked through, rendered; what is wrong with them is said."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from kfp import components
from typer.testing import CliRunner

from cloudedge.cli import app
from cloudedge.errors import InputError, Unavailable
from cloudedge.pipeline import compile_file, objects_of, steps_of, submit
from cloudedge.pipeline._graph import for_this_machine
from tests import ROOT

OCR, CTR = ROOT / "examples/ocr/pipeline.py", ROOT / "examples/ctr/pipeline.py"
GOLDEN = Path(__file__).with_name("golden")
HEAD = "from kfp import dsl\nfrom cloudedge.pipeline import component\n"


@pytest.fixture(scope="module")
def ocr():
    return compile_file(OCR)


@pytest.fixture(scope="module")
def ctr():
    return compile_file(CTR)


def run(*words) -> str:
    done = CliRunner().invoke(app, ["pipeline", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.rules
def test_the_ocr_pipeline_is_as_written(ocr):
    spec = json.loads(json.dumps(ocr.spec))
    spec.pop("sdkVersion")
    assert spec == yaml.safe_load((GOLDEN / "ocr.pipeline.yaml").read_text())


@pytest.mark.rules
def test_the_ocr_pipelines_objects_are_as_written():
    assert run("render", OCR, "--objects") == (GOLDEN / "ocr.objects.yaml").read_text()


@pytest.mark.rules
def test_what_is_rendered_is_what_kubeflow_loads(ctr, tmp_path):
    (tmp_path / "ctr.yaml").write_text(run("render", CTR))
    components.load_component_from_file(str(tmp_path / "ctr.yaml"))
    again = compile_file(tmp_path / "ctr.yaml")
    assert again.spec == ctr.spec
    assert json.loads(run("render", tmp_path / "ctr.yaml", "--json"))[0]["pipelineInfo"]["name"] == "ctr"


@pytest.mark.rules
def test_steps_come_in_an_order_in_which_they_can_be_done(ctr):
    steps = [step.task for step in steps_of(ctr, {"source": "file:///x"})]
    assert steps == ["dataset", "training", "modelhub", "serving", "visualdl"]


@pytest.mark.rules
def test_a_parameter_reaches_every_step_that_asks_for_it(ctr):
    given = {"source": "s3://bucket/clicks/", "version": "3", "claim": "other", "serving_port": 8000}
    found = {step.task: step.inputs for step in steps_of(ctr, given)}
    assert found["dataset"].source_uri == "s3://bucket/clicks/"
    assert found["modelhub"].model_version == found["serving"].model_version == "3"
    assert found["training"].pvc_name == found["modelhub"].pvc_name == found["visualdl"].pvc_name == "other"
    assert found["serving"].port == 8000
    assert all(objects_of(each) for each in found.values())


@pytest.mark.rules
def test_a_claim_that_is_made_is_used(ocr):
    found = {step.task: step.inputs for step in steps_of(ocr)}
    assert found["training"].pvc_name == found["modelhub"].pvc_name == "run-ppocr-detection-pvc"


@pytest.mark.rules
def test_steps_inside_a_condition_and_texts_made_of_parameters(tmp_path):
    file = tmp_path / "p.py"
    file.write_text(
        HEAD + "@dsl.pipeline\ndef p(n: int = 3, tag: str = 'a', go: str = 'yes'):\n"
        "  with dsl.If(go == 'yes'):\n"
        "    component('modelhub')(name='m', model_name=f'model-{tag}', model_version=f'v{n}', pvc_name='c')\n"
    )
    (step,) = steps_of(compile_file(file), {"tag": "b"})
    assert (step.inputs.model_name, step.inputs.model_version) == ("model-b", "v3")


@pytest.mark.rules
def test_for_this_machine_only_commands_change(ocr):
    before, after = ocr.spec, yaml.safe_load(for_this_machine(ocr))
    assert {key: value for key, value in before.items() if key != "deploymentSpec"} == {
        key: value for key, value in after.items() if key != "deploymentSpec"
    }
    words = after["deploymentSpec"]["executors"]["exec-training"]["container"]["command"]
    assert words[-4:] == ["python3", "-m", "cloudedge.pipeline", "training"]


@pytest.mark.rules
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1\n", "has 0 pipelines"),
        (HEAD + "@dsl.pipeline\ndef a(): component('modelhub')(name='m', model_name='m', pvc_name='c')\n" * 1
         + "@dsl.pipeline\ndef b(): component('modelhub')(name='m', model_name='m', pvc_name='c')\n", "2 pipelines"),
        ("from __future__ import annotations\n" + HEAD + "@dsl.pipeline\ndef a(x: str): pass\n", "Remove"),
        ("raise RuntimeError('boom')\n", "boom"),
    ],
)  # fmt: skip
def test_files_that_hold_no_pipeline(tmp_path, text, why):
    file = tmp_path / "p.py"
    file.write_text(text)
    with pytest.raises(InputError, match=why):
        compile_file(file)


@pytest.mark.rules
def test_one_of_several_is_chosen(tmp_path):
    file = tmp_path / "p.py"
    one = "@dsl.pipeline(name='{0}')\ndef {0}(): component('modelhub')(name='{0}', model_name='m', pvc_name='c')\n"
    file.write_text(HEAD + one.format("first") + one.format("second"))
    assert compile_file(file, "second").name == "second"
    assert json.loads(run("run", file, "--local", "--function", "first", "--dry-run", "--json"))[0]["name"] == "first"


@pytest.mark.rules
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run", CTR], "with --local"),
        (["run", CTR, "--local"], "'source' has no value"),
        (["run", CTR, "--local", "--set", "sauce=x"], "no parameter 'sauce'"),
        (["run", CTR, "--local", "--set", "source"], "wanted NAME=VALUE"),
        (["render", CTR, "--set", "source=x", "--set", "serving_port=many"], "not a value of type NUMBER_INTEGER"),
        (["render", "no.py"], "does not exist"),
        (["render", ROOT / "Makefile"], "is not a Python file"),
        (["render", GOLDEN / "ocr.objects.yaml"], "not a compiled pipeline"),
    ],
)
def test_what_is_wrong_is_said(words, why):
    done = CliRunner().invoke(app, ["pipeline", *map(str, words)])
    assert isinstance(done.exception, InputError)
    assert why in done.exception.message


@pytest.mark.rules
def test_components_are_written(tmp_path):
    assert len(run("components", tmp_path / "yaml", "--dry-run").splitlines()) == 5
    assert not (tmp_path / "yaml").exists()
    run("components", tmp_path / "yaml", "--image", "host:5000/own:1")
    assert "host:5000/own:1" in (tmp_path / "yaml" / "serving.yaml").read_text()


class Kubeflow(BaseHTTPRequestHandler):
    """What of the API a run needs: experiments, and runs."""

    asked: list[tuple[str, dict]]

    def do_GET(self):
        self._answer({"experiments": [], "healthy": True, "multi_user": False})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        self.asked.append((self.path, body))
        known = {"experiment_id": "e-1", "display_name": "d"}
        self._answer(known if "experiments" in self.path else known | {"run_id": "r-1"})

    def _answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.mark.parts
def test_submitting_hands_over_the_same_graph(ctr):
    Kubeflow.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kubeflow)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        host = f"http://127.0.0.1:{server.server_address[1]}"
        told = submit(ctr, {"source": "s3://bucket/clicks/"}, host=host, experiment="nightly")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert told == {"run_id": "r-1", "url": f"{host}/#/runs/details/r-1"}
    path, run = Kubeflow.asked[-1]
    assert path == "/apis/v2beta1/runs"
    assert run["service_account"] == "pipeline-runner"
    assert run["runtime_config"]["parameters"]["source"] == "s3://bucket/clicks/"
    sent = run["pipeline_spec"].get("pipeline_spec", run["pipeline_spec"])
    assert sent["deploymentSpec"] == ctr.spec["deploymentSpec"]
    assert not any(task.get("cachingOptions", {}).get("enableCache") for task in sent["root"]["dag"]["tasks"].values())


@pytest.mark.parts
def test_a_kubeflow_that_is_not_there_is_said(ctr):
    with pytest.raises(Unavailable, match="does not answer"):
        submit(ctr, {"source": "s3://bucket/clicks/"}, host="http://127.0.0.1:1")
