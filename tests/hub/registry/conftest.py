"""Registries and hubs for the tests of this folder."""

from __future__ import annotations

import itertools

import pytest

from cloudedge.hub.registry._registry_hub import RegistryHub, RegistrySettings
from tests.hub.registry.servers import Server, push

_count = itertools.count()


@pytest.fixture(autouse=True)
def _no_stored_credentials(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))


@pytest.fixture
def prefix():
    return f"t{next(_count)}/models"


@pytest.fixture
def url(registry_host, prefix):
    return f"oci://{registry_host}/{prefix}"


@pytest.fixture
def hub(url, tmp_path):
    return RegistryHub(url, RegistrySettings(state_dir=tmp_path / "state"))


@pytest.fixture
def proxy(registry_host):
    with Server(registry_host) as server:
        yield server


@pytest.fixture
def proxied(proxy, prefix, tmp_path):
    """A hub that reaches the registry through `proxy`."""
    return RegistryHub(f"oci://{proxy.host}/{prefix}", RegistrySettings(state_dir=tmp_path / "state"))


@pytest.fixture
def three(hub):
    return [push(hub, "ctr", b"layer %d" % n) for n in range(3)]
