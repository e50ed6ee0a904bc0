"""The client against the real baetyl-cloud: the suite it passes against the lab, unchanged."""

from __future__ import annotations

import pytest

from cloudedge.edge_bie.client import Bie
from tests.edge_bie.client.suite import *  # noqa: F403 - every test of the suite is a test here

pytestmark = pytest.mark.parts


@pytest.fixture
def admin_url(baetyl):
    return baetyl.admin_url


@pytest.fixture
def cloud(admin_url):
    with Bie.from_url(admin_url) as bie:
        yield bie
