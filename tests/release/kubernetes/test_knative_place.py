"""A PaddleService as the dense leg of a target: a double of its controller on a real API server, pods in this process.

The double keeps every trap of upstream's: see `controller_double`. What a revision runs is read from its command, as
bash would, and followed by a real serving replica; only the kubelet, and bash, are played.
"""

from __future__ import annotations

import shlex
import subprocess

import pytest
import yaml

from tests.kube.real_cluster import kubeconfig, lab, serve
from tests.serving.knative.controller_double import REVISION_DEFINITION, KnativeDouble

pytest.importorskip("paddle", reason="paddlepaddle is not installed")

from cloudedge.config import TargetConfig
from cloudedge.config import load as load_config
from cloudedge.errors import ConfigError, Conflict, NotFound, Unavailable
from cloudedge.hub import LocalHub
from cloudedge.kube import PADDLE_SERVICES, Kind
from cloudedge.release import Target, Version
from cloudedge.release.kubernetes import Facts, down, objects, up
from cloudedge.release.kubernetes._cluster_state import Site
from cloudedge.release.kubernetes._knative_place import KnativePlace
from cloudedge.release.kubernetes._revision import Carried, endpoint_of, service_of
from cloudedge.serving.knative import Endpoint, PaddleService, PaddleServices
from cloudedge.serving.runtime import _follower as follower_module
from tests.release.kubernetes.pods import Pod
from tests.release.local.world import home, make, wait

GROUP = PADDLE_SERVICES[1]
IMAGE = "registry.example/serving@sha256:" + "a" * 64
CONFIG = {
    "kind": "kubernetes",
    "paddle_service_group": GROUP.group,
    "dense": {"service": "pair"},
    "pods": {
        "access": "direct",
        "serving": {
            "image": IMAGE,
            "hub": "oci://registry.example/models",
            "knative": {"min_scale": 1, "max_scale": 4, "metric": "rps", "target": 8, "window": "60s"},
        },
    },
}
SERVICE = "serving-kn"


def section(**serving):
    pods = CONFIG["pods"] | {"serving": CONFIG["pods"]["serving"] | serving}
    return TargetConfig.model_validate(CONFIG | {"pods": pods})


@pytest.fixture(scope="module")
def cluster():
    with lab("paddleservices", "services.serving") as found:
        serve(found, REVISION_DEFINITION)
        found.capabilities(again=True)
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with home(folder / "home"):
        good = [make(folder / f"v{n}", n, rows=200) for n in (1, 2, 3)]
        return folder / "home", good, make(folder / "spoiled", 4, rows=200, wrong_probes=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch, made):
    monkeypatch.setenv("CLOUDEDGE_HOME", str(made[0]))
    monkeypatch.setattr(follower_module, "_POLL_S", 0.02)


class Replicas:
    """Runs a revision as one pod; as none while there is nobody who asks."""

    def __init__(self, cluster, site, folder):
        self._cluster, self._site, self._folder = cluster, site, folder
        self.pods: dict[str, Pod] = {}
        self.is_asleep = False
        self._made = 0

    def start(self, revision, endpoint):
        carried = Carried.read(endpoint)
        self.end(revision)
        if carried is None or self.is_asleep:
            return
        self._made += 1
        labels = {"PaddleService": SERVICE, "serving.knative.dev/revision": revision}
        pod = Pod(
            self._cluster,
            self._site,
            self._folder,
            f"{revision}-{self._made}",
            labels=labels,
            document=carried.document.model_dump_json(),
        )
        self.pods[revision] = pod.start()
        wait(lambda: pod.follower.has_loaded, f"{pod.name} to have its version")

    def end(self, revision):
        if revision in self.pods:
            self.pods.pop(revision).end()


