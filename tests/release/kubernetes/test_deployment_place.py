"""All serving pods as one place: real followers behind a real API server; only the kubelet is played."""

from __future__ import annotations

import threading

import pytest

from tests.kube.real_cluster import lab

pytest.importorskip("paddle", reason="paddlepaddle is not installed")

from cloudedge.config import TargetConfig
from cloudedge.errors import Conflict, InputError, NotFound, Unavailable
from cloudedge.hub import LocalHub
from cloudedge.kube import Kind
from cloudedge.release import Version
from cloudedge.release.kubernetes import Facts, objects
from cloudedge.release.kubernetes import _deployment_place as deployment_module
from cloudedge.release.kubernetes._cluster_state import Site
from cloudedge.release.kubernetes._deployment_place import DeploymentPlace
from cloudedge.release.kubernetes._names import STATE_FILE, labels
from cloudedge.serving import Desired
from cloudedge.serving.runtime import _follower as follower_module
from tests.release.kubernetes.pods import Pod
from tests.release.local.world import home, make, wait

pytestmark = pytest.mark.cluster

CONFIG = {
    "kind": "kubernetes",
    "dense": {"replicas": 2},
    "pods": {"access": "direct", "serving": {"image": "none/serving:1", "hub": "oci://registry.example/models"}},
}
STATE = "serving-fast.state"


@pytest.fixture(scope="module")
def cluster():
    with lab("queues") as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with home(folder / "home"):
        return folder / "home", [make(folder / f"v{n}", n, rows=200) for n in (1, 2, 3)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch, made):
    monkeypatch.setenv("CLOUDEDGE_HOME", str(made[0]))
    monkeypatch.setattr(follower_module, "_POLL_S", 0.02)
    monkeypatch.setattr(follower_module, "_RETRY_S", 0.05)


class Fast:
    """A deployment of such pods."""

    def __init__(self, cluster, folder):
        self.site = Site("fast", TargetConfig.model_validate(CONFIG), cluster)
        self.cluster, self.folder = cluster, folder
        for each in objects("fast", self.site.config, Facts("a token")):
            if each["kind"] in ("Secret", "ConfigMap"):  # the pods are ours
                cluster.apply(each)
        self.place = DeploymentPlace(self.site, hub=LocalHub())
        self.pods = []

    def pod(self) -> Pod:
        found = self.cluster.get(Kind.CONFIG_MAP, STATE)
        document = (found.get("data") or {}).get(STATE_FILE, "")
        name = f"serving-fast-{len(self.pods)}"
        mine = labels("serving", "fast")
        self.pods.append(Pod(self.cluster, self.site, self.folder, name, labels=mine, document=document))
        return self.pods[-1]

    def document(self) -> Desired:
        return Desired.parse(self.cluster.get(Kind.CONFIG_MAP, STATE)["data"][STATE_FILE])


@pytest.fixture
def fast(cluster, tmp_path):
    fast = Fast(cluster, tmp_path)
    yield fast
    for pod in fast.pods:
        pod.end()
    fast.site.delete(fast.site.owned(everything=True))


@pytest.fixture
def versions(made):
    return [Version.of(each.bundle, shards={}) for each in made[1]]


def test_a_release_and_the_way_back(fast, versions):
    first, second, _ = versions
    with pytest.raises(Unavailable, match="no pod answers"):
        fast.place.observe()
    pods = [fast.pod().start() for _ in range(2)]
    assert fast.place.observe().versions == {}
    assert fast.place.load(first, order=1).bytes == 2 * first.dense_bytes
    fast.place.verify(first)
    fast.place.activate({first.pin: 1.0}, order=2)
    assert dict(fast.place.observe().active) == {first.pin: 1.0}
    assert fast.place.observe().signature == first.signature
    fast.place.load(second, order=3)
    fast.place.activate({first.pin: 0.9, second.pin: 0.1}, order=4)
    assert dict(fast.place.observe().active) == {first.pin: 0.9, second.pin: 0.1}
    with pytest.raises(Conflict, match="answers with"):
        fast.place.unload(second.pin, order=5)
    fast.place.activate({second.pin: 1.0}, order=6)
    fast.place.unload(first.pin, order=7)
    assert [dict(pod.runtime.routing.shares) for pod in pods] == [{second.pin: 1.0}] * 2
    assert list(fast.place.observe().versions) == [second.pin]
    assert fast.place.watch().traffic[second.pin].requests == 0
    fast.place.activate({}, order=8)
    assert (dict(fast.place.observe().active), fast.document().shares) == ({}, {})


def test_late_orders_change_nothing(fast, versions):
    first, second, _ = versions
    fast.pod().start()
    fast.place.load(first, order=4)
    for late in (
        lambda: fast.place.load(second, order=3),
        lambda: fast.place.activate({first.pin: 1.0}, order=3),
        lambda: fast.place.unload(first.pin, order=3),
    ):
        with pytest.raises(Conflict, match="comes after order 4"):
            late()
    with pytest.raises(NotFound, match="does not have"):
        fast.place.activate({second.pin: 1.0}, order=5)
    fast.place.load(first, order=4)  # again is fine
    assert fast.document().order == 4


