import pytest
from transfer_tables import Tables

from cloudedge.cube.delivery import ArtifactCache


@pytest.fixture
def tables(tmp_path):
    return Tables(tmp_path / "tables")


@pytest.fixture
def workshop(tmp_path):
    return ArtifactCache(tmp_path / "work")
