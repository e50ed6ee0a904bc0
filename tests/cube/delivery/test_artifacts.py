"""Artifacts: what is made of a table holds its rows, shard by shard, whichever way it was made."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from cloudedge.bundle import Bundle
from cloudedge.cube import PartStore
from cloudedge.cube.builder._build import reserved_key
from cloudedge.cube.delivery import TableVersion
from cloudedge.cube.formats import Artifact
from cloudedge.cube.formats._tar import verify_md5
from cloudedge.cube.server._load_delivered import load_artifact
from cloudedge.errors import InputError, IntegrityError
from tests.cube.delivery.tables import changed, expected, rows_of

pytestmark = pytest.mark.rules

SHARDS = 3


def assert_holds(native, rows, shard, shards):
    want = expected(rows, shard, shards)
    store = PartStore(native)
    assert len(store) == len(want)
    assert store.get(list(want)) == list(want.values())


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_bases_hold_the_rows_of_their_shards(tables, workshop, shards):
    version = tables.version(rows_of(1, 500))
    for artifact in workshop.base(version, shards):
        assert_holds(load_artifact(artifact, "v", None), tables.rows[version.version], artifact.shard, shards)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("in_chain", [False, True])
def test_a_delta_on_its_base_is_the_version_however_it_was_found(tables, workshop, seed, in_chain):
    rows = rows_of(seed, 400)
    first = tables.version(rows)
    between = tables.version(changed(rows, seed + 100), parent=first if in_chain else None)
    last = tables.version(changed(tables.rows[between.version], seed + 200), parent=between if in_chain else None)
    assert (len(last.rows.files) == 3) is in_chain
    bases = workshop.base(first, SHARDS)
    whole = workshop.base(last, SHARDS)
    for artifact, base, wanted in zip(workshop.delta(first, last, SHARDS), bases, whole, strict=True):
        assert (artifact.base, artifact.checksum) == (base.checksum, wanted.checksum)
        native = load_artifact(artifact, "last", load_artifact(base, "first", None))
        assert_holds(native, tables.rows[last.version], artifact.shard, SHARDS)
        assert artifact.size < wanted.size


@pytest.mark.parametrize("to_rows", [{3: 1.0, 6: 1.0, 9: 1.0}, {3: 1.0, 4: 1.0, 5: 1.0}])
@pytest.mark.parametrize("from_rows", [{3: 0.0, 6: 1.0}, {3: 1.0, 4: 2.0, 5: 3.0}, {4: 1.0}])
@pytest.mark.parametrize("in_chain", [False, True])
def test_a_shard_that_was_empty_or_becomes_so_has_a_reserved_row(tables, workshop, from_rows, to_rows, in_chain):
    def table(rows, parent=None):
        return tables.version({key: np.full(4, value, np.float32) for key, value in rows.items()}, parent)

    first = table(from_rows)
    last = table(to_rows, first if in_chain else None)
    bases = [load_artifact(each, "first", None) for each in workshop.base(first, SHARDS)]
    for artifact, base in zip(workshop.delta(first, last, SHARDS), bases, strict=True):
        native = load_artifact(artifact, "last", base)
        want = expected(tables.rows[last.version], artifact.shard, SHARDS)
        reserved = PartStore(native).get([reserved_key(artifact.shard, SHARDS)])
        assert reserved == ([None] if want else [bytes(16)])
        assert PartStore(native).get(list(want)) == list(want.values())
    sums = [artifact.checksum for artifact in workshop.base(last, SHARDS)]
    assert sums == [artifact.checksum for artifact in workshop.delta(first, last, SHARDS)]


def test_int8_rows_carry_their_scale(tables, workshop, tmp_path):
    keys = np.arange(50, dtype=np.uint64)
    values = np.arange(150, dtype=np.int8).reshape(50, 3)
    scale = np.linspace(1, 2, 50, dtype=np.float32)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "model").write_text("x")
    bundle = Bundle.pack(
        tmp_path / "d", name="q", sparse={"q": {"keys": keys, "values": values, "scale": scale}}, hub=tables.hub
    )
    for artifact in workshop.base(TableVersion("q", bundle.pin, bundle.sparse["q"]), 2):
        store = PartStore(load_artifact(artifact, "v", None))
        assert store.get([artifact.shard]) == [values[artifact.shard].tobytes() + scale[artifact.shard].tobytes()]


def test_nothing_is_made_twice_and_what_was_half_made_goes(tables, workshop):
    version = tables.version(rows_of(1, 100))
    made = workshop.base(version, 2)
    before = made[0].directory.stat().st_mtime_ns
    assert workshop.base(version, 2) == made
    assert made[0].directory.stat().st_mtime_ns == before
    (workshop.artifacts / ".making-1").mkdir()
    other = tables.version(rows_of(2, 100))
    workshop.base(other, 2)
    assert len(workshop.clean(keep=1)) == 2
    assert [path.name for path in workshop.artifacts.iterdir()] == [f"base-{other.checksum}-2"]


def test_tar_for_agents_comes_with_its_md5(tables, workshop):
    version = tables.version(rows_of(1, 100))
    for artifact in workshop.base(version, 2, "tar"):
        assert [file.name for file in artifact.files] == [
            f"emb_part{artifact.shard}.tar",
            f"emb_part{artifact.shard}.tar.md5",
        ]
        verify_md5(artifact.directory / artifact.files[0].name)


def test_a_delta_is_refused_on_other_rows(tables, workshop):
    rows = rows_of(1, 100)
    first, last = tables.version(rows), tables.version(changed(rows, 2))
    other = workshop.base(tables.version(rows_of(3, 100)), 1)
    (artifact,) = workshop.delta(first, last, 1)
    with pytest.raises(InputError, match="other rows"):
        load_artifact(artifact, "last", load_artifact(other[0], "other", None))
    with pytest.raises(InputError, match="no loaded version has them"):
        load_artifact(artifact, "last", None)
    lying = dataclasses.replace(artifact, checksum="0" * 32)
    with pytest.raises(IntegrityError, match="not the delta that its artifact describes"):
        load_artifact(lying, "last", load_artifact(workshop.base(first, 1)[0], "first", None))


def test_tables_of_other_width_have_no_delta(tables, workshop):
    first, last = tables.version(rows_of(1, 10)), tables.version(rows_of(1, 10, dim=8))
    with pytest.raises(InputError, match="no delta"):
        workshop.delta(first, last, 2)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {"kind": "other"},
        {"files": []},
        {"files": [{"name": "../x", "size": 1, "sha256": "0" * 64}]},
        {"files": [{"name": ".x", "size": 1, "sha256": "0" * 64}]},
        {"files": [{"name": "x", "size": -1, "sha256": "0" * 64}]},
        {"files": [{"name": "x", "size": 1, "sha256": "0"}]},
        {"files": [{"name": "x", "size": 1, "sha256": "0" * 64}] * 2},
        {"rows": 1.5},
        {"rows": True},
        {"checksum": "x"},
        {"base": "0" * 32},
        {"shard": 9},
    ],
)
def test_what_is_no_artifact_is_refused(tables, workshop, broken):
    (good,) = workshop.base(tables.version(rows_of(1, 10)), 1)
    assert Artifact.from_json(json.loads(json.dumps(good.as_json())), good.directory) == good
    found = {**good.as_json(), **broken} if isinstance(broken, dict) else broken
    with pytest.raises(InputError, match="not an artifact"):
        Artifact.from_json(found)


def test_an_artifact_whose_rows_are_others_is_not_loaded(tables, workshop):
    artifact = workshop.base(tables.version(rows_of(1, 50)), 1)[0]
    with pytest.raises(IntegrityError, match="has 50 rows"):
        load_artifact(dataclasses.replace(artifact, rows=artifact.rows + 1), "v", None)


def test_a_delta_under_another_artifacts_name_is_not_applied(tables, workshop):
    rows = rows_of(1, 50)
    first, last = tables.version(rows), tables.version(changed(rows, 2))
    base = load_artifact(workshop.base(first, 1)[0], "first", None)
    artifact = workshop.delta(first, last, 1)[0]
    with pytest.raises(IntegrityError, match="is not the delta that its artifact describes"):
        load_artifact(dataclasses.replace(artifact, checksum=artifact.base), "last", base)
