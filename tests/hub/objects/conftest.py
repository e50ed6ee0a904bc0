"""The stores under test; to add one, write its `open_...` fixture and name it in `open_store`."""

from __future__ import annotations

from functools import partial

import pytest

from cloudedge.hub.objects._directory import DirectoryStore
from cloudedge.hub.objects._remote_store import RemoteStore
from tests.hub.objects.openers import bos_opener, s3_opener


@pytest.fixture
def open_directory(tmp_path):
    return partial(DirectoryStore, tmp_path / "directory")


@pytest.fixture
def open_bos(bos):
    return bos_opener(bos)


@pytest.fixture
def open_rclone(rclone_server):
    return s3_opener(rclone_server)


@pytest.fixture
def open_seaweedfs(seaweedfs_server):
    return s3_opener(seaweedfs_server)


@pytest.fixture(params=["directory", "rclone", "seaweedfs", "bos"])
def open_store(request):
    """The stores the contract holds for, by the name of their ``open_...`` fixture."""
    return request.getfixturevalue(f"open_{request.param}")


@pytest.fixture
def open_brief(open_store):
    """Open the same store with locks that outlive a killed holder only briefly."""
    return partial(open_store, lock_ttl_s=1) if issubclass(open_store.func, RemoteStore) else open_store


@pytest.fixture
def object_store(open_store):
    return open_store()