class KnativeWorld:
    """A target whose dense leg is a PaddleService, with the parts of Knative that a client sees."""

    def __init__(self, cluster, folder, made):
        self.cluster, (_, self.good, self.spoiled) = cluster, made
        where = {"kubeconfig": kubeconfig(), "namespace": cluster.namespace}
        (folder / "cloudedge.yaml").write_text(yaml.safe_dump({"targets": {"kn": CONFIG | where}}))
        self.config = load_config(folder / "cloudedge.yaml")
        up("kn", config=self.config)
        self.site = Site("kn", self.config.targets["kn"])
        self.place = KnativePlace(self.site, hub=LocalHub())
        self.replicas = Replicas(cluster, self.site, folder / "pods")
        self.double = KnativeDouble(cluster, GROUP, self.replicas)
        self.target = None
        self.open()

    def open(self):
        self.close()
        self.target = Target.load("kn", config=self.config)

    def close(self):
        if self.target is not None:
            self.target._context.journal.close()

    def release(self, made, **choices):
        return self.target.run(self.target.plan(made.bundle, **choices))

    @property
    def status(self):
        return self.site.paddle_services().status(SERVICE)

    def pins(self):
        """Say what the revisions carry: default, canary."""
        found = self.status
        return [None if each is None else Carried.read(each).pin for each in (found.default, found.canary)]

    def answers(self):
        return dict(self.target.status().places[0].answers)


@pytest.fixture
def world(cluster, tmp_path, made):
    world = KnativeWorld(cluster, tmp_path, made)
    with world.double:
        yield world
        world.close()
        down("kn", config=world.config, everything=True)
    for revision in list(world.replicas.pods):
        world.replicas.end(revision)
    for file in (made[0] / "targets").glob("kn.db*"):  # its backups too: without them it was never there
        file.unlink()


@pytest.mark.cluster
def test_release_canary_rollback_and_the_one_after(world):
    first, second, third = world.good
    assert world.release(first).state == "done"
    assert (world.pins(), world.answers()) == ([first.pin, None], {first.pin: 1.0})

    assert world.release(second, canary=0.2, bake_s=0.2).state == "done"
    assert {"serving-kn-default": 80, "serving-kn-canary": 20} in world.double.history
    assert (world.pins(), world.answers()) == ([first.pin, second.pin], {second.pin: 1.0})
    assert world.status.traffic == {"serving-kn-canary": 100}

    back = world.target.rollback()
    assert (back.state, back.bytes) == ("done", 0)
    assert (world.pins(), world.answers()) == ([first.pin, None], {first.pin: 1.0})

    world.release(second)
    world.release(third)
    assert world.pins() == [second.pin, third.pin], "what was live became the default, and can be gone back to"
    assert world.answers() == {third.pin: 1.0}
    world.target.rollback()
    assert world.answers() == {second.pin: 1.0}
    assert world.target.status().is_whole
    assert world.double.outages == []
    assert all(world.double.history), "requests went somewhere at every moment"


@pytest.mark.cluster
def test_a_bad_release_undoes_itself(world):
    first, *_ = world.good
    undone = world.release(world.spoiled)
    assert (undone.state, "probes" in undone.why) == ("undone", True)
    assert world.place.observe().versions == {}, "a first release that fails its probes leaves nothing"
    world.release(first)
    undone = world.release(world.spoiled)
    assert (undone.state, "probes" in undone.why) == ("undone", True)
    assert (world.pins(), world.answers()) == ([first.pin, None], {first.pin: 1.0})
    assert world.double.outages == []
    split = {"serving-kn-default": 100}
    assert all(each in (split, {}) for each in world.double.history[-3:]), "nobody got an answer of it"


@pytest.mark.cluster
def test_a_revision_that_cannot_run_undoes_the_release(world):
    first, second, _ = world.good
    world.release(first)
    world.double.fails.add(IMAGE)
    undone = world.release(second)
    assert (undone.state, "cannot get ready: ExitCode1" in undone.why) == ("undone", True)
    world.double.fails.clear()
    assert (world.pins(), world.answers()) == ([first.pin, None], {first.pin: 1.0})


