"""Every way to crash a controller, to hang or to be misunderstood is found before anything is sent."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudedge.errors import InputError
from cloudedge.training import Flavour, Surroundings, TrainingJob
from tests.training.samples import BUILT, WITH_SAMPLES, role

pytestmark = pytest.mark.rules


def at(manifest, path, value):
    """A manifest with one value changed; a value that is `...` is removed."""
    result = copy.deepcopy(manifest)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    node = result
    for step in steps:
        node = node[step] if isinstance(node, list) else node.setdefault(step, {})
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return result


POD = "spec/worker/template/spec"
BOX = f"{POD}/containers/0"
# name: (sample, path, value, rule, severity[, surroundings])
CASES = {
    # 1.9: what crashes the controller or hangs
    "nothing to run": ("single", "spec", {}, "roles", "error"),
    "servers alone": ("ps", "spec/worker", ..., "roles", "error"),
    "heter without servers": ("heter", "spec/ps", ..., "roles", "error"),
    "a role that is a word": ("single", "spec/worker", "two", "shape", "error"),
    "negative replicas": ("ps", "spec/ps/replicas", -1, "replicas", "error"),
    "no replicas": ("ps", "spec/ps/replicas", ..., "replicas", "error"),
    "zero replicas": ("ps", "spec/worker/replicas", 0, "replicas", "error"),
    "replicas by truth": ("ps", "spec/worker/replicas", True, "replicas", "error"),
    "no containers": ("ps", "spec/ps/template/spec/containers", [], "containers", "error"),
    "no template": ("ps", "spec/ps/template", ..., "containers", "error"),
    "a container that is a word": (
        "single",
        f"{POD}/containers",
        ["x", {"name": "a", "image": "b"}],
        "shape",
        "error",
    ),
    "a dot in the name": ("single", "metadata/name", "a.b", "name", "error"),
    "a digit first": ("single", "metadata/name", "1a", "name", "error"),
    "capitals": ("single", "metadata/name", "Abc", "name", "error"),
    "a dash last": ("single", "metadata/name", "abc-", "name", "error"),
    "a long name": ("single", "metadata/name", "a" * 55, "name-length", "error"),
    "a name too long for 10 pods": ("single", "metadata/name", "a" * 54, None, None),
    "a namespace with a dot": ("single", "metadata/namespace", "a.b", "namespace", "error"),
    "host network of all": ("host", "spec/intranet", "HostNetwork", "intranet", "error"),
    "host ports": ("host", "spec/intranet", "Host", "host-ports", "warning", Flavour.PADDLECLOUD),
    "host annotation": ("host", "spec/intranet", "Host", "host-annotation", "note", Flavour.PADDLECLOUD),
    "an unknown clean-up": ("single", "spec/cleanPodPolicy", "OnFailed", "clean-pod-policy", "warning"),
    "another scheduler": ("gang", f"{POD}/schedulerName", "my-scheduler", "scheduler", "warning"),
    "sidecars": ("single", "spec/intranet", "PodIP", "sidecar", "note", Surroundings(injects_sidecars=True)),
    # 1.1, 1.5, 1.6: fields that do not do what they seem to
    "gloo of three": ("ps", "spec/withGloo", 3, "with-gloo", "error"),
    "gloo in words": ("ps", "spec/withGloo", "on", "with-gloo", "error"),
    "gloo without servers": ("single", "spec/withGloo", 1, "gloo-without-ps", "warning"),
    "elastic without workers": ("elastic", "spec/worker", ..., "elastic-worker", "error"),
    "elastic in words": ("elastic", "spec/elastic", "yes", "elastic", "error"),
    "elastic of zero": ("elastic", "spec/elastic", 0, "elastic-zero", "warning"),
    "elastic servers": ("ps", "spec/elastic", 1, "elastic-ps", "warning"),
    "elastic without etcd": ("single", "spec/elastic", 1, "elastic-etcd", "warning"),
    "etcd with a scheme": ("elastic", f"{BOX}/env/0/value", "http://etcd:2379", "elastic-etcd", "error"),
    "two etcds": ("elastic", f"{BOX}/env/0/value", "a:1,b:2", "elastic-etcd", "error"),
    "bounds nobody reads": ("single", "spec/worker/limits", 4, "role-bounds", "warning"),
    "a role of our own": ("single", f"{BOX}/env", [{"name": "TRAINING_ROLE", "value": "X"}], "env-lost", "warning"),
    "endpoints of our own": (
        "single",
        f"{BOX}/env",
        [{"name": "PADDLE_TRAINERS", "value": "X"}],
        "env-hides",
        "warning",
    ),
    "heter untranslated": ("heter", "spec/heter/template/spec/containers/0/command", ["x"], "heter-role", "warning"),
    "a field misspelt": ("single", "spec/cleanPodPolicies", "Never", "unknown-field", "warning"),
    "a role's field misspelt": ("single", "spec/worker/replica", 2, "unknown-field", "warning"),
    # 1.8
    "samples on operator": ("samples", "spec/ps/replicas", 1, "samples-flavour", "error", Flavour.OPERATOR),
    "samples nowhere": ("samples", "spec/sampleSetRef/mountPath", ..., "samples", "error"),
    "samples at a relative path": ("samples", "spec/sampleSetRef/mountPath", "mnt", "samples", "error"),
    "samples elsewhere": ("samples", "spec/sampleSetRef/namespace", "other", "samples-namespace", "error"),
    "samples and affinity": (
        "samples",
        f"{POD}/affinity",
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
        "samples-affinity",
        "warning",
    ),
    "samples share nodes": ("samples", "spec/ps/replicas", 1, "samples-nodes", "warning"),
    # 1.10
    "gloo's port": ("ps", "spec/intranet", "PodIP", "gloo-port", "warning", Flavour.OPERATOR),
    "gloo's port, mended": ("ps", "spec/withGloo", 1, "gloo-port", "note", Flavour.OPERATOR),
    "gloo by service on a branch": ("ps", "spec/intranet", "Service", "gloo-service", "warning", Flavour.SAMPLESET),
    "the port of services": ("ps", "spec/intranet", "Service", "service-port", "note", Flavour.OPERATOR),
    "pods that run again": ("single", "spec/cleanPodPolicy", "Never", "pods-rerun", "warning"),
    "restarts that hide failures": ("single", f"{POD}/restartPolicy", "OnFailure", "restart-in-place", "warning"),
    "a pod that never ends": ("single", f"{POD}/restartPolicy", "Always", "restart-always", "error"),
    "no such restart": ("single", f"{POD}/restartPolicy", "Sometimes", "restart-policy", "error"),
    # pods that no API server would create
    "no image": ("single", f"{BOX}/image", ..., "image", "error"),
    "an image and a space": ("single", f"{BOX}/image", "demo:1 ", "image", "error"),
    "no container name": ("single", f"{BOX}/name", "My Box", "container-name", "error"),
    "two of a name": ("single", f"{POD}/containers", [{"name": "a", "image": "b"}] * 2, "container-name", "error"),
    "two containers": (
        "single",
        f"{POD}/containers",
        [{"name": "a", "image": "b"}, {"name": "c", "image": "b"}],
        "sidecar-container",
        "warning",
    ),
    "a mount of nothing": (
        "single",
        f"{BOX}/volumeMounts",
        [{"name": "x", "mountPath": "/x"}],
        "volume-mount",
        "error",
    ),
    "two at one path": (
        "output",
        f"{BOX}/volumeMounts",
        [{"name": "volume-0", "mountPath": "/x"}] * 2,
        "volume-mount",
        "error",
    ),
    "a volume twice": ("output", f"{POD}/volumes", [{"name": "volume-0"}] * 2, "volume-name", "error"),
    "GPUs and no memory": ("single", f"{BOX}/resources", {"limits": {"nvidia.com/gpu": 1}}, "shared-memory", "warning"),
    # 4.3
    "more than there are": ("gang", "spec/schedulingPolicy/minAvailable", 5, "min-available", "error"),
    "less than there are": ("gang", "spec/schedulingPolicy/minAvailable", 3, "min-available", "warning"),
    "the group's field": ("gang", "spec/schedulingPolicy/priorityClassName", "x", "priority-class", "error"),
    "a policy that is a word": ("gang", "spec/schedulingPolicy", "volcano", "shape", "error"),
    # 4.1
    "no tasks": ("volcano", "spec/tasks", [], "tasks", "error"),
    "a task twice": ("volcano", "spec/tasks/1/name", "prepare", "task-name", "error"),
    "a task with a dot": ("volcano", "spec/tasks/1/name", "a.b", "name", "error"),
    "a task's name too long": ("volcano", "spec/tasks/1/name", "a" * 60, "name-length", "error"),
    "a task without containers": ("volcano", "spec/tasks/1/template/spec", {}, "containers", "error"),
    "a task's share": ("volcano", "spec/tasks/1/minAvailable", 3, "min-available", "error"),
    "more than all tasks": ("volcano", "spec/minAvailable", 9, "min-available", "error"),
    "fewer than all tasks": ("volcano", "spec/minAvailable", 1, "min-available", "warning"),
    "no success": ("volcano", "spec/minSuccess", 0, "number", "error"),
    "the root queue": ("volcano", "spec/queue", "root", "queue", "error"),
    "an unknown plugin": ("volcano", "spec/plugins/horovod", [], "plugin", "error"),
    "a volume of neither": ("volcano", "spec/volumes/0/volumeClaimName", ..., "volume", "error"),
    "a volume of both": ("volcano", "spec/volumes/0/volumeClaim", {}, "volume", "error"),
    "a volume nowhere": ("volcano", "spec/volumes/0/mountPath", ..., "volume", "error"),
    "an unknown action": ("volcano", "spec/policies/0/action", "Restart", "action", "error"),
    "a refused event": ("volcano", "spec/policies/0/events", ["PodRunning"], "event", "error"),
    "an event twice": ("volcano", "spec/policies/1", {"event": "PodFailed", "action": "AbortJob"}, "event", "error"),
    "all and one": ("volcano", "spec/policies/1", {"event": "*", "action": "AbortJob"}, "event", "error"),
    "success as an event": ("volcano", "spec/policies/1/exitCode", 0, "exit-code", "error"),
    "a code that is a list": ("volcano", "spec/policies/1/exitCode", [], "exit-code", "error"),
    "code and event": ("volcano", "spec/policies/1/event", "Unknown", "policy", "error"),
    "neither": ("volcano", "spec/policies/1/exitCode", ..., "policy", "error"),
    "pending without time": (
        "volcano",
        "spec/policies/1",
        {"event": "PodPending", "action": "AbortJob"},
        "timeout",
        "error",
    ),
    "a new action": ("volcano", "spec/policies/0/action", "RestartPod", "volcano-version", "warning"),
    "restarts that policies miss": (
        "volcano",
        "spec/tasks/1/template/spec/restartPolicy",
        "OnFailure",
        "restart-in-place",
        "warning",
    ),
    "restarts for ever": ("volcano", "spec/tasks/1/template/spec/restartPolicy", ..., "restart-always", "warning"),
    "waits for nobody": ("volcano", "spec/tasks/1/dependsOn/name", ["x"], "depends-on", "error"),
    "waits for itself": ("volcano", "spec/tasks/0/dependsOn", {"name": ["train"]}, "depends-on", "error"),
    # 4.2
    "another label": ("ctr", "spec/tasks/0/template/metadata/labels/paddle-job-pserver", "x", "ctr-label", "error"),
    "another count": ("ctr", "spec/tasks/1/replicas", 3, "ctr-count", "error"),
    "the model is lost": ("ctr", "spec/tasks/1/template/spec/containers/0/volumeMounts", [], "ctr-output", "warning"),
    "nobody may list pods": ("ctr", "spec/tasks/0/template/spec/serviceAccountName", ..., "ctr-account", "warning"),
    # outputs
    "an output nobody mounts": ("output", "metadata/annotations/cloudedge~output", "pvc://x/y", "output", "error"),
}
SAMPLES = {**BUILT, "samples": WITH_SAMPLES}


@pytest.mark.parametrize("name", CASES)
def test_each_trap_is_found(name):
    sample, path, value, rule, severity, *more = CASES[name]
    job = SAMPLES[sample]
    steps = path.replace("cloudedge~output", "cloudedge/output") if "~" in path else path
    if "~" in path:
        manifest = copy.deepcopy(job.manifest)
        manifest["metadata"]["annotations"]["cloudedge/output"] = value
    else:
        manifest = at(job.manifest, steps, value)
    found = TrainingJob(manifest, job.companions).validate(more[0] if more else None)
    if rule is None:
        assert not [f for f in found if f.severity == "error"]
        return
    hits = [f for f in found if f.rule == rule]
    assert hits, [str(f) for f in found]
    assert hits[0].severity == severity
    assert len(str(hits[0])) > 20
    before = {str(f) for f in job.validate(more[0] if more else None)}
    if severity != "note" and value is not job.manifest["spec"].get(path.removeprefix("spec/"), None):
        unchanged = manifest == job.manifest
        assert unchanged or {str(f) for f in hits} - before
    if severity == "error":
        with pytest.raises(InputError) as caught:
            TrainingJob(manifest, job.companions).to_manifest(more[0] if more else None)
        assert hits[0].message in str(caught.value)


def test_names_leave_room_for_every_index():
    fits = TrainingJob.collective("a" * 53, role(replicas=11))
    assert not [f for f in fits.validate() if f.severity == "error"]
    long = TrainingJob.collective("a" * 54, role(replicas=11))
    assert [f.rule for f in long.validate()] == ["name-length"]


@pytest.mark.parametrize("name", BUILT)
def test_what_is_built_is_sound(name):
    assert not [f for f in BUILT[name].validate() if f.severity == "error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def paths(node, prefix=()):
    yield prefix
    if isinstance(node, dict):
        for key in node:
            yield from paths(node[key], (*prefix, key))
    elif isinstance(node, list):
        for number in range(len(node)):
            yield from paths(node[number], (*prefix, number))


PLACES = [(name, path) for name, job in SAMPLES.items() for path in paths(job.manifest["spec"]) if path]


@given(st.sampled_from(PLACES), JSON, st.sampled_from([None, *Flavour]))
def test_no_value_anywhere_breaks_the_rules(place, value, flavour):
    """Any JSON value at any place of any job gives findings, never another error."""
    name, path = place
    manifest = copy.deepcopy(SAMPLES[name].manifest)
    node = manifest["spec"]
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    try:
        job = TrainingJob(manifest, SAMPLES[name].companions)
    except InputError:
        return
    around = Surroundings(flavour=flavour, injects_sidecars=True)
    findings = job.validate(around)
    if not any(finding.severity == "error" for finding in findings):
        job.to_manifest(around)
