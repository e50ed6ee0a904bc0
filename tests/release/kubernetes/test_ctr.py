"""The CTR example's own network as pods of a real cluster: released, updated and taken back under load."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import yaml

from cloudedge.bundle import Bundle, split
from cloudedge.config import load as load_config
from cloudedge.hub import LocalHub, open_hub
from cloudedge.kube import Kind
from cloudedge.release import Target
from cloudedge.release.kubernetes import down, up
from cloudedge.release.kubernetes._names import SERVING_PORT
from cloudedge.serving import Client
from tests import ROOT
from tests.hub.registry.servers import registry
from tests.kube.real_cluster import kubeconfig, lab
from tests.release.kubernetes.world import gateway, humble
from tests.release.local.world import home, wait

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
EXAMPLE = ROOT / "examples" / "ctr"
TARGET = "cluster"
TRAINED = """
import sys
import numpy as np
from pathlib import Path
import clicks
clicks.PER_SLOT, clicks.ROWS = 300, clicks.SLOTS * 300
from network import Trainer
trainer, test = Trainer(), clicks.draw(64, seed=3)
for name in ("v1", "v2"):
    trainer.fit(clicks.draw(4000, seed=len(name)), seed=1, rate=2e-2)
    trainer.save(Path(sys.argv[1]) / name / "whole")
    np.savez(f"{sys.argv[1]}/{name}.npz", dense=test.dense, ids=test.ids, scores=trainer.score(test))
"""
"""The example's network and trainer on a table of fewer rows; the second version is the first, trained on."""


@pytest.fixture
def versions(tmp_path):
    """Two versions, and what the whole network answers to the same impressions."""
    command = [sys.executable, "-W", "ignore", "-c", TRAINED, str(tmp_path)]
    subprocess.run(command, cwd=EXAMPLE, env={"PYTHONPATH": str(EXAMPLE), "GLOG_minloglevel": "2"}, check=True)
    found = []
    with home(tmp_path / "home"):
        for name in ("v1", "v2"):
            pieces = split(tmp_path / name / "whole" / "model", tmp_path / name / "pieces")
            bundle = Bundle.pack(
                pieces.folder,
                name="ctr",
                sparse=pieces.tables,
                signature=pieces.signature,
                probes=pieces.probes,
                parent=found[0][0] if found else None,
                hub=LocalHub(),
            )
            found.append((bundle, dict(np.load(tmp_path / f"{name}.npz"))))
    return found


def target_section(cluster, folder, images, hub):
    """Return the example's own target, with the addresses of this place."""
    section = yaml.safe_load((EXAMPLE / "cloudedge.yaml").read_text())["targets"][TARGET]
    section |= {"kubeconfig": humble(cluster, kubeconfig(), folder), "namespace": cluster.namespace}
    section["pods"]["pull_policy"] = "Never"
    section["pods"]["cube"]["image"] = images["cube"]
    section["pods"]["serving"] |= {"image": images["serving"], "hub": hub}
    return section


def test_the_click_model_is_released_updated_and_taken_back_under_load(pod_images, versions, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from clicks import Clicks  # noqa: PLC0415 - the example's own
    from load import Load  # noqa: PLC0415

    (first, asked), (second, after) = versions
    monkeypatch.setenv("CLOUDEDGE_HOME", str(tmp_path / "home"))
    with lab("queues", with_pods=True) as cluster, registry(tmp_path / "registry", address=gateway()) as host:
        hub = {"url": f"oci://{host}/models", "insecure": True}
        section = target_section(cluster, tmp_path, pod_images, hub)
        file = tmp_path / "cloudedge.yaml"
        file.write_text(yaml.safe_dump({"hubs": {"registry": hub}, "targets": {TARGET: section}}))
        config = load_config(file)
        for bundle, _ in versions:
            bundle.push(open_hub(config.hubs["registry"]))
        up(TARGET, config=config, within_s=300)
        target = Target.load(TARGET, config=config)
        try:
            target.apply(target.plan(first)).wait(600)
            address = cluster.get(Kind.SERVICE, f"serving-{TARGET}")["spec"]["clusterIP"]  # this machine is a node
            url = f"http://{address}:{SERVING_PORT}"
            nothing = np.zeros(len(asked["ids"]), np.float32)
            load = Load(lambda: Client(url), Clicks(asked["dense"], asked["ids"], nothing, nothing), clients=2)
            load.expect(first.pin, asked["scores"])
            load.expect(second.pin, after["scores"])
            load.start()
            try:
                answered_by(load, first.pin)
                shipped = target.apply(target.plan(second, canary=0.2, bake_s=2.0)).wait(600)
                answered_by(load, second.pin)
                back = target.rollback()
                answered_by(load, first.pin)
            finally:
                load.stop()
            assert [each.why for each in load.answered if not each.pin][:3] == []
            assert [each for each in load.answered if each.is_mixed][:3] == []
            assert (shipped.state, back.state, back.bytes) == ("done", "done", 0)
            assert target.status().is_whole
        finally:
            target._context.journal.close()
            down(TARGET, config=config, everything=True)


def answered_by(load, pin):
    """Wait until a version answered some requests from now on."""
    begun = load.now()
    wait(lambda: sum(each.pin == pin and each.at > begun for each in load.answered) >= 20, f"answers of {pin}", 120)