class Killed(BaseException):
    """What stands for a process that is no more."""


@pytest.mark.cluster
@pytest.mark.parametrize("patches", range(6))
def test_killed_after_any_change_one_resume_makes_it_whole(world, monkeypatch, patches):
    """The third release moves the second one to the default, brings the canary up, and sends it everything."""
    first, second, third = world.good
    world.release(first)
    world.release(second)
    left, real = [patches], PaddleServices._patch

    def killed_after(self, *arguments, **more):
        real(self, *arguments, **more)
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PaddleServices, "_patch", killed_after)
        with pytest.raises(Killed):
            world.release(third)
    world.open()
    world.target.resume()
    status = world.target.status()
    assert (status.is_whole, status.live.pin, world.answers()) == (True, third.pin, {third.pin: 1.0})
    assert world.double.outages == []
    assert all(world.double.history)


@pytest.mark.cluster
def test_late_orders_change_nothing(world, made):
    first, second, _ = (Version.of(each.bundle, shards={}) for each in world.good)
    world.place.load(first, order=4)
    for late in (
        lambda: world.place.load(second, order=3),
        lambda: world.place.activate({first.pin: 1.0}, order=3),
        lambda: world.place.activate({}, order=3),
        lambda: world.place.unload(first.pin, order=3),
    ):
        with pytest.raises(Conflict, match="order 3 comes after order 4"):
            late()
    with pytest.raises(NotFound, match="does not have"):
        world.place.activate({second.pin: 1.0}, order=5)
    with pytest.raises(Conflict, match="answers with"):
        world.place.unload(first.pin, order=5)
    world.place.load(second, order=6)
    world.place.load(second, order=6)  # again is fine
    world.place.activate({first.pin: 0.995, second.pin: 0.005}, order=7)
    assert dict(world.place.observe().active) == {first.pin: 0.99, second.pin: 0.01}, "whole percents, and not none"
    world.place.activate({first.pin: 1.0}, order=8)
    world.place.unload(second.pin, order=9)
    world.place.activate({}, order=10)
    assert world.place.observe().versions == {}
    assert world.cluster.get(Kind.KNATIVE_SERVICE, SERVICE) is None


@pytest.mark.cluster
def test_scaled_to_zero_it_is_there_and_nobody_can_be_asked(world):
    first, *_ = (Version.of(each.bundle, shards={}) for each in world.good)
    world.replicas.is_asleep = True
    world.place.load(first, order=1)
    assert world.place.observe().has(first.pin)
    assert world.place.watch().traffic == {}
    with pytest.raises(Unavailable, match="no pod answers"):
        world.place.verify(first)


@pytest.mark.cluster
def test_what_the_pods_did_is_watched(world):
    first, second, _ = (Version.of(each.bundle, shards={}) for each in world.good)
    world.place.load(first, order=1)
    world.place.load(second, order=2)
    assert {pin: each.requests for pin, each in world.place.watch().traffic.items()} == {first.pin: 0, second.pin: 0}


@pytest.mark.cluster
def test_another_scale_is_no_change_that_a_release_makes(world):
    first, second, _ = (Version.of(each.bundle, shards={}) for each in world.good)
    world.place.load(first, order=1)
    other = Site("kn", section(knative={"min_scale": 2}), world.site.cluster)
    with pytest.raises(Conflict, match="another scale"):
        KnativePlace(other, hub=LocalHub()).load(second, order=2)
    assert world.pins() == [first.pin, None]


@pytest.mark.cluster
def test_down_and_up_again(world):
    first, *_ = world.good
    world.release(first)
    gone = down("kn", config=world.config)
    assert f"PaddleService/{SERVICE}" in gone
    assert world.cluster.get(Kind.KNATIVE_SERVICE, SERVICE) is None
    up("kn", config=world.config)
    world.target.resume()
    assert (world.pins(), world.answers()) == ([first.pin, None], {first.pin: 1.0})


