"""A fleet of our own agents under the real baetyl-cloud: what was signed arrives so, and nothing else runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudedge.bundle import new_key_pair
from cloudedge.config import CloudConfig, EdgeLeg, EdgeTimeouts, HubConfig, ObjectsConfig
from cloudedge.edge_bie.client import Bie, open_objects
from cloudedge.edge_bie.fleet import Fleet
from cloudedge.edge_bie.lab import Lab
from cloudedge.hub import LocalHub
from cloudedge.journal import Journal
from tests.edge_bie.fleet.agents import Agents
from tests.edge_bie.fleet.played_fleet import EVERY, wait_for
from tests.edge_bie.node.world import make_bundle

pytestmark = pytest.mark.parts

IMAGE = f"registry.example/serving@sha256:{'1' * 64}"
"""Its app then has an init container for stock nodes, which our own leave out."""


def test_releases_a_failure_and_a_change_by_somebody_else(baetyl, tmp_path):
    new_key_pair(tmp_path, "release", None)
    leg = EdgeLeg(
        cloud="real", app="fleet-serving", model="fleet-model", script="fleet-script", service="yolov3", image=IMAGE,
        key=str(tmp_path / "release.key"), waves=("1",), bake="0s", env={"MODE": "fast", "EMPTY": ""},
        limits={"cpu": "2", "memory": "1Gi"}, timeouts=EdgeTimeouts(failed="120s", offline="60s"),
        selector="baetyl-node-name in (fleet-1,fleet-2)",
    ).model_copy(update={"every": EVERY})  # fmt: skip
    hub = LocalHub(tmp_path / "hub")
    with Lab(tmp_path / "lab") as files, Bie.from_url(baetyl.admin_url) as bie:
        cloud = CloudConfig(
            url=baetyl.admin_url,
            objects=ObjectsConfig(store=HubConfig(url=str(files.objects)), public_url=files.objects_url),
        )
        objects, journal = open_objects(cloud.objects), Journal(tmp_path / "fleet.db")
        with (
            Agents(bie, baetyl.sync_url, tmp_path / "release.pub").running(
                {name: tmp_path / name for name in ("fleet-1", "fleet-2")}
            ) as nodes,
            Fleet("real", leg, bie, objects, journal=journal, hub=hub) as fleet,
        ):
            wait_for(lambda: [node.ready for node in fleet.nodes()] == ["online"] * 2)
            one, two = make_bundle(hub, tmp_path, 1), make_bundle(hub, tmp_path, 2)
            for bundle in (one, two):
                assert fleet.rollout(fleet.plan(bundle), bundle).counts["done"] == 2
            assert nodes.answers(leg.port) == {"fleet-1": 2, "fleet-2": 2}
            bad = make_bundle(hub, tmp_path, 3, wrong=True)
            assert fleet.rollout(fleet.plan(bad), bad).state == "undone"
            four = make_bundle(hub, tmp_path, 4)
            plan = fleet.plan(four)
            fleet.publish(four)
            app = bie.app(fleet.revisions()[plan.revisions[-1]].app)
            assert [each["name"] for each in app.extra["initServices"]] == ["cloudedge-probe"]
            service = replace(app.services[0], args=("-c", "evil"))
            bie.put_app(replace(app, services=(service,)))
            outcome = fleet.rollout(plan)
            assert outcome.state == "undone"
            assert "is not as signed" in outcome.why
            assert nodes.answers(leg.port) == {"fleet-1": 2, "fleet-2": 2}
