"""What a target shows and keeps: nodes, memory, tags, spare shards and the list of what was live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudedge.bundle import Bundle
from cloudedge.cli.release_status import _status_rows, _status_title
from cloudedge.release import Life, Member, Options, PlaceStatus, Status
from cloudedge.release.core._apply import lives_after
from cloudedge.testing import FolderPlace
from tests.models import change_table, make_table
from tests.release.parts import SIGNATURE, active, all_on, bundles, folder_places, folder_target, marked

pytestmark = pytest.mark.rules


class Nodes(FolderPlace):
    """A fleet: three nodes, of which one has moved, one lags, and one is away."""

    def members(self):
        pins = list(self.observe().versions)
        return [
            Member("edge/a/north", self.newest, "2024-01-01T00:00:00Z", memory_share=0.25),
            Member("edge/a/south", next((pin for pin in pins if pin != self.newest), ""), error="ProbeFailed"),
            Member("edge/a/west", "", is_there=False),
        ]


def test_every_node_of_a_fleet_is_shown(tmp_path, hub, made):
    nodes = Nodes(tmp_path / "places", "edge/a", "edge")
    places = [nodes if place.name == "edge/a" else place for place in folder_places(tmp_path / "places")]
    target = folder_target(tmp_path, hub, places=places)
    target.run(target.plan(made[0]))
    target.run(target.plan(made[1]))
    nodes.newest = made[1].pin
    status = target.status()
    (edge,) = [place for place in status.places if place.members]
    assert [(node.name, node.state, node.lag) for node in edge.members] == [
        ("edge/a/north", "current", 0),
        ("edge/a/south", "behind", 1),
        ("edge/a/west", "away", None),
    ]
    assert status.skew == {"edge": tuple(sorted((made[0].pin, made[1].pin)))}
    assert status.is_whole  # every pointer has moved; a node that was away catches up by itself
    places = status.to_json()["places"]
    assert places[-1]["members"][1]["error"] == "ProbeFailed"
    for each in (*places, *places[-1]["members"]):
        assert each["free_memory_bytes"] == each["memory_free_bytes"]  # programs may read the old name
    rows = {row[0]: row for row in _status_rows(status)}
    assert rows["edge/a/south"][2] == f"{made[0].pin} 100%: ProbeFailed"
    assert rows["edge/a/north"][6] == "25%"
    assert "the edge leg is skewed" in _status_title(status)
    assert "2 of 3 nodes do not run it yet" in _status_title(status)


def test_rows_that_serving_replicas_merge_need_memory(tmp_path, hub, made):
    """Without shards a replica reads a table itself: mapped if it is one file, merged in memory if it has deltas."""
    dense = [place for place in folder_places(tmp_path / "places") if place.leg == "dense"]
    target = folder_target(tmp_path, hub, places=dense)
    table = {"emb": change_table(make_table(200), seed=9)}
    pieces = tmp_path / "model1"
    delta = Bundle.pack(pieces, name="ctr", sparse=table, signature=SIGNATURE, parent=made[0], hub=hub)
    for bundle, merged in ((made[0], 0), (delta, 200 * (8 + 16))):
        version, world = target._context.look(f"ctr@{bundle.digest}")
        for name, cost in world.estimates.items():
            assert cost.memory_bytes == target._context.places[name].estimate(version).memory_bytes + merged
        assert len(world.estimates) == 2
        assert target.run(target.plan(bundle)).state == "done"
    assert target.status().is_whole


def test_tags_beyond_what_is_kept_go(tmp_path, hub):
    target = folder_target(tmp_path, hub)
    four = bundles(tmp_path, hub, 4)
    for bundle in four[:3]:
        target.run(target.plan(bundle, retain=2))
    assert [marked(hub, role) for role in ("live", "previous", "previous-2")] == [b.digest for b in reversed(four[:3])]
    target.rollback()
    assert [marked(hub, role) for role in ("live", "previous")] == [four[1].digest, four[0].digest]
    target.run(target.plan(four[2], retain=2))
    target.run(target.plan(four[3]))
    roles = ("live", "previous", "previous-2")
    assert [marked(hub, role) for role in roles] == [four[3].digest, four[2].digest, None]


def test_a_bundle_without_tables_leaves_shards_to_spare(tmp_path, hub, made):
    dense = Bundle.pack(tmp_path / "model2", name="ctr", signature=SIGNATURE, hub=hub)
    target = folder_target(tmp_path, hub)
    target.run(target.plan(made[0]))
    target.run(target.plan(dense))
    status = target.status()
    assert {place.state for place in status.places if place.leg == "sparse"} == {"spare"}
    assert status.is_whole
    assert target.rollback().state == "done"
    assert active(target) == all_on(made[0].pin)


def test_what_was_live_long_ago_does_not_grow_with_every_release(tmp_path, hub, made):
    target = folder_target(tmp_path, hub)
    planned = target.plan(made[0])
    old = tuple(Life(f"p{n}", f"ctr@{n}", f"ctr:{n}") for n in range(200))
    after = lives_after(replace(planned, lives=old))
    assert (after[0].pin, after[1]) == (made[0].pin, old[0])
    assert len(after) == 50
    assert len(lives_after(replace(planned, lives=old, options=Options(retain=99)))) == 100


def test_a_target_that_was_never_started_says_what_starts_it():
    away = [PlaceStatus(f"dense/{n}", "dense", "away", {}, "", {}, 0, None, error="does not answer") for n in range(2)]
    title = _status_title(Status("prod", None, "", tuple(away)))
    assert title == "prod: nothing is live; 2 of 2 places do not answer: start them with `cloudedge up prod`"
