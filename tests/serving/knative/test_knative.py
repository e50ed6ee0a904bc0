"""PaddleService: what is refused, what a real API server takes, and the order that keeps a service answering."""

from __future__ import annotations

import pytest

from cloudedge.errors import Conflict, InputError, NotFound, Rejected
from cloudedge.kube import PADDLE_SERVICES
from cloudedge.serving.knative import Autoscale, Endpoint, PaddleService, PaddleServices
from tests.kube.real_cluster import lab, serve
from tests.serving.knative.controller_double import REVISION_DEFINITION, KnativeDouble

START = "exec python3 -m paddle_serving_server.serve --model m --port 9292"
OLD = Endpoint("registry:5000/ctr@sha256:" + "a" * 64, 9292, START)
NEW = Endpoint("registry:5000/ctr@sha256:" + "b" * 64, 9292, START)


def rules(service: PaddleService, severity: str = "error") -> set[str]:
    return {finding.rule for finding in service.findings() if finding.severity == severity}


class TestDescription:
    @pytest.mark.rules
    def test_a_digest_is_pinned_through_the_tag(self):
        assert OLD.manifest() | {} == {
            "containerImage": "registry:5000/ctr@sha256",
            "tag": "a" * 64,
            "port": 9292,
            "arg": START,
        }
        assert Endpoint.from_manifest(OLD.manifest()) == OLD

    @pytest.mark.rules
    def test_a_registry_with_a_port(self):
        assert Endpoint("host:5000/a/b:1.2", 1, "x").manifest()["containerImage"] == "host:5000/a/b"
        with pytest.raises(InputError, match="neither tag nor digest"):
            Endpoint("host:5000/a/b", 1, "x").manifest()

    @pytest.mark.rules
    def test_requests_and_limits_are_always_both_said(self):
        resources = PaddleService("ctr", OLD, cpu="2", gpus=1).manifest(PADDLE_SERVICES[0])["spec"]["resources"]
        assert resources["requests"] == {"cpu": "2", "memory": "2Gi"}
        assert resources["limits"] == {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "1"}

    @pytest.mark.rules
    def test_numbers_that_the_resource_wants_as_text(self):
        found = Autoscale(utilization_percent=70, window_s=60, panic_window_percent=10, panic_threshold_percent=200)
        manifest = found.manifest()
        assert (manifest["targetUtilization"], manifest["window"], manifest["panicWindow"]) == ("70", "60s", "10")
        assert manifest["autoscaler"] == "kpa.autoscaling.knative.dev"

    @pytest.mark.rules
    @pytest.mark.parametrize(
        ("service", "rule"),
        [
            (PaddleService("Ctr", OLD), "name"),
            (PaddleService("a" * 48, OLD), "name"),
            (PaddleService("ctr", OLD, container="0.9"), "container"),
            (PaddleService("ctr", Endpoint("image", 9292, START)), "image"),
            (PaddleService("ctr", Endpoint("image:1", 0, START)), "port"),
            (PaddleService("ctr", Endpoint("image:1", 9292, " ")), "arg"),
            (PaddleService("ctr", OLD, autoscale=Autoscale(metric="cpu")), "metric"),
            (PaddleService("ctr", OLD, autoscale=Autoscale(autoscaler="hpa")), "metric"),
            (PaddleService("ctr", OLD, autoscale=Autoscale(min_scale=3, max_scale=2)), "scale"),
            (PaddleService("ctr", OLD, autoscale=Autoscale(window_s=5)), "range"),
            (PaddleService("ctr", OLD, autoscale=Autoscale(panic_threshold_percent=100)), "range"),
        ],
    )
    def test_what_could_not_work(self, service, rule):
        assert rules(service) == {rule}

    @pytest.mark.rules
    def test_what_is_doubtful(self):
        assert rules(PaddleService("ctr", Endpoint("image:1", 1, "serve")), "warning") == {"image", "exec"}
        assert rules(PaddleService("ctr", OLD, autoscale=Autoscale(min_scale=0)), "warning") == {"scale-to-zero"}
        assert rules(PaddleService("ctr", OLD, volumes=({"name": "x", "emptyDir": {}},)), "warning") == {"volume"}

    @pytest.mark.rules
    @pytest.mark.parametrize(
        ("volume", "mount", "severity"),
        [
            ({"secret": {}}, {"name": "x"}, "warning"),
            ({"secret": {}}, {"name": "x", "readOnly": True}, None),
            ({"emptyDir": {}}, {"name": "x"}, None),
            ({"secret": {}}, {"name": "y", "readOnly": True}, "error"),
        ],
    )
    def test_what_is_mounted_is_there_and_only_read(self, volume, mount, severity):
        service = PaddleService("ctr", OLD, volumes=({"name": "x"} | volume,), volume_mounts=(mount,))
        assert [f.severity for f in service.findings() if f.rule == "mount"] == ([severity] if severity else [])


