"""The detector saved in pieces, packed, and served with its hooks: hardly trained, so it finds nonsense, quickly."""

import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("httptools", reason="httptools is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about build tools that nobody here needs
    pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    from training import Trainer, turned

from asking import ask
from run import SIGNATURE
from shapes import SIDE, draw_many
from web_service import boxes_of

from cloudedge import Bundle, LocalHub
from cloudedge.bundle import ProbeRequest, Probes, find_program
from cloudedge.errors import CloudEdgeError, InputError
from cloudedge.serving import Runtime, RuntimeConfig, Server, ServerConfig, load_ops
from tests import ROOT

pytestmark = [pytest.mark.parts, pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning")]
EXAMPLE = ROOT / "examples" / "yolov3"
SHAPE = np.array([[SIDE, SIDE]], np.int32)


@pytest.fixture(scope="module")
def trainer():
    made = Trainer(seed=5)
    for output in made.net.outputs:
        output[1].bias.set_value(output[1].bias.numpy() + 4.0)  # sees something everywhere
    return made


@pytest.fixture(scope="module")
def saved(trainer, tmp_path_factory):
    """Version 1, version 2 whose outputs learnt a little more, and what each answers."""
    folder = tmp_path_factory.mktemp("saved")
    pictures = draw_many(8, seed=4)
    answers = []
    for name in ("v1", "v2"):
        trainer.save(folder / name)
        shutil.copyfile(EXAMPLE / "web_service.py", folder / name / "web_service.py")
        answers.append([trainer.answer(picture.pixels[None], SHAPE) for picture in pictures])
        if name == "v1":
            trainer.fit(pictures, steps=2, rate=1e-2, seed=1, outputs_only=True)
    return folder, pictures, answers


@pytest.fixture(scope="module")
def packed(saved, tmp_path_factory):
    folder, pictures, (answers, _) = saved
    hub = LocalHub(tmp_path_factory.mktemp("hub"))
    feed = {"image": pictures[0].pixels[None].tolist(), "im_shape": SHAPE.tolist()}
    request = ProbeRequest(feed=feed, expect={"boxes": answers[0].tolist()}, tolerance=0.05)
    return [
        Bundle.pack(folder / name, name="yolov3", signature=SIGNATURE, probes=Probes(requests=(request,)), hub=hub)
        for name in ("v1", "v2")
    ]


def test_fine_tuning_changes_one_file(saved):
    folder, _, _ = saved
    changed = [
        f.name for f in sorted((folder / "v1").iterdir()) if f.read_bytes() != (folder / "v2" / f.name).read_bytes()
    ]
    assert changed == ["model.outputs.pdiparams"]


FOUND = {
    "one file": (["m.json", "m.pdiparams"], ("m.json", ("m.pdiparams",))),
    "pieces, in order": (["m.json", "m.b.pdiparams", "m.a.pdiparams"], ("m.json", ("m.a.pdiparams", "m.b.pdiparams"))),
    "another JSON beside them": (
        ["m.json", "labels.json", "m.a.pdiparams", "m.b.pdiparams"],
        ("m.json", ("m.a.pdiparams", "m.b.pdiparams")),
    ),
    "an old program": (
        ["x/m.pdmodel", "x/m.0.pdiparams", "x/m.1.pdiparams"],
        ("x/m.pdmodel", ("x/m.0.pdiparams", "x/m.1.pdiparams")),
    ),
    "two models": (["a.json", "b.json", "a.pdiparams", "b.pdiparams"], None),
    "pieces of something else": (["m.json", "m.a.pdiparams", "n.b.pdiparams"], None),
    "no parameters": (["m.json"], ("m.json", ())),
}


@pytest.mark.parametrize(("files", "expected"), FOUND.values(), ids=FOUND)
def test_a_program_is_found_with_its_parameters_or_their_pieces(files, expected):
    if expected is None:
        with pytest.raises(InputError, match="one program"):
            find_program(files)
    else:
        assert find_program(files) == expected


def test_what_is_served_is_what_was_trained(saved, packed):
    _, pictures, (answers, _) = saved
    ops, service = load_ops(f"{EXAMPLE / 'web_service.py'}:service")
    with Runtime(RuntimeConfig(workers=2), hub=packed[0].hub) as runtime:
        runtime.activate(runtime.load(f"yolov3@{packed[0].digest}").pin)
        with Server(runtime, ServerConfig(port=0, service=service), ops=ops) as server, ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda p: ask(f"http://127.0.0.1:{server.port}", p.png()), pictures * 5))
    for number, answer in enumerate(found):
        wanted = boxes_of(answers[number % len(pictures)][0])
        assert answer.pin == packed[0].pin
        assert len(wanted) > 1
        assert [box["category_id"] for box in answer.boxes] == [box["category_id"] for box in wanted]
        for got, want in zip(answer.boxes, wanted, strict=True):
            assert got["bbox"] == pytest.approx(want["bbox"], abs=0.05)


def test_outputs_of_another_version_fail_the_probes(packed):
    with Runtime(RuntimeConfig(workers=1), hub=packed[1].hub) as runtime:
        pin = runtime.load(f"yolov3@{packed[1].digest}").pin
        with pytest.raises(CloudEdgeError, match="probe"):
            runtime.activate(pin)


def test_a_batch_answers_each_picture_as_if_it_were_alone(trainer):
    pictures = draw_many(3, seed=6)
    together = trainer.answer(np.stack([p.pixels for p in pictures]), np.repeat(SHAPE, 3, axis=0))
    for picture, rows in zip(pictures, together, strict=True):
        assert rows == pytest.approx(trainer.answer(picture.pixels[None], SHAPE)[0], abs=1e-3)


@pytest.mark.parametrize("way", range(8))
def test_boxes_turn_with_their_picture(way):
    for picture in draw_many(5, seed=2):
        there = turned(picture, way)
        for box, other in zip(picture.boxes, there.boxes, strict=True):
            assert _mean_inside(there, other) == pytest.approx(_mean_inside(picture, box), abs=6)


def _mean_inside(picture, box):
    left, top, right, bottom = box.round().astype(int)
    return float(picture.pixels[top:bottom, left:right].mean())
