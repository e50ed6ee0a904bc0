import pytest
from transfer_tables import Tables

from cloudedge.cube.delivery import Workshop


@pytest.fixture
def tables(tmp_path):
    return Tables(tmp_path / "tables")


@pytest.fixture
def workshop(tmp_path):
    return Workshop(tmp_path / "work")
