"""The genuine paddle-serving-client 0.9.0, unmodified, against `cloudedge serve` with a real model."""

import json
import os
import shutil
import subprocess

import pytest

from cloudedge.bundle import Bundle, Signature, Variable
from tests import ROOT
from tests.serving.models import _save as save_model
from tests.serving.process import Process

pytestmark = pytest.mark.parts

CALLS = ROOT / "tests/serving/protocols/genuine_calls.py"
PROGRAM = shutil.which("serving-client", path=os.environ.get("CLOUDEDGE_TEST_TOOLS", ""))
CONF = """
feed_var { name: "x" alias_name: "x" is_lod_tensor: false feed_type: 1 shape: 2 }
fetch_var { name: "fetch_name_0" alias_name: "price" is_lod_tensor: false fetch_type: 1 shape: 1 }
fetch_var { name: "fetch_name_1" alias_name: "rank" is_lod_tensor: false fetch_type: 0 shape: 1 }
"""
SIGNATURE = Signature(
    feed=(Variable(name="x", shape=(2,)),),
    fetch=(
        Variable(name="fetch_name_0", alias="price", shape=(1,)),
        Variable(name="fetch_name_1", alias="rank", dtype="int64"),
    ),
)


def build(p):
    """price is the sum of a row, rank the row's number."""
    x = p.static.data("x", [-1, 2], "float32")
    zero = p.create_parameter([1], "float32", default_initializer=p.nn.initializer.Constant(0.0))
    price = p.sum(x, 1, keepdim=True) + zero
    return [x], [price, p.cumsum(p.cast(p.ones_like(x[:, 0]), "int64"), 0) - 1]


@pytest.mark.skipif(
    PROGRAM is None,
    reason="serving-client is not in $CLOUDEDGE_TEST_TOOLS (tests/serving/protocols/install_genuine .peers)",
)
def test_genuine_clients_are_answered_by_the_real_server(models, tmp_path):
    save_model(tmp_path / "model", build, 1)
    bundle = Bundle.pack(tmp_path / "model", name="uci", signature=SIGNATURE, hub=models.hub)
    (tmp_path / "serving_client_conf.prototxt").write_text(CONF)
    options = ["--hub", models.folder / "hub", "--port", 0, "--admin-port", 0, "--grpc-port", 0, "--service", "uci"]
    with Process(models.ref(bundle), *options) as process:
        ports = [str(process.ports[name]) for name in ("port", "port", "grpc_port")]
        done = subprocess.run(
            [PROGRAM, CALLS, tmp_path, *ports], capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path
        )
        assert process.stop() == 0
    assert "TOLD " in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    told = json.loads(done.stdout.rpartition("TOLD ")[2])
    one, both = {"price": [[0.75]]}, {"price": [[0.75], [3.0]], "rank": [0, 1]}
    assert told["brpc one"] == told["brpc after"] == one
    assert told["brpc batch"] == told["brpc all"] == both
    assert told["brpc wrong"] is None  # which is how that client says no
    assert (told["brpc tags"], told["brpc same"]) == (["new", "old"], True)
    many = [0.75] * 500 + [3.0] * 500
    for proto in (False, True):
        for gzip in (False, True):
            assert told[f"http proto={proto} gzip={gzip}"] == many
    assert told["grpc"] == [0.75, 3.0]
    for packing in ("repr", "tensors", "bytes"):
        assert told[f"pipeline {packing}"] == [0, ["price", "rank"], ["[[0.75],[3.0]]", "[0,1]"]], packing
    assert told["pipeline wrong"] == 5000