def test_a_pod_that_comes_later_has_what_is_live_before_it_is_ready(fast, versions):
    first, *_ = versions
    fast.pod().start()
    fast.place.load(first, order=1)
    fast.place.activate({first.pin: 1.0}, order=2)
    fast.pods[0].end()
    late = fast.pod().start()
    wait(lambda: late.follower.has_arrived, "the pod to get there")
    assert dict(late.runtime.routing.shares) == {first.pin: 1.0}
    assert fast.place.observe().has(first.pin)


def test_a_pod_that_read_the_old_document_is_waited_for(fast, versions):
    """It was started before the switch and answers only after it was written: the step ends when it is right, too."""
    first, second, _ = versions
    fast.pod().start()
    for order, version in enumerate((first, second), 1):
        fast.place.load(version, order=order)
    fast.place.activate({first.pin: 1.0}, order=3)
    slow = fast.pod()  # its file says: the first
    switch = threading.Thread(target=fast.place.activate, args=({second.pin: 1.0},), kwargs={"order": 4}, daemon=True)
    switch.start()
    wait(lambda: fast.document().order == 4, "the document to be written")
    wait(lambda: dict(fast.pods[0].runtime.routing.shares) == {second.pin: 1.0}, "the first pod to follow")
    assert switch.is_alive()
    slow.start()
    switch.join(60)
    assert not switch.is_alive()
    assert dict(slow.runtime.routing.shares) == {second.pin: 1.0}


def test_a_pod_that_never_answers_is_waited_for_until_its_file_is_new(fast, versions, monkeypatch):
    first, *_ = versions
    fast.pod().start()
    broken = fast.pod()
    monkeypatch.setattr(deployment_module, "_RENEWED_S", 2.0)
    fast.place.load(first, order=1)
    assert fast.place.observe().has(first.pin)  # it takes no requests
    broken.condition(Ready="True")
    with pytest.raises(Unavailable):
        fast.place.observe()  # now it does, and nobody knows with what
    broken.condition(Ready="False")


def test_probes_that_nobody_was_asked_are_not_passed(fast, versions):
    """The pods go between the loading and the check: what takes their place is silent, and says nothing of probes."""
    first, *_ = versions
    fast.pod().start()
    fast.place.load(first, order=1)
    fast.place.verify(first)
    fast.pods[0].end()
    with pytest.raises(Unavailable, match="no pod answers"):
        fast.place.verify(first)
    fast.pod()  # has a node, and does not answer yet
    with pytest.raises(Unavailable, match="no pod answers"):
        fast.place.verify(first)


def test_a_pod_that_cannot_load_says_why_and_the_others_know_what_to_forget(fast, versions, made):
    first, second, _ = versions
    good, bad = fast.pod().start(), fast.pod().start()
    fast.place.load(first, order=1)
    bad.follower._fetch = _no_room
    with pytest.raises(InputError, match=f"{bad.name}: there is no room"):
        fast.place.load(second, order=2)
    wait(lambda: second.pin in {each.pin for each in good.runtime.versions()}, "the other to load it")
    assert not fast.place.observe().has(second.pin)
    fast.place.unload(second.pin, order=3)
    assert list(fast.place.observe().versions) == [first.pin]


def test_a_version_that_is_not_asked_for_keeps_nobody_waiting(fast, versions):
    """A new pod cannot have the one to go back to any more: it answers with what is live, and releases go on."""
    first, second, third = versions
    fast.pod().start()
    for order, version in enumerate((first, second), 1):
        fast.place.load(version, order=order)
    fast.place.activate({second.pin: 1.0}, order=3)
    late = fast.pod()
    late.only = {second.ref, third.ref}
    late.start()
    wait(lambda: late.follower.status()["tried"] == 3, "the pod to try")
    assert late.follower.has_arrived
    assert not fast.place.observe().has(first.pin)
    assert fast.place.observe().has(second.pin)
    fast.place.load(third, order=4)
    fast.place.activate({third.pin: 1.0}, order=5)
    assert dict(late.runtime.routing.shares) == {third.pin: 1.0}
    with pytest.raises(NotFound, match=late.name):
        fast.place.load(first, order=6)


def _no_room(ref, tables):
    raise InputError("there is no room")


def test_two_who_write_at_once(fast, versions, monkeypatch):
    """Somebody writes between the look and the write: what they wrote is seen, not overwritten."""
    first, *_ = versions
    fast.pod().start()
    real, times = fast.cluster.patch, []

    def meanwhile(kind, name, patch, **more):
        if name == STATE and not times:
            times.append(name)
            newer = Desired(order=9).model_dump_json()
            real(kind, name, {"data": {STATE_FILE: newer}})
        return real(kind, name, patch, **more)

    monkeypatch.setattr(fast.cluster, "patch", meanwhile)
    with pytest.raises(Conflict, match="order 1 comes after order 9"):
        fast.place.load(first, order=1)
    assert fast.document().order == 9