README = """
apiVersion: {group}/v1
kind: PaddleService
metadata: {{name: lac, namespace: paddleservice-system, labels: {{team: nlp}}}}
spec:
  runtimeVersion: paddleserving
  resources: {{requests: {{cpu: 1, memory: 2Gi}}, limits: {{cpu: "2", memory: 4Gi, nvidia.com/gpu: 1}}}}
  default:
    containerImage: registry.example:5000/lac-serving
    tag: latest
    port: 9292
    arg: exec python3 -m paddle_serving_server.serve --model lac_model/ --port 9292
  canary:
    containerImage: registry.example:5000/lac-serving@sha256
    tag: "{digest}"
    port: 9292
    arg: exec python3 -m paddle_serving_server.serve --model lac_model/ --port 9292
  canaryTrafficPercent: 20
  service:
    autoscaler: kpa
    minScale: 1
    maxScale: 4
    metric: concurrency
    target: 8
    window: 60s
    panicWindow: 10
    targetUtilization: 70
    panicThreshold: "200"
"""


class TestReading:
    @pytest.mark.rules
    @pytest.mark.parametrize("kind", PADDLE_SERVICES, ids=lambda kind: kind.group)
    def test_numbers_where_the_resource_wants_text(self, kind):
        """As upstream's README writes it, which its own schema refuses."""
        found = PaddleService.from_yaml(README.format(group=kind.group, digest="b" * 64))
        assert found == PaddleService(
            "lac",
            Endpoint("registry.example:5000/lac-serving:latest", 9292, found.default.arg),
            cpu="1",
            memory="2Gi",
            cpu_limit="2",
            memory_limit="4Gi",
            gpus=1,
            autoscale=Autoscale(
                1,
                4,
                target=8,
                utilization_percent=70,
                window_s=60,
                panic_window_percent=10,
                panic_threshold_percent=200,
            ),
            namespace="paddleservice-system",
            labels={"team": "nlp"},
            canary=Endpoint("registry.example:5000/lac-serving@sha256:" + "b" * 64, 9292, found.default.arg),
            canary_percent=20,
        )
        written = found.manifest(kind)
        assert (written["spec"]["service"]["panicWindow"], written["apiVersion"]) == ("10", kind.api_version)
        assert "canary" not in written["spec"], "the two together race: it comes once the default is there"
        assert PaddleService.from_manifest(written).manifest(kind) == written

    @pytest.mark.rules
    def test_what_is_left_out_is_not_what_the_controller_makes_of_it(self):
        spec = {"default": OLD.manifest(), "resources": {"requests": {"cpu": 2}}}
        head = {"apiVersion": PADDLE_SERVICES[0].api_version, "kind": "PaddleService", "metadata": {"name": "lac"}}
        found = PaddleService.from_manifest(head | {"spec": spec})
        sides = found.manifest(PADDLE_SERVICES[0])["spec"]["resources"]
        assert sides == {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
        assert found.autoscale.min_scale == 0, "as upstream: it goes away when nobody asks"

    @pytest.mark.rules
    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"apiVersion": "v1"}, "no PaddleService"),
            ({"spec": {}}, "The container that answers is missing"),
            ({"spec": {"default": OLD.manifest(), "replicas": 2}}, "spec.replicas: There is no such field"),
            ({"spec": {"default": OLD.manifest(), "workingDir": "/x"}}, "Write `cd"),
            ({"spec": {"default": OLD.manifest(), "service": {"window": "soon"}}}, "'soon' is no value"),
            ({"spec": {"default": OLD.manifest(), "service": {"panicWindow": True}}}, "True is no value"),
            ({"spec": {"default": OLD.manifest(), "service": {"minscale": 1}}}, "spec.service.minscale"),
        ],
    )
    def test_what_is_none(self, change, what):
        head = {"apiVersion": PADDLE_SERVICES[0].api_version, "kind": "PaddleService", "metadata": {"name": "lac"}}
        with pytest.raises(InputError, match=what):
            PaddleService.from_manifest(head | change)
        with pytest.raises(InputError, match="no YAML"):
            PaddleService.from_yaml("{")