@pytest.mark.cluster
def test_somebody_elses_service_is_left_alone(world):
    stranger = PaddleService(SERVICE, Endpoint(IMAGE, 9292, "exec python3 -m serve"))
    world.site.paddle_services().deploy(stranger)
    with pytest.raises(Conflict, match="no release put there"):
        world.place.observe()
    with pytest.raises(Conflict, match="no release put there"):
        world.place.activate({"x": 1.0}, order=1)
    world.site.paddle_services().delete(SERVICE)


@pytest.mark.parts
def test_what_a_revision_runs_is_a_script_that_bash_understands(made, tmp_path):
    version = Version.of(made[1][0].bundle, shards={})
    conf = 'name with a quote: it\'s "this" $HOME `id`\n'
    endpoint = endpoint_of(version, section(hub_secret="login"), cube=conf)
    carried = Carried.read(endpoint)
    assert (carried.pin, carried.ref, carried.document.cube) == (version.pin, version.ref, conf)
    assert carried.is_for(version)
    assert Carried.read(Endpoint(IMAGE, 1, "exec python3 -m serve")) is None
    # The same script with the pod's folders elsewhere, and a server that says how it was started.
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "HUB_PASSWORD").write_text("it's a 'secret'")
    program = tmp_path / "cloudedge"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$HUB_PASSWORD" "$CLOUDEDGE_CONFIG" "$@"\n')
    program.chmod(0o755)
    script = endpoint.arg.replace("/tmp/", f"{tmp_path}/").replace("/etc/cloudedge", str(tmp_path))
    ran = subprocess.run(
        ["/bin/bash", "-c", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    password, config, *words = ran.stdout.splitlines()
    assert (password, config) == ("it's a 'secret'", f"{tmp_path}/serving/cloudedge.yaml")
    assert words[:2] == ["serve", "--listen-when-loaded"]
    assert f"--follow={tmp_path}/state.json" in words
    assert (tmp_path / "state.json").read_text() == carried.document.model_dump_json()
    assert shlex.split(endpoint.arg.splitlines()[-1])[0] == "exec"


@pytest.mark.parts
def test_what_the_service_is_told(made):
    version = Version.of(made[1][0].bundle, shards={})
    config = section(requests={"cpu": 2, "memory": "4Gi"}, limits={"cpu": 4}, hub_secret="login")
    spec = service_of("kn", config, endpoint_of(version, config, cube="")).manifest(GROUP)["spec"]
    assert spec["service"] == {
        "autoscaler": "kpa.autoscaling.knative.dev",
        "metric": "rps",
        "minScale": 1,
        "maxScale": 4,
        "target": 8,
        "window": "60s",
    }
    assert spec["resources"] == {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"cpu": "4", "memory": "4Gi"},
    }
    assert [each["name"] for each in spec["volumes"]] == ["admin", "hub", "serving"]
    kinds = [each["kind"] for each in objects("kn", config, Facts("the token"))]
    assert kinds == ["ServiceAccount", "Secret", "NetworkPolicy", "ConfigMap"], "it comes with the first release"


@pytest.mark.parts
@pytest.mark.parametrize(
    ("serving", "what"),
    [
        ({"node_selector": {"disk": "nvme"}}, "no pods.serving.node_selector"),
        ({"ingress_host": "ctr.example"}, "no pods.serving.ingress_host"),
        ({"image": "registry.example/serving"}, "neither tag nor digest"),
        ({"knative": {"min_scale": 3, "max_scale": 2}}, "From 3 to 2 pods"),
        ({"knative": {"window": "2s"}}, "2 is not between 6 and 3600"),
    ],
)
def test_what_a_service_cannot_have_is_said_first(serving, what):
    with pytest.raises(ConfigError, match=what):
        objects("kn", section(**serving), Facts("the token"))
