"""Jobs: built with types, read from YAML, written back, refused when they only look like one."""

import subprocess
import sys

import pytest
import yaml

from cloudedge import training
from cloudedge.errors import InputError
from cloudedge.training import Flavour, Gang, PvcMount, Role, Surroundings, Task, TrainingJob
from cloudedge.training.manifest._pods import merged
from tests.training.samples import (
    BUILT,
    FULL,
    MANIFESTS,
    OPERATOR,
    PADDLECLOUD,
    PYTHON,
    SEEDS,
    VOLCANO,
    WITH_SAMPLES,
    role,
    schema,
    unknown_fields,
    validator,
)

EVERY = {**{f"built-{name}": job for name, job in BUILT.items()}, **{f.stem: TrainingJob.from_yaml(f) for f in SEEDS}}
FLAVOURS = {Flavour.OPERATOR: OPERATOR, Flavour.PADDLECLOUD: PADDLECLOUD, Flavour.SAMPLESET: PADDLECLOUD}


def has_samples(job):
    return "sampleSetRef" in job.manifest["spec"]


@pytest.mark.rules
@pytest.mark.parametrize("name", EVERY)
def test_every_job_validates_and_loses_no_field(name):
    job = EVERY[name]
    for flavour, crd in FLAVOURS.items():
        if has_samples(job) and not flavour.has_samples:
            continue
        for manifest in job.to_manifest(flavour):
            if manifest["kind"] == "PaddleJob":
                files = [crd]
            else:
                files = [file for (kind, _), file in VOLCANO.items() if kind == manifest["kind"]]
            assert files
            for file in files:
                assert unknown_fields(manifest, schema(file)) == []
                assert [error.message for error in validator(file).iter_errors(manifest)] == []


@pytest.mark.rules
@pytest.mark.parametrize("name", EVERY)
def test_yaml_in_is_yaml_out(name):
    job = EVERY[name]
    again = TrainingJob.from_yaml(job.to_yaml())
    assert again == job
    assert again.digest == job.digest


@pytest.mark.rules
@pytest.mark.parametrize("path", SEEDS, ids=lambda p: p.stem)
def test_a_file_is_kept_as_it_was_written(path):
    documents = [each for each in yaml.safe_load_all(path.read_text()) if each]
    job = TrainingJob.from_yaml(path)
    assert [*job.companions, job.manifest] == documents


@pytest.mark.rules
def test_unknown_fields_are_kept_and_named():
    text = BUILT["single"].to_yaml().replace("spec:\n", "spec:\n  restartLimit: 3\n", 1)
    job = TrainingJob.from_yaml(text)
    assert job.manifest["spec"]["restartLimit"] == 3
    assert job.to_manifest(Flavour.OPERATOR)[-1]["spec"]["restartLimit"] == 3
    assert [f.where for f in job.validate() if f.rule == "unknown-field"] == ["spec.restartLimit"]


@pytest.mark.rules
def test_the_seeds_misspelt_policy_is_explained_and_sent_rightly():
    job = TrainingJob.from_yaml(MANIFESTS / "ps-gloo-clean-policy.yaml")
    (finding,) = [f for f in job.validate() if f.rule == "clean-policy"]
    assert "cleanPodPolicy" in str(finding)
    assert "drop" in finding.message
    sent = job.to_manifest(Flavour.PADDLECLOUD)[-1]["spec"]
    assert sent["cleanPodPolicy"] == "OnCompletion"
    assert "cleanPolicy" not in sent
    assert "cleanPolicy: OnCompletion" in job.to_yaml()


@pytest.mark.rules
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("heter-branch.yaml", ["experimental branch", "spec.ps"]),
        ("kubeflow.yaml", ["Kubeflow", "a different kind", "paddleReplicaSpecs"]),
    ],
)
def test_lookalikes_are_refused_with_clear_words(file, words):
    with pytest.raises(InputError) as caught:
        TrainingJob.from_yaml(MANIFESTS / "refused" / file)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.rules
