"""Predictors made beside Paddle's binding: the same answers, other threads go on meanwhile, nothing stays behind."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from cloudedge.errors import InputError
from cloudedge.serving.model._paddle_nogil import PredictorMaker
from cloudedge.serving.model._predictor import DenseModel, _maker
from tests.serving.models import _save, save_marked

pytestmark = pytest.mark.parts

ONE = {"x": np.ones((1, 2), np.float32)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unlocked")
    save_marked(folder, 5.0)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def seen(files):
    """Show the maker its first predictor, which the binding makes."""
    DenseModel(files).close()
    assert _maker()._kind is not None, "this Paddle has a layout that is not known: everything goes through its binding"


def test_it_answers_as_one_of_the_binding_does(files):
    with DenseModel(files) as model:
        clones = [model.predictor() for _ in range(3)]
        (expected,) = clones[0].run(ONE)
        assert expected.tolist() == [[6, 6]]
        bound = model._native.clone()  # the binding takes those made beside it for its own
        bound.get_input_handle("x").copy_from_cpu(ONE["x"])
        bound.run()
        assert bound.get_output_handle(bound.get_output_names()[0]).copy_to_cpu().tolist() == expected.tolist()
    del model
    assert all(clone.run(ONE)[0].tolist() == expected.tolist() for clone in clones)
    assert all(clone.releases_lock for clone in clones)


def test_other_threads_go_on_while_one_is_made(files):
    ticks, over = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not over.is_set():
            ticks += 1

    def during(work):
        before = ticks
        work()
        return ticks - before

    with DenseModel(files) as model:
        thread = threading.Thread(target=tick)
        thread.start()
        try:
            # With the lock kept nobody gets in while a call lasts, however often it is called. Without it hundreds of
            # times in a millisecond, once the machine has time for both.
            assert any(during(lambda: _maker().clone(model._native)) > 100 for _ in range(500))
        finally:
            over.set()
            thread.join()


GIVEN_UP = """
import sys
from pathlib import Path
import numpy as np
from cloudedge.serving.model._predictor import DenseModel
files = {path.name: path for path in Path(sys.argv[1]).iterdir()}
for _ in range(40):
    with DenseModel(files) as model:
        clones = [model.predictor() for _ in range(2)]
    clones[0].run({"x": np.ones([1, 2], np.float32)})
    clones[0].close_family()
    del model, clones
    print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6)
"""


def test_what_is_given_up_is_freed(tmp_path):
    """In a process of its own: what other tests left on the heap makes its size jump."""

    def wide(p):
        x = p.static.data("x", [-1, 2], "float32")
        return [x], [p.matmul(p.matmul(x, p.create_parameter([2, 1 << 20], "float32")), p.ones([1 << 20, 2]))]

    _save(tmp_path, wide, 1)
    command = [sys.executable, "-W", "ignore", "-c", GIVEN_UP, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    resident_mb = [float(line) for line in done.stdout.splitlines()]
    assert len(resident_mb) == 40
    assert resident_mb[-1] - resident_mb[10] < 100, "of 240 MB of parameters"


def test_what_the_engine_refuses_is_an_error(files, tmp_path):
    broken = dict(files)
    (name,) = (name for name in files if name.endswith(".pdiparams"))
    broken[name] = tmp_path / name
    broken[name].write_bytes(b"garbage")
    for _ in range(3):
        with pytest.raises(InputError, match="Paddle does not load"):
            DenseModel(broken)
    with DenseModel(files) as model:
        assert model.predictor().run(ONE)[0].tolist() == [[6, 6]]


def test_another_layout_goes_through_the_binding():
    class Other:
        def __init__(self, config):
            self.made_of = config

        def clone(self):
            return Other(f"clone of {self.made_of}")

    maker = PredictorMaker(Other)
    assert [maker.create(name).made_of for name in "ab"] == ["a", "b"]
    assert maker.clone(maker.create("c")).made_of == "clone of c"
