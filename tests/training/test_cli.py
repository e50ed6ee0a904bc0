"""`cloudedge train`: what it prints, where, and how it exits."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.training.samples import BUILT, MANIFESTS


@pytest.fixture
def cloudedge(tmp_path):
    def run(*words, ok=True, **env):
        done = subprocess.run(
            [sys.executable, "-m", "cloudedge", "train", *map(str, words)],
            env=os.environ | {"CLOUDEDGE_HOME": str(tmp_path / "home")} | env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        return done

    return run


@pytest.mark.parts
def test_render_prints_what_would_be_sent_and_says_what_it_did(cloudedge):
    done = cloudedge(
        "render", MANIFESTS / "ps-gloo-clean-policy.yaml", "--flavour", "operator", "--class", "guaranteed"
    )
    (sent,) = yaml.safe_load_all(done.stdout)
    assert sent["spec"]["cleanPodPolicy"] == "OnCompletion"
    assert sent["spec"]["worker"]["template"]["spec"]["priorityClassName"] == "cloudedge-guaranteed"
    assert "warning: spec.cleanPolicy" in done.stderr.replace("\n", " ")
    assert "note: spec.intranet: set to Service" in done.stderr.replace("\n", " ")


@pytest.mark.parts
def test_a_place_for_the_model_is_not_ignored_on_this_machine(cloudedge):
    refused = cloudedge(
        "submit", MANIFESTS / "single.yaml", "--local", "--output", "pvc://m/ctr", "--dry-run", ok=False
    )
    assert "--output applies to clusters" in refused.stderr


@pytest.mark.parts
def test_the_queue_of_a_class_comes_from_the_configuration(cloudedge, tmp_path):
    config = tmp_path / "cloudedge.yaml"
    config.write_text("training: {queues: {opportunistic: spare}}\n")

    def queue(*words):
        done = cloudedge("render", MANIFESTS / "single.yaml", *words, CLOUDEDGE_CONFIG=str(config))
        (sent,) = yaml.safe_load_all(done.stdout)
        return sent["spec"].get("schedulingPolicy", {}).get("queue")

    assert queue() is None
    assert queue("--class", "opportunistic") == "spare"
    assert queue("--class", "guaranteed") is None
    assert queue("--class", "opportunistic", "--queue", "mine") == "mine"
    assert queue("--queue", "mine") == "mine"
    config.write_text("training: {queues: {urgent: spare}}\n")
    refused = cloudedge(
        "render", MANIFESTS / "single.yaml", "--class", "guaranteed", ok=False, CLOUDEDGE_CONFIG=str(config)
    )
    assert "urgent" in refused.stderr


@pytest.mark.parts
def test_render_refuses_with_every_reason(cloudedge, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(BUILT["ps"].to_yaml().replace("replicas: 2", "replicas: -1"))
    done = cloudedge("render", file, ok=False)
    assert done.stdout == ""
    assert done.stderr.count("would wait for ever") == 2
    lookalike = cloudedge("render", MANIFESTS / "refused" / "kubeflow.yaml", ok=False)
    assert "Kubeflow" in lookalike.stderr
    unknown = cloudedge("render", MANIFESTS / "single.yaml", "--flavour", "z", ok=False)
    assert "paddlecloud" in unknown.stderr


@pytest.mark.parts
def test_priority_classes_are_rendered_for_the_clusters_owner(cloudedge):
    done = cloudedge("render", "--priority-classes", "--json")
    assert {each["metadata"]["name"]: each["preemptionPolicy"] for each in json.loads(done.stdout)} == {
        "cloudedge-guaranteed": "PreemptLowerPriority",
        "cloudedge-opportunistic": "Never",
    }


@pytest.mark.parts
def test_a_local_job_is_shown_before_it_is_started(cloudedge):
    done = cloudedge("submit", MANIFESTS / "collective-gpu.yaml", "--local", "--dry-run", "--json")
    planned = json.loads(done.stdout)
    assert planned["argv"][-1] == "train_fleet.py"
    assert planned["workers"] == 2
    assert json.loads(cloudedge("list", "--local", "--json").stdout) == []
    missing = cloudedge("status", "nothing", "--local", ok=False)
    assert "job nothing does not exist on this machine" in missing.stderr.replace("\n", " ")


@pytest.mark.cluster
def test_a_job_on_a_cluster(cloudedge, cluster, kubeconfig, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(BUILT["single"].to_yaml())
    where = ("-n", cluster.namespace)
    planned = json.loads(cloudedge("submit", file, *where, "--dry-run", "--json", KUBECONFIG=kubeconfig).stdout)
    assert planned["action"] == "create"
    assert json.loads(cloudedge("list", *where, "--json", KUBECONFIG=kubeconfig).stdout) == []
    done = cloudedge("submit", file, *where, KUBECONFIG=kubeconfig)
    assert f"cloudedge train logs single -n {cluster.namespace} --follow" in done.stderr.replace("\n", " ")
    status = json.loads(cloudedge("status", "single", *where, "--json", KUBECONFIG=kubeconfig).stdout)
    assert (status["state"], status["mode"]) == ("waiting", "")
    late = cloudedge("wait", "single", *where, "--timeout", "1", ok=False, KUBECONFIG=kubeconfig)
    assert "is waiting after 1 s" in late.stderr
    cloudedge("delete", "single", *where, "--dry-run", KUBECONFIG=kubeconfig)
    cloudedge("delete", "single", *where, "--yes", KUBECONFIG=kubeconfig)
    assert json.loads(cloudedge("list", *where, "--json", KUBECONFIG=kubeconfig).stdout) == []
