"""What every test may use: a local hub of its own, and none of the user's own settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from cloudedge.hub import LocalHub

# How long an example takes says something of the machine, not of the code.
settings.register_profile("cloudedge", deadline=None)
settings.load_profile("cloudedge")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests out of the user's own hub and configuration."""
    monkeypatch.setenv("CLOUDEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLOUDEDGE_CONFIG", raising=False)
    monkeypatch.setenv("CLOUDEDGE_KEY_PASSPHRASE", "a passphrase for tests")


@pytest.fixture
def hub(tmp_path: Path) -> LocalHub:
    return LocalHub(tmp_path / "hub")


@pytest.fixture
def far(tmp_path: Path) -> LocalHub:
    return LocalHub(tmp_path / "far")