@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: b",
        "[1, 2]",
        "{apiVersion: v1, kind: Pod, metadata: {name: a}}",
        "{apiVersion: batch.paddlepaddle.org/v1alpha1, kind: PaddleJob, metadata: {name: a}, spec: {}}",
        "{apiVersion: batch.paddlepaddle.org/v1, kind: PaddleJob, metadata: {name: a}}",
        "{apiVersion: batch.paddlepaddle.org/v1, kind: PaddleJob, spec: {worker: {}}}",
        "{apiVersion: batch/v1, kind: Job, metadata: {name: a}, spec: {}}",
        "a: [",
        "&a [*a]",
        "{apiVersion: batch.paddlepaddle.org/v1, kind: PaddleJob, metadata: {name: a}, spec: &a {worker: *a}}",
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"b{i}: &b{i} [{','.join([f'*b{i - 1}' if i else '*a'] * 9)}]\n" for i in range(9)),
        "---\n".join(BUILT[name].to_yaml() for name in ("single", "ps")),
    ],
    ids=range(13),
)
def test_what_is_no_job_is_refused(text):
    bomb = text.startswith("a: &a")
    with pytest.raises(InputError):
        TrainingJob.from_yaml("apiVersion: batch.paddlepaddle.org/v1\nkind: PaddleJob\n" + text if bomb else text)


