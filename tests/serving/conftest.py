"""Models made once, and servers that are closed again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudedge.bundle import Bundle
from cloudedge.hub import LocalHub
from cloudedge.serving import Runtime, RuntimeConfig, Server, ServerConfig
from tests.serving.models import LENGTHS, pack_ctr, pack_marked, pack_rows, pack_tiny, save_lengths


@dataclass
class Models:
    folder: Path
    hub: LocalHub
    marked: list[Bundle]
    """Version i answers x + i."""
    tiny: Bundle
    ctr: Bundle
    rows: Bundle
    lengths: Bundle

    @staticmethod
    def ref(bundle: Bundle) -> str:
        return f"{bundle.name}@{bundle.digest}"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    folder = tmp_path_factory.mktemp("models")
    hub = LocalHub(folder / "hub")
    return Models(
        folder,
        hub,
        [pack_marked(folder / f"marked{i}", hub, float(i)) for i in range(3)],
        pack_tiny(folder / "tiny", hub),
        pack_ctr(folder / "ctr", hub),
        pack_rows(folder / "rows", hub),
        Bundle.pack(save_lengths(folder / "lengths"), name="lengths", signature=LENGTHS, hub=hub),
    )


@pytest.fixture
def runtime(models):
    with Runtime(RuntimeConfig(workers=2), hub=models.hub) as made:
        yield made


@pytest.fixture
def marked(runtime, models):
    """The runtime with version 0 loaded and active."""
    runtime.load(models.ref(models.marked[0]))
    runtime.activate(models.marked[0].pin)
    return runtime


@pytest.fixture
def server(marked):
    with Server(marked, ServerConfig(port=0, service="pair")) as made:
        yield made
