"""A model saved as an old program, split, packed and served: requests, probes and rows end to end."""

from __future__ import annotations

import numpy as np
import pytest

from cloudedge.bundle import Bundle, split
from cloudedge.hub import LocalHub

networks = pytest.importorskip("tests.bundle.splitting.networks", reason="needs paddlepaddle")

from cloudedge.serving import Runtime, RuntimeConfig, Server, ServerConfig  # noqa: E402
from tests.serving.raw_http import Http  # noqa: E402

pytestmark = pytest.mark.parts


def test_an_old_program_from_the_split_to_an_answer(tmp_path):
    whole = networks.save_old("plain", tmp_path)
    model = split(whole, tmp_path / "out")
    assert (model.folder / "model.pdmodel").exists()
    hub = LocalHub(tmp_path / "hub")
    bundle = Bundle.pack(
        model.folder, name="old", sparse=model.tables, signature=model.signature, probes=model.probes, hub=hub
    )
    random = np.random.default_rng(1)
    feed = {
        "user": random.integers(0, 40, (5, 1)),
        "hist": random.integers(0, 50, (5, 3)).astype(np.int32),
        "tags": random.integers(0, 40, (5, 2)),
        "dense": random.random((5, 4), np.float32),
    }
    expected = networks.predict(whole, feed)
    with Runtime(RuntimeConfig(workers=1), hub=hub) as runtime, Server(runtime, ServerConfig(port=0)) as server:
        runtime.load(f"old@{bundle.digest}")
        runtime.activate(bundle.pin)  # its probes, recorded by the split, were answered
        assert runtime.version(bundle.pin).probes > 0
        with Http(server.port) as http:
            inputs = {name: array.tolist() for name, array in feed.items()}
            reply = http.ask("POST", "/v1/predict", {"inputs": inputs})
    assert reply.status == 200, reply.body
    answer = reply.json()
    assert answer["pin"] == bundle.pin
    for found, right in zip(answer["outputs"].values(), expected, strict=True):
        assert np.abs(np.array(found, np.float32) - right).max() < 1e-5