@pytest.fixture(scope="module")
def cluster():
    with lab("paddleservices", "services.serving") as found:
        serve(found, REVISION_DEFINITION)
        found.capabilities(again=True)
        yield found


@pytest.fixture(params=PADDLE_SERVICES, ids=lambda kind: kind.group)
def world(request, cluster):
    services = PaddleServices(cluster, timeout_s=20, kind=request.param)
    with KnativeDouble(cluster, request.param) as double:
        yield services, double
        for each in cluster.list(request.param):
            services.delete(each["metadata"]["name"], wait_s=20)


@pytest.mark.cluster
def test_everything_it_can_say_is_kept_by_the_server(cluster):
    service = PaddleService(
        "full",
        OLD,
        gpus=1,
        autoscale=Autoscale(1, 4, "rps", 8, utilization_percent=70, window_s=60, panic_window_percent=10),
        volumes=({"name": "conf", "configMap": {"name": "c"}},),
        volume_mounts=({"name": "conf", "mountPath": "/conf", "readOnly": True},),
        labels={"team": "ads"},
    )
    for kind in PADDLE_SERVICES:
        made = PaddleServices(cluster, kind=kind).deploy(service, dry_run=True)
        assert made["spec"]["service"]["targetUtilization"] == "70"


@pytest.mark.cluster
def test_a_release_a_canary_and_its_promotion_never_leave_it_without_an_answer(world):
    services, double = world
    assert services.deploy(PaddleService("ctr", OLD)).ready
    assert services.deploy(PaddleService("ctr", OLD)).ready, "who was killed while waiting can run it again"
    with pytest.raises(Conflict, match="exists and differs"):
        services.deploy(PaddleService("ctr", NEW))
    status = services.canary("ctr", NEW, 10)
    assert (status.traffic, status.canary) == ({"ctr-default": 90, "ctr-canary": 10}, NEW)
    assert services.shift("ctr", 50).traffic == {"ctr-default": 50, "ctr-canary": 50}
    status = services.promote("ctr")
    assert (status.default, status.canary, status.traffic) == (NEW, None, {"ctr-default": 100})
    assert double.outages == []
    assert all(double.history), "requests went somewhere at every moment"
    again = services.canary("ctr", OLD, 0)
    assert (again.traffic, again.canary) == ({"ctr-default": 100}, OLD)
    assert services.promote("ctr").default == OLD, "a second promotion works as the first"
    assert double.outages == []


class Killed(Exception):
    """What stands for a process that is no more."""


@pytest.mark.cluster
@pytest.mark.parametrize("patches", range(3))  # everything to the canary, the default changed, the canary gone
@pytest.mark.parametrize("waits", [False, True])
def test_a_promotion_that_is_killed_anywhere_can_be_run_again(world, monkeypatch, patches, waits):
    """Killed right after a patch, before or after the wait for it; then run to its end, and once more."""
    services, double = world
    services.deploy(PaddleService("ctr", OLD))
    services.canary("ctr", NEW, 10)
    left = [patches]
    patch, settled = services._patch, services._settled

    def killed_after(name, spec, **more):
        patch(name, spec, **more)
        left[0] -= 1
        if left[0] < 0 and not waits:
            raise Killed

    def killed_after_waiting(name):
        found = settled(name)
        if left[0] < 0:
            raise Killed
        return found

    monkeypatch.setattr(services, "_patch", killed_after)
    monkeypatch.setattr(services, "_settled", killed_after_waiting)
    with pytest.raises(Killed):
        services.promote("ctr")
    monkeypatch.setattr(services, "_patch", patch)
    monkeypatch.setattr(services, "_settled", settled)
    for _ in range(2):
        status = services.promote("ctr")
        assert (status.default, status.canary, status.traffic) == (NEW, None, {"ctr-default": 100})
    assert double.outages == []
    assert all(double.history)


