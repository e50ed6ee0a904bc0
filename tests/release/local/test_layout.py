"""What a local target consists of when its tables are cut anew: names, ports and cube.conf. Nothing is started."""

from __future__ import annotations

import json

import pytest

from cloudedge.config import TargetConfig
from cloudedge.cube import CubeConf
from cloudedge.hub import LocalHub
from cloudedge.release.local._processes import ProcessLayout
from cloudedge.release.places._servers import ServingPlace, shard_replica
from cloudedge.supervisor import save_specs

pytestmark = pytest.mark.parts


@pytest.fixture
def cut(tmp_path):
    """Read the target as if cloudedge.yaml said so many shards."""

    def layout(shards, **more):
        sparse = {"tables": ["emb"], "shards": shards, "replicas": 2}
        config = TargetConfig.model_validate({"kind": "local", "sparse": sparse, "dense": {"replicas": 1}, **more})
        return ProcessLayout("t", config, hub=tmp_path / "hub", folder=tmp_path / "t")

    return layout


def names(layout):
    return [seat.place for seat in layout.sparse()]


def conf(layout):
    found = CubeConf.from_file(layout.folder / "cube.conf")
    return {each.table_name: each.shards for each in found.tables}


def test_new_shards_stand_beside_the_old_ones_until_these_leave(cut):
    before = cut(2)
    before.specs()
    assert conf(before) == {"emb": 2, "emb@2": 2}
    ports = {seat.place: seat.port for seat in before.sparse()}
    after = cut(3)
    specs = [spec.name for spec in after.specs()]
    assert [name for name in specs if name.startswith("sparse")] == [seat.process for seat in after.sparse()]
    assert len(specs) == 4 + 6 + 1
    assert {seat.place: seat.port for seat in after.sparse() if seat.shards == 2} == ports  # nobody moved
    assert conf(after) == {"emb": 2, "emb@2": 2, "emb@3": 3}  # readers without a pin stay
    assert [len(seats) for seats in after.earlier()] == [4]
    after.publish({"emb": 3})
    assert conf(after)["emb"] == 3
    told = after.specs()
    assert conf(after)["emb"] == 3  # also after the next `up`
    save_specs(after.folder, [spec for spec in told if "of2" not in spec.name])
    assert (after.earlier(), len(names(after))) == ([], 6)  # gone for everybody, tidied up or not
    after.tidy()
    assert conf(after) == {"emb": 3, "emb@3": 3}
    assert not any("of2" in place for place in json.loads((after.folder / "ports.json").read_text()))
    assert not list(after.folder.glob("sparse-emb-*of2-*"))


def test_ports_that_are_counted_go_on_where_they_stopped(cut):
    first = cut(1, port=20000)
    first.take_ports()
    assert sorted(seat.port for seat in [*first.sparse(), *first.dense()]) == [20000, 20002, 20004]
    second = cut(2, port=20000)
    assert [seat.port for seat in second.sparse() if seat.shards == 1] == [20000, 20002]
    assert sorted(seat.port for seat in second.sparse() if seat.shards == 2) == [20006, 20008, 20010, 20012]


def test_fewer_replicas_are_no_other_layout(cut):
    layout = cut(2)
    layout.specs()
    fewer = cut(2, sparse={"tables": ["emb"], "shards": 2, "replicas": 1})
    assert names(fewer) == ["sparse/emb/0of2/0", "sparse/emb/1of2/0"]
    assert fewer.earlier() == []


def test_shards_of_an_older_cloudedge_are_left_out(cut):
    layout = cut(2)
    layout.folder.mkdir()
    (layout.folder / "ports.json").write_text(json.dumps({"sparse/emb/0/0": [1, 2], "dense/0": [3, 4]}))
    assert len(names(layout)) == 4
    assert layout.dense()[0].port == 3


def test_looking_takes_no_ports(cut):
    """Status, plan and the like find what `up` will take, and leave nothing behind."""
    seen = {seat.place: seat.port for seat in [*cut(2).sparse(), *cut(2).dense()]}
    assert not cut(2).folder.exists()
    assert len({*seen.values()}) == len(seen)
    layout = cut(2)
    layout.take_ports()
    assert {seat.place: seat.port for seat in [*layout.sparse(), *layout.dense()]} == seen


def test_looking_makes_no_token_and_who_looked_before_the_first_up_hears_of_it(cut):
    layout = cut(1)
    shard = shard_replica(layout.sparse()[0], layout.token)
    serving = ServingPlace(layout.dense()[0], token=layout.token, hub=LocalHub(layout.hub))
    assert (shard._http.token, serving._admin._http.token) == ("", "")
    assert not layout.folder.exists()
    layout.specs()
    token = layout.token()
    assert (shard._http.token, serving._admin._http.token) == (token, token)
    assert (layout.folder / "token").stat().st_mode & 0o777 == 0o600
    layout.specs()
    assert layout.token() == token
