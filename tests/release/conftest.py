"""What tests of releases share."""

from __future__ import annotations

import pytest

from tests.release.parts import bundles


@pytest.fixture
def made(tmp_path, hub):
    return bundles(tmp_path, hub)
