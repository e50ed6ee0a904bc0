from __future__ import annotations

import pytest

from tests.edge_bie.real.cloud import real_cloud


@pytest.fixture(scope="session")
def baetyl(tmp_path_factory):
    """Run the real baetyl-cloud, once for all tests here."""
    with real_cloud(tmp_path_factory.mktemp("baetyl")) as running:
        yield running
