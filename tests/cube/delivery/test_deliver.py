"""Deliveries to real servers: bases, deltas, going back, and everything that may be wrong on the way."""

from __future__ import annotations

import numpy as np
import pytest

from cloudedge.cube.delivery import ArtifactCache, Delivery, DeliveryPolicy
from tests.cube.delivery.fleet import Fleet
from tests.cube.delivery.tables import Tables, changed, rows_of

pytestmark = pytest.mark.parts

SHARDS, REPLICAS = 2, 2


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with Fleet(tmp_path_factory.mktemp("fleet"), SHARDS, REPLICAS) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return Tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def delivery(fleet, tmp_path_factory):
    with Delivery(
        fleet.replicas(), ArtifactCache(tmp_path_factory.mktemp("work")), policy=DeliveryPolicy(attempts=2)
    ) as delivery:
        yield delivery


def assert_serves(fleet, rows, version):
    keys = list(rows)
    with fleet.client() as client:
        for pin in (None, version):
            found = client.seek(keys, pin=pin)
            assert found.version == version
            assert found.found.all()
            assert np.array_equal(found.values, np.stack([rows[key] for key in keys]))


def test_base_delta_and_back(fleet, delivery, tables):
    first = tables.version(rows_of(1, 2000))
    second = tables.version(changed(tables.rows[first.version], 2, 0.01), parent=first)
    plan = delivery.plan([first])
    assert {step.how for step in plan.of("stage")} == {"base"}
    done = delivery.deliver([first])
    assert done.versions == {"emb": first.version}
    base_bytes = done.shipped_bytes
    assert base_bytes == pytest.approx(plan.bytes_to_ship, rel=0.01)
    assert_serves(fleet, tables.rows[first.version], first.version)

    assert {step.how for step in delivery.plan([second], [first]).of("stage")} == {"delta"}
    done = delivery.deliver([second], [first])
    assert done.shipped_bytes < base_bytes / 5
    assert_serves(fleet, tables.rows[second.version], second.version)

    assert delivery.deliver([second], [first]).shipped_bytes == 0
    assert delivery.rollback().versions == {"emb": first.version}
    assert_serves(fleet, tables.rows[first.version], first.version)
    assert delivery.rollback().versions == {"emb": second.version}
    assert_serves(fleet, tables.rows[second.version], second.version)
