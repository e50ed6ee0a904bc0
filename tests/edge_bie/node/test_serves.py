"""The whole way on one node: a paddle model with a table, by the entry point, in `cloudedge serve`, updated by rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests

from cloudedge.edge_bie import container_entrypoint as entry
from cloudedge.hub import LocalHub
from tests.edge_bie.node.world import eventually

pytestmark = pytest.mark.parts

pytest.importorskip("paddle", reason="paddlepaddle is not installed")

RUN = """set -eu
cd "$CLOUDEDGE_MODEL"
python3 "$CLOUDEDGE_ROOT/home/work/script/entry.py"
exec python3 -m cloudedge serve "$CLOUDEDGE_BUNDLE" --hub "$CLOUDEDGE_HUB" --service yolov3 \\
  --port "$PORT" --admin-port 0
"""


def test_a_table_is_served_and_its_next_version_travels_as_rows(world, monkeypatch):
    from tests.release.local.world import make  # noqa: PLC0415 - it imports what trains models

    monkeypatch.setenv("CLOUDEDGE_HOME", str(world.folder / "home"))
    first = make(world.folder / "dense-1", 1)
    second = make(world.folder / "dense-2", 2, parent=first)
    world.hub = LocalHub()
    world.scripts = {"run.sh": RUN, "entry.py": Path(entry.__file__).read_text()}
    process = world.start("n1", "--probe-timeout-s", "200")

    def answer(ids):
        try:
            body = {"key": ["ids"], "value": [json.dumps([[each] for each in ids])]}
            told = requests.post(f"http://127.0.0.1:{world.port}/yolov3/prediction", json=body, timeout=20).json()
            return json.loads(told["value"][0])
        except (requests.RequestException, ValueError, IndexError, KeyError):
            return None

    try:
        statements, sent = [], []
        for made in (first, second):
            before = sum(world.lab.traffic().values())
            statements.append(world.release(made.bundle))
            wanted = made.answers[[0, 7, 3000]].tolist()
            eventually(lambda: answer([0, 7, 3000]) == wanted, 200)  # noqa: B023 - asked before the loop goes on
            sent.append(sum(world.lab.traffic().values()) - before)
        eventually(lambda: world.stats(statements[1]) and world.stats(statements[1]).status == "Running")
        assert len(second.bundle.table_layers["embedding"]) == 2
        assert sent[1] < sent[0] / 3
    finally:
        process.terminate()
        process.wait()
