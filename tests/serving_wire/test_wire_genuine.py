"""The genuine paddle-serving-client 0.9.0, unmodified, against our servers (tests/serving_wire/install_genuine)."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from wire_engine import TinyEngine
from wire_http import http_server
from wire_loop import loop_in_thread

from cloudedge.serving._baidu_std import serve_baidu_std
from cloudedge.serving._grpc import serve_grpc

CONF = """
feed_var { name: "x" alias_name: "x" is_lod_tensor: false feed_type: 1 shape: 2 }
fetch_var { name: "fc_0.tmp_1" alias_name: "price" is_lod_tensor: false fetch_type: 1 shape: 1 }
fetch_var { name: "rank" alias_name: "rank" is_lod_tensor: false fetch_type: 0 shape: 1 }
"""
PROGRAM = shutil.which("serving-client", path=os.environ.get("CLOUDEDGE_TEST_TOOLS", ""))


@pytest.mark.skipif(
    PROGRAM is None, reason="serving-client is not in $CLOUDEDGE_TEST_TOOLS (tests/serving_wire/install_genuine .peers)"
)
def test_genuine_clients_are_answered(tmp_path):
    (tmp_path / "serving_client_conf.prototxt").write_text(CONF)
    engine = TinyEngine()
    with loop_in_thread() as call, http_server(engine) as (http, _):
        frames = call(serve_baidu_std(engine))
        grpc = call(serve_grpc(engine, service="uci"))
        ports = [str(port) for port in (frames.sockets[0].getsockname()[1], http, grpc.port)]
        script = Path(__file__).with_name("wire_genuine_calls.py")
        done = subprocess.run(
            [PROGRAM, script, tmp_path, *ports], capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path
        )
        call(grpc.stop(0))

        async def close():
            frames.close()

        call(close())
    assert "TOLD " in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    told = json.loads(done.stdout.rpartition("TOLD ")[2])
    one, both = {"price": [[0.75]]}, {"price": [[0.75], [3.0]], "rank": [0, 1]}
    assert told["brpc one"] == told["brpc after"] == one
    assert told["brpc batch"] == told["brpc all"] == both
    assert told["brpc wrong"] is None  # which is how that client says no
    assert told["brpc tags"] == ["new", "old"]
    assert told["brpc same"]
    many = [0.75] * 500 + [3.0] * 500
    for proto in (False, True):
        for gzip in (False, True):
            assert told[f"http proto={proto} gzip={gzip}"] == many
    assert told["grpc"] == [0.75, 3.0]
    for packing in ("repr", "tensors", "bytes"):
        assert told[f"pipeline {packing}"] == [0, ["price", "rank"], ["[[0.75],[3.0]]", "[0,1]"]], packing
    assert told["pipeline wrong"] == 5000
    assert any(seen.log_id == 7 for seen in engine.calls)