@pytest.mark.rules
def test_a_role_becomes_a_whole_pod():
    template = TrainingJob.collective("a", FULL).manifest["spec"]["worker"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 2}}
    assert {m["mountPath"] for m in container["volumeMounts"]} == {"/data", "/out", "/y", "/dev/shm"}
    assert {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in template["spec"]["volumes"]
    assert template["metadata"] == {"labels": {"team": "ads"}}
    assert template["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert template["spec"]["restartPolicy"] == "Never"


@pytest.mark.rules
def test_shared_memory_comes_with_gpus_only():
    assert "volumes" not in TrainingJob.single("a", role()).manifest["spec"]["worker"]["template"]["spec"]
    assert "volumes" in TrainingJob.single("a", role(gpus=1)).manifest["spec"]["worker"]["template"]["spec"]
    off = TrainingJob.single("a", role(gpus=1, shm=False))
    assert [f.rule for f in off.validate()] == ["shared-memory"]


@pytest.mark.rules
def test_overrides_merge_deeply():
    base = {"a": {"b": 1, "c": 2}, "containers": [{"name": "x", "image": "1"}], "l": [1]}
    over = {"a": {"b": None, "d": 3}, "containers": [{"name": "x", "tty": True}, {"name": "y"}], "l": [2]}
    assert merged(base, over) == {
        "a": {"c": 2, "d": 3},
        "containers": [{"name": "x", "image": "1", "tty": True}, {"name": "y"}],
        "l": [2],
    }
    assert base["a"]["b"] == 1


@pytest.mark.rules
def test_heter_commands_translate_the_role():
    heter = BUILT["heter"].manifest["spec"]["heter"]["template"]["spec"]["containers"][0]
    assert heter["command"][:2] == ["sh", "-c"]
    assert "TRAINING_ROLE=HETER_TRAINER" in heter["command"][2]
    assert heter["command"][3:] == ["--", *PYTHON]
    with pytest.raises(InputError, match="needs a command"):
        TrainingJob.heter("a", ps=role(), worker=role(), heter=Role("x"))


@pytest.mark.rules
def test_what_a_flavour_needs_is_added():
    job = BUILT["ps"]
    operator = job.to_manifest(Flavour.OPERATOR)[-1]
    assert operator["spec"]["intranet"] == "Service"
    for name in ("ps", "worker"):
        env = operator["spec"][name]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "PADDLE_PORT", "value": "36000"} in env
    assert "intranet" not in job.to_manifest(Flavour.PADDLECLOUD)[-1]["spec"]
    host = BUILT["host"]
    assert host.to_manifest(Flavour.PADDLECLOUD)[-1]["metadata"]["annotations"]
    assert "annotations" not in host.to_manifest(Flavour.OPERATOR)[-1]["metadata"]


@pytest.mark.rules
def test_samples_are_refused_where_they_would_be_lost():
    assert WITH_SAMPLES.to_manifest(Flavour.PADDLECLOUD)[-1]["spec"]["sampleSetRef"]["mountPath"] == "/mnt/criteo"
    with pytest.raises(InputError, match="would run without its data") as caught:
        WITH_SAMPLES.to_manifest(Flavour.OPERATOR)
    assert caught.value.findings[0]["rule"] == "samples-flavour"


@pytest.mark.rules
def test_sidecars_are_kept_out_where_they_are_injected():
    sent = BUILT["ps"].to_manifest(Surroundings(injects_sidecars=True))[-1]["spec"]
    for name in ("ps", "worker"):
        assert sent[name]["template"]["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}


@pytest.mark.rules
def test_a_group_by_hand_is_linked_to_every_pod():
    job = TrainingJob.from_yaml(MANIFESTS / "gang-podgroup.yaml")
    group, sent = job.to_manifest(Flavour.OPERATOR)
    assert group["kind"] == "PodGroup"
    for name in ("ps", "worker"):
        template = sent["spec"][name]["template"]
        assert template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == job.name
        assert template["spec"]["schedulerName"] == "volcano"
    assert {f.rule for f in job.validate() if f.severity == "note"} == {"pod-group-link"}
    built = BUILT["podgroup"]
    assert built.companions[0]["spec"] == {"minMember": 2, "queue": "q"}
    assert not [f for f in built.validate() if f.rule == "pod-group-link"]


@pytest.mark.rules
def test_classes_map_to_priority_queue_and_preemption():
    last = BUILT["opportunistic"].manifest
    assert last["spec"]["schedulingPolicy"]["priorityClass"] == "cloudedge-opportunistic"
    for name in ("ps", "worker"):
        template = last["spec"][name]["template"]
        assert template["spec"]["priorityClassName"] == "cloudedge-opportunistic"
        assert template["metadata"]["annotations"]["volcano.sh/preemptable"] == "true"
    tasks = BUILT["volcano"].with_class("guaranteed").manifest["spec"]
    assert tasks["priorityClassName"] == "high"  # what the job says itself goes before
    with pytest.raises(InputError, match="job class 'urgent' does not exist"):
        BUILT["single"].with_class("urgent")
    grouped = TrainingJob.ps("g", ps=role(), worker=role(), gang=Gang(how="podgroup")).with_class("guaranteed")
    assert grouped.companions[0]["spec"]["priorityClassName"] == "cloudedge-guaranteed"


@pytest.mark.rules
def test_a_class_has_the_queue_it_has_on_your_cluster():
    last = BUILT["single"].with_class("opportunistic", queue="spare").manifest["spec"]
    assert last["schedulingPolicy"] == {"priorityClass": "cloudedge-opportunistic", "queue": "spare"}
    grouped = TrainingJob.ps("g", ps=role(), worker=role(), gang=Gang(how="podgroup"))
    assert grouped.with_class("guaranteed", queue="ads").companions[0]["spec"]["queue"] == "ads"
    named = TrainingJob.ps("g", ps=role(), worker=role(), gang=Gang("own", how="podgroup"))
    kept = named.with_class("guaranteed", queue="ads")
    assert kept.manifest["spec"]["schedulingPolicy"]["queue"] == kept.companions[0]["spec"]["queue"] == "own"
    told = named.with_queue("other").with_class("guaranteed", queue="ads")
    assert told.manifest["spec"]["schedulingPolicy"]["queue"] == told.companions[0]["spec"]["queue"] == "other"
    assert BUILT["volcano"].with_queue("other").manifest["spec"]["queue"] == "other"
    assert "queue" not in BUILT["single"].with_class("guaranteed").manifest["spec"]["schedulingPolicy"]


@pytest.mark.rules
def test_no_job_goes_into_the_root_queue():
    for name in ("single", "volcano"):
        assert "queue" in {f.rule for f in BUILT[name].with_queue("root").validate() if f.severity == "error"}


@pytest.mark.rules
def test_the_ctr_job_keeps_its_contract():
    job = BUILT["ctr"]
    assert not [f for f in job.validate() if f.severity == "error"]
    tasks = {task["name"]: task for task in job.manifest["spec"]["tasks"]}
    env = {e["name"]: e for e in tasks["trainer"]["template"]["spec"]["containers"][0]["env"]}
    assert env["PADDLE_TRAINERS_NUM"]["value"] == "2"
    assert env["POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert tasks["trainer"]["policies"] == [{"event": "TaskCompleted", "action": "CompleteJob"}]
    assert job.output == "pvc://models/"
    with pytest.raises(InputError, match="/workspace/ctr/models"):
        TrainingJob.ctr("a", pserver=role(), trainer=role(), entry="x", output=PvcMount("m", "/elsewhere"))


@pytest.mark.rules
def test_where_the_model_goes_is_told_to_the_pods():
    env = BUILT["output"].to_manifest()[-1]["spec"]["worker"]["template"]["spec"]["containers"][0]["env"]
    assert env == [{"name": "CLOUDEDGE_OUTPUT", "value": "/out/ctr"}]
    with pytest.raises(InputError, match="no role mounts this part of the claim"):
        BUILT["single"].with_output("pvc://models/x").to_manifest()


@pytest.mark.parts
def test_describing_a_job_needs_neither_kubernetes_nor_paddle():
    code = (
        "import sys; from cloudedge import training; training.TrainingJob.single('a', training.Role('b')).validate();"
        "print(sorted({'kubernetes', 'websocket', 'paddle', 'docker'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.rules
def test_every_public_name_is_there():
    assert training.__all__ == sorted(training.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert all(getattr(training, name) is not None for name in training.__all__)
    with pytest.raises(AttributeError):
        _ = training.nothing


@pytest.mark.rules
@pytest.mark.parametrize(
    ("mount", "output", "folder"),
    [
        (PvcMount("models", "/out"), "pvc://models/ctr", "/out/ctr"),
        (PvcMount("models", "/out/"), "pvc://models/", "/out"),
        (PvcMount("models", "/out", sub_path="team"), "pvc://models/team/ctr", "/out/ctr"),
        (PvcMount("models", "/out", sub_path="team"), "pvc://models/team", "/out"),
        (PvcMount("models", "/out", sub_path="team"), "pvc://models/teams/ctr", None),
        (PvcMount("models", "/out", sub_path="team"), "pvc://models/ctr", None),
        (PvcMount("models", "/out", read_only=True), "pvc://models/ctr", None),
        (PvcMount("other", "/out"), "pvc://models/ctr", None),
    ],
)
def test_where_a_container_writes_its_model(mount, output, folder):
    job = TrainingJob.single("ctr", role(volumes=[mount])).with_output(output)
    assert ("output" in {f.rule for f in job.validate() if f.severity == "error"}) == (folder is None)
    if folder:
        env = job.to_manifest()[-1]["spec"]["worker"]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "CLOUDEDGE_OUTPUT", "value": folder} in env


@pytest.mark.rules
@pytest.mark.parametrize(
    ("mount", "output"),
    [
        (PvcMount("models", "/workspace/ctr/models"), "pvc://models/"),
        (PvcMount("models", "/workspace/ctr/models", sub_path="a"), "pvc://models/a"),
        (PvcMount("models", "/workspace"), "pvc://models/ctr/models"),
    ],
)
def test_the_ctr_job_says_where_in_the_claim_its_model_is(mount, output):
    job = TrainingJob.ctr("ctr", pserver=role(), trainer=role(), entry="python train.py", output=mount)
    assert job.output == output


@pytest.mark.rules
def test_what_a_volcano_volume_cannot_say_is_not_lost():
    with pytest.raises(InputError, match="whole and writable"):
        TrainingJob.volcano("v", [Task("t", role())], volumes=[PvcMount("c", "/c", sub_path="a")])
