"""`cloudedge dataset` on a cluster: what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from cloudedge.cache import SampleJob, SampleSet, SecretRef
from cloudedge.kube import Kind
from tests.kube.real_cluster import kubeconfig, lab


@pytest.fixture(scope="module")
def cluster():
    with lab("samplesets", "samplejobs") as found:
        yield found


def run(*words, ok=True, **env):
    done = subprocess.run(
        [sys.executable, "-m", "cloudedge", "dataset", *map(str, words)],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done


@pytest.fixture
def there(cluster):
    """Run a command on the cluster, in the namespace of the test."""

    def run_there(*words, **more):
        return run(*words, KUBECONFIG=kubeconfig(), **more)

    return run_there


@pytest.mark.parts
def test_a_misspelt_field_is_refused_before_anything_is_sent(tmp_path):
    manifest = SampleSet("criteo", SecretRef("fs"), source="s3://bucket/criteo/").manifest()
    manifest["spec"]["sorce"] = manifest["spec"].pop("source")
    (tmp_path / "set.yaml").write_text(yaml.safe_dump(manifest))
    for more in ((), ("--dry-run",)):
        refused = run("create", tmp_path / "set.yaml", *more, ok=False, KUBECONFIG=os.devnull).stderr
        assert "Did you mean source?" in refused.replace("\n", " ")


@pytest.mark.parts
def test_a_job_of_a_file_is_printed_and_refused_as_it_should_be(tmp_path):
    job = SampleJob.sync(
        "s", "criteo", secret=SecretRef("src"), update=True, bwlimit=5, delete_src=True, terminate=True
    )
    manifest = SampleJob(**(vars(job) | {"confirmed": True})).manifest()
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    assert "confirmed" in run("run", tmp_path / "job.yaml", "--dry-run", ok=False).stderr
    assert yaml.safe_load(run("run", tmp_path / "job.yaml", "--dry-run", "--yes").stdout) == manifest
    (tmp_path / "set.yaml").write_text(yaml.safe_dump(manifest | {"kind": "SampleSet"}))
    assert "is not 'SampleJob'" in run("run", tmp_path / "set.yaml", "--yes", ok=False).stderr


@pytest.mark.parts
def test_two_namespaces_are_one_too_many(tmp_path):
    manifest = SampleSet("criteo", SecretRef("fs"), namespace="ads").manifest()
    (tmp_path / "set.yaml").write_text(yaml.safe_dump(manifest))
    refused = run("create", tmp_path / "set.yaml", "--namespace", "other", ok=False, KUBECONFIG=os.devnull)
    assert "Leave one of them out" in refused.stderr


@pytest.mark.cluster
def test_a_data_set_from_its_file_to_its_end(cluster, there, tmp_path):
    name = f"s{cluster.namespace.removeprefix('test-')}z"
    manifest = SampleSet(name, SecretRef("fs"), namespace=cluster.namespace).manifest()
    (tmp_path / "set.yaml").write_text(yaml.safe_dump(manifest))
    where = ("--namespace", cluster.namespace)
    assert f"cloudedge dataset wait {name} --cluster" in there("create", tmp_path / "set.yaml").stderr.replace(
        "\n", " "
    )
    cluster.patch(Kind.SAMPLE_SET, name, {"status": {"phase": "Ready"}}, subresource="status")
    (row,) = there("wait", name, "--cluster", *where).stdout.splitlines()
    assert re.fullmatch(r"\d+ s|\d+\.\d min", row.split("\t")[-1]), "how old it is, not when it was made"
    there("rm", name, "--cluster", "--yes", *where)
    assert cluster.get(Kind.SAMPLE_SET, name) is None


@pytest.mark.parts
def test_waiting_here_asks_no_cluster(tmp_path):
    refused = run("wait", "absent", ok=False, KUBECONFIG=os.devnull, CLOUDEDGE_HOME=str(tmp_path))
    assert "data set 'absent' does not exist" in refused.stderr


@pytest.mark.cluster
def test_a_schedule_comes_and_goes(cluster, there):
    words = ("schedule", "nightly", "0 3 * * *", "--image", "i@sha256:0", "--namespace", cluster.namespace)
    printed = list(yaml.safe_load_all(there(*words, "--dry-run", "--", "warmup", "criteo", "train").stdout))
    assert [each["kind"] for each in printed] == ["ServiceAccount", "Role", "RoleBinding", "CronJob"]
    cron = cluster.kind_of(printed[-1])
    assert cluster.get(cron, "nightly") is None
    made = json.loads(there(*words, "--json", "--", "warmup", "criteo", "train").stdout)
    assert made == printed
    assert cluster.get(cron, "nightly")["spec"]["schedule"] == "0 3 * * *"
    assert (
        "Confirm it with `--yes`" in there("unschedule", "nightly", "--namespace", cluster.namespace, ok=False).stderr
    )
    there("unschedule", "nightly", "--namespace", cluster.namespace, "--yes")
    assert cluster.get(cron, "nightly") is None
