"""Real servers, started once per worker, and hubs in all of them."""

from __future__ import annotations

import itertools

import pytest

from cloudedge.hub import LocalHub
from cloudedge.hub.layout._layout_hub import LayoutHub
from cloudedge.hub.registry._registry_hub import RegistryHub, RegistrySettings
from tests.hub.objects import s3_servers
from tests.hub.objects.bos_double import BosDouble
from tests.hub.objects.openers import bos_opener, s3_opener
from tests.hub.registry.servers import registry

_count = itertools.count()


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory):
    with s3_servers.rclone(tmp_path_factory.mktemp("rclone")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory):
    with s3_servers.seaweedfs(tmp_path_factory.mktemp("weed")) as endpoint:
        yield endpoint


@pytest.fixture
def bos(tmp_path):
    with BosDouble(tmp_path).running() as double:
        yield double


@pytest.fixture(scope="session")
def registry_host(tmp_path_factory):
    """One docker-registry for all tests of a worker; each test has its own prefix there."""
    with registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(params=["directory", "rclone", "seaweedfs", "bos", "registry"])
def any_hub(request, tmp_path, monkeypatch):
    """An empty hub of each kind."""
    if request.param == "directory":
        return LocalHub(tmp_path / "any")
    if request.param == "bos":
        return LayoutHub(bos_opener(request.getfixturevalue("bos"))())
    if request.param == "registry":
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
        url = f"oci://{request.getfixturevalue('registry_host')}/any{next(_count)}"
        return RegistryHub(url, RegistrySettings(state_dir=tmp_path / "state"))
    return LayoutHub(s3_opener(request.getfixturevalue(f"{request.param}_server"))())
