"""One target on a real cluster, up while its tests run."""

from __future__ import annotations

import pytest

from cloudedge.release.kubernetes import down, up
from tests.hub.registry.servers import registry
from tests.kube.real_cluster import kubeconfig, lab
from tests.release.kubernetes.world import NAME, KubeWorld, gateway, humble, images
from tests.release.local.world import home


@pytest.fixture(scope="session")
def pod_images():
    pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    kubeconfig()
    return images()


@pytest.fixture(scope="session")
def target_that_is_up(tmp_path_factory, pod_images):
    config = kubeconfig()
    folder = tmp_path_factory.mktemp("kube")
    with (
        lab("queues", with_pods=True) as cluster,
        registry(folder / "registry", address=gateway()) as host,
        home(folder / "home"),
    ):
        world = KubeWorld(folder, cluster, humble(cluster, config, folder), f"oci://{host}/models", pod_images)
        try:
            up(NAME, config=world.config, within_s=300)
            world.open()
            world.release(world.good[0])
            yield world
        finally:
            world.close()
            down(NAME, config=world.config, everything=True)


@pytest.fixture
def world(target_that_is_up, monkeypatch):
    """The target, whole; checked to be whole again afterwards."""
    world = target_that_is_up
    monkeypatch.setenv("CLOUDEDGE_HOME", str(world.folder / "home"))
    world.heal()
    yield world
    world.heal()