@pytest.mark.cluster
def test_a_rollback_within_a_promotion_says_what_is_so(world, monkeypatch):
    services, _ = world
    services.deploy(PaddleService("ctr", OLD))
    services.canary("ctr", NEW, 100)
    patch = services._patch

    def killed_after(*arguments, **more):
        patch(*arguments, **more)
        raise Killed

    monkeypatch.setattr(services, "_patch", killed_after)
    with pytest.raises(Killed):
        services.promote("ctr")
    monkeypatch.setattr(services, "_patch", patch)
    assert services.status("ctr").default == NEW
    with pytest.raises(Conflict, match="does not come back") as refused:
        services.rollback("ctr")
    assert refused.value.replaced == OLD.image
    services.promote("ctr")
    services.canary("ctr", OLD, 10)
    assert services.rollback("ctr").default == NEW, "with a canary of its own the promotion of before is forgotten"
    with pytest.raises(Conflict, match="no canary"):
        services.promote("ctr")


@pytest.mark.cluster
def test_a_service_with_a_canary_comes_up_with_one_after_the_other(world):
    services, double = world
    both = PaddleService("ctr", OLD, canary=NEW, canary_percent=20)
    for _ in range(2):
        assert services.deploy(both).traffic == {"ctr-default": 80, "ctr-canary": 20}
    assert double.history[0] == {"ctr-default": 100}
    with pytest.raises(Conflict, match="exists and differs"):  # it would lose its canary
        services.deploy(PaddleService("ctr", OLD))


@pytest.mark.cluster
def test_late_orders_change_nothing(world, cluster):
    services, _ = world
    numbered = {n: PaddleServices(cluster, timeout_s=20, kind=services.kind, order=n) for n in (1, 2, 3)}
    numbered[1].deploy(PaddleService("ctr", OLD))
    numbered[3].claim("ctr")
    for late in (lambda: numbered[2].claim("ctr"), lambda: numbered[2].canary("ctr", NEW, 10)):
        with pytest.raises(Conflict, match="order 2 comes after order 3"):
            late()
    assert numbered[3].canary("ctr", NEW, 10).canary == NEW
    assert services.revision("ctr", "canary") == ("ready", "")
    numbered[3].rollback("ctr")
    with pytest.raises(NotFound, match="no canary"):
        services.revision("ctr", "canary")


@pytest.mark.cluster
def test_a_canary_of_somebody_else_without_a_share_gets_half(world, cluster):
    services, _ = world
    services.deploy(PaddleService("ctr", OLD))
    cluster.patch(services.kind, "ctr", {"spec": {"canary": NEW.manifest()}})
    assert services._settled("ctr").traffic == {"ctr-default": 50, "ctr-canary": 50}


@pytest.mark.cluster
def test_a_service_of_another_namespace_is_refused(world):
    services, _ = world
    with pytest.raises(InputError, match="Connect to that namespace"):
        services.deploy(PaddleService("ctr", OLD, namespace="elsewhere"))


@pytest.mark.cluster
def test_taking_a_canary_back_touches_nothing_else(world):
    services, double = world
    services.deploy(PaddleService("ctr", OLD))
    services.canary("ctr", NEW, 30)
    status = services.rollback("ctr")
    assert (status.default, status.canary, status.traffic) == (OLD, None, {"ctr-default": 100})
    with pytest.raises(Conflict, match="no canary"):
        services.promote("ctr")
    assert double.outages == []


@pytest.mark.cluster
def test_a_version_that_cannot_run_is_said_at_once_and_the_old_one_answers(world):
    services, double = world
    services.deploy(PaddleService("ctr", OLD))
    double.fails.add(NEW.image)
    with pytest.raises(Rejected, match="ctr-canary cannot get ready: ExitCode1"):
        services.canary("ctr", NEW, 10)
    assert services.status("ctr").traffic == {"ctr-default": 100}
    assert services.rollback("ctr").ready


@pytest.mark.cluster
def test_the_blind_change_that_this_avoids_does_take_it_down(world, cluster):
    services, double = world
    services.deploy(PaddleService("ctr", OLD))
    cluster.patch(services.kind, "ctr", {"spec": {"default": NEW.manifest()}})
    with pytest.raises(Exception, match=r"RevisionMissing|changes without a name"):
        PaddleServices(cluster, timeout_s=1, kind=services.kind)._settled("ctr")
    assert double.outages == ["ctr"]


@pytest.mark.cluster
def test_shares_and_names_that_are_none(world):
    services, _ = world
    services.deploy(PaddleService("ctr", OLD))
    with pytest.raises(InputError, match="101 %"):
        services.canary("ctr", NEW, 101)
    with pytest.raises(NotFound, match="absent"):
        services.status("absent")
