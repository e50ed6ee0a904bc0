"""Programs without a signature beside them: old ones, and model directories of Paddle Serving, say what they take."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from cloudedge.bundle import Bundle, Signature, Variable
from cloudedge.errors import ConfigError, InputError
from cloudedge.serving import conf
from cloudedge.serving.model._program import read_signature
from tests import ROOT
from tests.serving.models import PAIR, TINY, save_marked

pytestmark = pytest.mark.parts

ONE = np.ones((1, 2), np.float32)


@pytest.fixture(scope="module")
def old_program(tmp_path_factory):
    """Answers x + 5."""
    folder = tmp_path_factory.mktemp("old") / "old"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.serving import models as m; "
    code += f"from pathlib import Path; m.save_marked(Path({str(folder)!r}), 5.0)"
    environment = os.environ | {"FLAGS_enable_pir_api": "0"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    assert (folder / "model.pdmodel").is_file()
    return folder


def test_an_old_program_is_served_too(runtime, models, old_program):
    bundle = Bundle.pack(old_program, name="old", signature=PAIR, hub=models.hub)
    runtime.activate(runtime.load(models.ref(bundle)).pin)
    assert runtime.ask({"x": ONE}).outputs["y"].tolist() == [[6, 6]]


def test_an_old_program_says_itself_what_it_takes(runtime, old_program):
    runtime.activate(runtime.load(str(old_program)).pin)
    (answer,) = runtime.ask({"x": ONE}).outputs.values()
    assert answer.tolist() == [[6, 6]]
    assert [(v.name, v.dtype, v.shape) for v in runtime.signature.feed] == [("x", "float32", (2,))]
    with pytest.raises(InputError, match=r"feed 'x' has shape \[1, 3\]"):
        runtime.ask({"x": np.ones((1, 3), np.float32)})


@pytest.mark.parametrize("name", ["", "fc_0.tmp_1"], ids=["the program's name", "another name"])
@pytest.mark.parametrize("program", ["old", "new"])
def test_a_model_directory_of_paddle_serving_goes_by_its_aliases(runtime, old_program, tmp_path, program, name):
    folder = tmp_path / "serving_server"
    if program == "old":
        shutil.copytree(old_program, folder)
    else:
        save_marked(folder, 5.0)
    (file,) = (path for path in folder.iterdir() if path.suffix in (".json", ".pdmodel"))
    (fetch,) = read_signature(file, file.name).fetch
    described = Signature(
        feed=(Variable(name="x", alias="features", shape=(2,)),),
        fetch=(Variable(name=name or fetch.name, alias="price"),),
    )
    (folder / "serving_server_conf.prototxt").write_text(conf.write_text(conf.model_config(described)))
    runtime.activate(runtime.load(str(folder)).pin)
    assert runtime.ask({"features": ONE}).outputs["price"].tolist() == [[6, 6]]


def test_a_description_of_another_model_is_refused(runtime, tmp_path):
    folder = save_marked(tmp_path / "serving_server", 5.0)
    (folder / "serving_server_conf.prototxt").write_text(conf.write_text(conf.model_config(TINY)).replace('"x"', '"z"'))
    with pytest.raises(InputError, match=r"another model: it has the inputs \['z'\]") as caught:
        runtime.load(str(folder))
    assert "remove the file" in caught.value.hint
    (folder / "serving_server_conf.prototxt").write_text("not a description")
    with pytest.raises(ConfigError, match=r"serving_server_conf\.prototxt"):
        runtime.load(str(folder))


@pytest.mark.parametrize("content", [b"", b"\0\1\2", b"\x0a\x00"], ids=["nothing", "other bytes", "an empty block"])
def test_what_is_no_old_program_is_said(content, tmp_path):
    (tmp_path / "model.pdmodel").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.pdmodel does not declare its inputs"):
        read_signature(tmp_path / "model.pdmodel", "model.pdmodel")
