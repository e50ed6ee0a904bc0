"""Clusters: the real one if there is one, one that fails on purpose, and one of our own to restart."""

from __future__ import annotations

import pytest

from cloudedge.clock import ManualClock
from cloudedge.kube import Cluster
from tests.kube.fault_proxy import faults
from tests.kube.real_cluster import kubeconfig, lab


@pytest.fixture(scope="module")
def cluster():
    with lab() as found:
        yield found


@pytest.fixture
def faulty(tmp_path):
    """A server that says what it is told to say."""
    with faults() as server:
        yield server


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def client(faulty, tmp_path, clock):
    """A client of it, on a clock that does not wait."""
    with Cluster.connect(kubeconfig=faulty.kubeconfig(tmp_path / "config"), clock=clock, timeout_s=1.0) as found:
        yield found


@pytest.fixture
def shaky(tmp_path, cluster):
    """The real server behind a connection that breaks: the proxy, and a client through it."""
    with faults(kubeconfig()) as server:
        config = server.kubeconfig(tmp_path / "config")
        with Cluster.connect(kubeconfig=config, namespace=cluster.namespace, timeout_s=10.0) as found:
            yield server, found
