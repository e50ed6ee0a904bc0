"""The client against the lab: the suite that every control plane has to pass."""

from __future__ import annotations

import pytest

from cloudedge.edge_bie.client import Bie
from cloudedge.edge_bie.lab import Lab
from tests.edge_bie.client.suite import *  # noqa: F403 - every test of the suite is a test here

pytestmark = pytest.mark.parts


@pytest.fixture(scope="module")
def admin_url(tmp_path_factory):
    with Lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab.admin_url


@pytest.fixture
def cloud(admin_url):
    with Bie.from_url(admin_url) as bie:
        yield bie
