"""SampleSets and SampleJobs: what is refused, and that what is made says nothing a schema would drop."""

from __future__ import annotations

import posixpath
import shlex

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cloudedge.cache import (
    Level,
    SampleJob,
    SampleSet,
    SecretRef,
    file_system_secret,
    parse_size,
    read_job,
    read_sample_set,
    scheduled,
    source_secret,
)
from cloudedge.errors import InputError
from tests import ROOT

pytestmark = pytest.mark.rules

CRDS = ROOT / "tests" / "data" / "crds"
SECRET = SecretRef("criteo-fs")


def criteo(**more) -> SampleSet:
    given_ = {"source": "bos://bucket.bj.example.com/criteo/", "levels": (Level("/data/jfs/criteo", 102400),)}
    return SampleSet("criteo", SECRET, partitions=2, **(given_ | more))


def rules(thing) -> set[str]:
    return {finding.rule for finding in thing.findings() if finding.severity == "error"}


def schema(plural: str) -> dict:
    crd = yaml.safe_load((CRDS / f"{plural}.batch.paddlepaddle.org.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return _closed(spec)


def _closed(node):
    """Refuse unknown fields, which the API server would drop without a word."""
    if isinstance(node, dict):
        closed = {key: _closed(value) for key, value in node.items()}
        if "properties" in closed and "additionalProperties" not in closed:
            closed["additionalProperties"] = False
        return closed
    return [_closed(value) for value in node] if isinstance(node, list) else node


class TestSampleSet:
    def test_what_is_made_fits_the_schema(self):
        full = criteo(
            source_secret=SecretRef("criteo-src", "other"),
            mount_options={"attr-cache": 60, "free-space-ratio": "0.1", "writeback": True},
            node_affinity={"preferredDuringSchedulingIgnoredDuringExecution": []},
            tolerations=({"key": "gpu", "operator": "Exists"},),
            no_sync=True,
        )
        jsonschema.validate(full.manifest()["spec"], schema("samplesets"))
        assert not [f for f in full.findings() if f.severity == "error"]

    def test_it_reads_what_it_writes(self):
        one = criteo(mount_options={"buffer-size": 600}, source_secret=SecretRef("a"))
        assert SampleSet.from_manifest(one.manifest()).manifest() == one.manifest()

    def test_it_reads_what_kubectl_prints(self):
        one = criteo(annotations={"team": "ads"}).manifest()
        own = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
        printed = one | {"status": {"phase": "Ready"}, "metadata": one["metadata"] | {"uid": "u", "managedFields": []}}
        printed["metadata"]["annotations"] = one["metadata"]["annotations"] | own
        assert SampleSet.from_manifest(printed).manifest() == one

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (
                {"spec": {"sorce": {"uri": "s3://bucket/x"}}},
                r"spec\.sorce: This field does not exist\. Did you mean source\?",
            ),
            ({"spec": {"schedule": "* * * * *"}}, r"spec\.schedule"),
            ({"spec": {"source": {"url": "s3://bucket/x"}}}, r"spec\.source\.url"),
            ({"spec": {"source": "s3://bucket/x"}}, r"spec\.source: 's3://bucket/x' is not a mapping"),
            ({"spec": {"cache": {"levels": [{"size": 3}]}}}, r"spec\.cache\.levels\[0\]\.size"),
            ({"spec": {"cache": {"levels": {}}}}, r"spec\.cache\.levels: \{\} is not a list"),
            ({"spec": {"partitions": "2"}}, r"spec\.partitions: '2' is not of type int"),
            ({"spec": {"csi": {"driver": "alluxio"}}}, "alluxio"),
            ({"metadata": {"lables": {}}}, r"metadata\.lables"),
            ({"specs": {}}, "specs"),
            ({"kind": "SampleJob"}, "'SampleJob' is not 'SampleSet'"),
            ({"apiVersion": "batch.paddlepaddle.org/v1"}, "apiVersion"),
        ],
    )
    def test_a_field_nobody_knows_is_refused_with_its_name(self, change, said):
        manifest = criteo().manifest()
        for part, more in change.items():
            manifest[part] = manifest.get(part, {}) | more if isinstance(more, dict) else more
        with pytest.raises(InputError, match=said):
            SampleSet.from_manifest(manifest)

    def test_no_source_means_no_sync(self):
        assert criteo(source="").manifest()["spec"]["noSync"] is True

    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            ({"source": "ftp://bucket/x"}, "source"),
            ({"source": "bos://bucket"}, None),
            ({"source": "bos://"}, "source"),
            ({"source": "bos://a://b/c/d"}, "source"),
            ({"source": "s3://AK:SK@bucket/data"}, "source"),
            ({"levels": (Level("/Data", 1),)}, "cache-path"),
            ({"levels": (Level("/data/", 1),)}, "cache-path"),
            ({"levels": (Level("/a:/b-c", 1),)}, None),
            ({"levels": (Level("/" + "a" * 64, 1),)}, "cache-path"),
            ({"levels": (Level("/a", -1),)}, "cache-size"),
            ({"levels": (Level("/a", 1, "NVME"),)}, "cache-medium"),
            ({"source": "", "source_secret": SecretRef("a")}, "source"),
            ({"levels": (), "mount_options": {"cache-dir": "/data/jfs"}}, "cache-dir"),
            ({"levels": (), "mount_options": {"cache-dir": "/data/jfs/"}}, None),
            ({"mount_options": {"free-space-ratio": "1"}}, "mount-option"),
            ({"mount_options": {"free-space-ratio": 0.1}}, "mount-option"),
            ({"mount_options": {"read-only": True}}, "mount-option"),
        ],
    )
    def test_rules(self, change, rule):
        assert rules(criteo(**change)) == ({rule} if rule else set())

    @pytest.mark.parametrize("name", ["", "Criteo", "1a", "a.b", "a-", "a" * 45])
    def test_names_that_cannot_be(self, name):
        assert "name" in rules(SampleSet(name, SECRET))

    def test_names_that_only_one_flavour_takes_are_warned_about(self):
        found = SampleSet("a" * 16, SECRET, levels=(Level("/a", 1),)).findings()
        assert [(f.severity, f.rule) for f in found] == [("warning", "name")]

    def test_memory_without_a_limit_is_warned_about(self):
        assert "cache" in {f.rule for f in SampleSet("a", SECRET).findings() if f.severity == "warning"}

    def test_everything_wrong_is_said_at_once(self):
        with pytest.raises(InputError) as refused:
            SampleSet("A", SecretRef(""), partitions=0).manifest()
        assert {"name", "secret", "partitions"} == {each["rule"] for each in refused.value.findings}


class TestSampleJob:
    @pytest.mark.parametrize(
        "job",
        [
            SampleJob.sync(
                "s", "criteo", secret=SECRET, source="s3://b/criteo", destination="train", threads=20, bwlimit=5
            ),
            SampleJob.warmup("w", "criteo", paths=["train"], strategy="random", threads=64, terminate=True),
            SampleJob.clear("c", "criteo", paths=["/data/jfs/criteo/part"]),
            SampleJob.remove("r", "criteo", paths=["train/day-0", "old"], confirmed=True),
        ],
        ids=lambda job: job.operation,
    )
    def test_what_is_made_fits_the_schema(self, job):
        jsonschema.validate(job.manifest()["spec"], schema("samplejobs"))

        assert SampleJob.from_manifest(job.manifest(), confirmed=job.confirmed) == job

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"schedule": "* * * * *"}, "cloudedge dataset schedule"),
            ({"terminat": True}, r"spec\.terminat: This field does not exist\. Did you mean terminate\?"),
            ({"sampleSetRef": {"name": "criteo", "namespace": "x"}}, r"spec\.sampleSetRef\.namespace"),
            ({"type": "copy"}, "'copy'"),
            ({"rmrOptions": {"paths": ["a"]}}, "rmrOptions"),
        ],
    )
    def test_a_field_nobody_knows_is_refused_with_its_name(self, change, said):
        manifest = SampleJob.warmup("w", "criteo").manifest()
        manifest["spec"] |= change
        with pytest.raises(InputError, match=said):
            SampleJob.from_manifest(manifest)

    @pytest.mark.parametrize(
        "options", [{"thread": 5}, {"threads": "5"}, {"paths": [1]}, {"paths": "a"}, {"strategyName": "alphabetical"}]
    )
    def test_options_that_a_warm_up_has_not(self, options):
        assert rules(SampleJob("w", "warmup", "criteo", options=options)) == {"option"}

    def test_a_sync_needs_a_secret_even_for_public_data(self):
        assert "secret" in rules(SampleJob("s", "sync", "criteo"))

    def test_deleting_data_needs_a_yes(self):
        assert rules(SampleJob.remove("r", "criteo", paths=["a"], confirmed=False)) == {"confirm"}
        assert rules(SampleJob.sync("s", "c", secret=SECRET, source="s3://b/abcd", delete_src=True)) == {"confirm"}
        assert not rules(SampleJob.sync("s", "c", secret=SECRET, source="s3://b/abcd", delete_src=True, confirmed=True))

    def test_a_name_that_is_too_long_can_never_be_reconciled(self):
        assert rules(SampleJob.warmup("a" * 54, "criteo")) == {"name"}
        assert not rules(SampleJob.warmup("a" * 53, "criteo"))

    def test_there_is_no_schedule(self):
        assert rules(SampleJob("s", "sync", "c", secret=SECRET, options={"schedule": "* * * * *"})) == {"option"}

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "/",
            ".",
            "..",
            "//",
            "./",
            "a/../b",
            "../a",
            "a/..",
            "/a",
            "a b",
            "a;b",
            "$HOME",
            "a*",
            "~",
            "-rf",
            "a\nb",
            "a\x00",
        ],
    )
    def test_paths_that_rmr_must_never_see(self, path):
        assert "path" in rules(SampleJob.remove("r", "criteo", paths=[path], confirmed=True))

    @given(st.text(max_size=20))
    def test_a_path_that_passes_stays_below_the_root_whatever_a_shell_makes_of_it(self, path):
        if rules(SampleJob.remove("r", "criteo", paths=[path], confirmed=True)):
            return
        assert shlex.split(path) == [path]
        below = posixpath.normpath(posixpath.join("/volume/set", path))
        assert below.startswith("/volume/set/")

    def test_unblocking_takes_away_one_folder_and_nothing_else(self):
        spec = SampleJob.unblock("u", "criteo").manifest()["spec"]
        assert (spec["type"], spec["rmrOptions"]) == ("rmr", {"paths": [".warmup"]})


class TestSecrets:
    def test_exact_bytes(self):
        secret = file_system_secret("fs", volume="vol", storage="bos", bucket="https://b", meta="redis://h:6379/0")
        assert secret["stringData"] == {
            "name": "vol",
            "storage": "bos",
            "bucket": "https://b",
            "metaurl": "redis://h:6379/0",
        }

    @pytest.mark.parametrize("value", ["redis://h:6379/0\n", " redis://h"])
    def test_white_space_that_came_along_is_refused_and_not_repeated(self, value):
        with pytest.raises(InputError, match="white space") as refused:
            file_system_secret("fs", volume="vol", storage="bos", bucket="b", meta=value)
        assert value not in str(refused.value)

    def test_a_missing_value_is_named(self):
        with pytest.raises(InputError, match="bucket, metaurl"):
            file_system_secret("fs", volume="vol", storage="bos", bucket="", meta="")

    @pytest.mark.parametrize("volume", ["v", "Criteo", "criteo-", "a b c"])
    def test_a_volume_that_juicefs_would_not_make_is_refused(self, volume):
        with pytest.raises(InputError, match="JuiceFS volume's name"):
            file_system_secret("fs", volume=volume, storage="bos", bucket="https://b", meta="redis://h:6379/0")

    def test_keys_that_would_break_the_address_they_are_pasted_into(self):
        with pytest.raises(InputError, match="secret-key"):
            source_secret("src", access_key="AK", secret_key="a/b")
        assert source_secret("none")["stringData"] == {"access-key": "", "secret-key": ""}


class TestStatus:
    @pytest.mark.parametrize(
        ("text", "count"), [("200 B", 200), ("58 MiB", 58 << 20), ("4.2 GiB", round(4.2 * (1 << 30))), ("0 B", 0)]
    )
    def test_sizes(self, text, count):
        assert parse_size(text) == count

    @pytest.mark.parametrize("text", ["", "4", "4 GB", "x MiB", "-1 B"])
    def test_what_is_no_size(self, text):
        with pytest.raises(InputError):
            parse_size(text)

    def test_a_ready_set(self):
        obj = {
            "metadata": {"name": "criteo", "creationTimestamp": "2026-01-02T03:04:05Z"},
            "status": {
                "phase": "Ready",
                "runtimeStatus": {"runtimeReady": "2/2"},
                "cacheStatus": {
                    "totalSize": "10 GiB",
                    "cachedSize": "2.5 GiB",
                    "totalFiles": "12,345",
                    "diskAvail": "1.0 TiB",
                },
            },
        }
        status = read_sample_set(obj)
        assert status.is_ready
        assert (status.total_files, status.cached_ratio, status.runtime) == (12345, 0.25, "2/2")

    def test_partial_ready_is_no_error(self):
        status = read_sample_set({"metadata": {"name": "a"}, "status": {"phase": "PartialReady"}}, ["Warning x"])
        assert not status.has_failed
        assert "on the way to Ready" in status.why
        assert "Warning" not in status.why
        told = read_sample_set(
            {"metadata": {"name": "a"}, "status": {"phase": "PartialReady"}}, (), ["Warning of a pod"]
        )
        assert told.why.endswith("unless it lasts: Warning of a pod")
        ready = {"metadata": {"name": "a"}, "status": {"phase": "Ready"}}
        assert read_sample_set(ready, ["Warning x"], ["Warning y"]).why == "usable"

    def test_a_phase_that_never_comes_is_explained_by_events(self):
        status = read_sample_set({"metadata": {"name": "a"}}, ["Warning ErrorSecretNotExist: secret x"])
        assert "ErrorSecretNotExist" in status.why
        assert read_job({"metadata": {"name": "j"}}, ["Warning ErrorSampleSetNotExist"]).why


def test_a_schedule_is_a_cron_job_with_an_account_that_may_do_no_more():
    objects = scheduled("nightly", "0 3 * * *", ["warmup", "criteo", "--cluster"], image="r/c@sha256:0", namespace="ns")
    assert [each["kind"] for each in objects] == ["ServiceAccount", "Role", "RoleBinding", "CronJob"]
    verbs = {(r, v) for rule in objects[1]["rules"] for r in rule["resources"] for v in rule["verbs"]}
    assert ("samplejobs", "create") in verbs
    assert not [pair for pair in verbs if pair[0] != "samplejobs" and pair[1] in ("create", "patch", "delete")]
    pod = objects[3]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["cloudedge", "dataset", "warmup", "criteo", "--cluster"]
    here = scheduled("nightly", "0 3 * * *", ["warmup", "criteo"], image="r/c@sha256:0", namespace="ns")
    assert here == objects, "it works on the cluster it runs in"
    for name, cron, command, image in (
        ("n", "daily", ["clear", "c"], "i"),
        ("n", "0 3 * * *", ["create", "c"], "i"),
        ("n", "0 3 * * *", [], "i"),
        ("n", "0 3 * * *", ["clear", "c"], ""),
        ("N", "0 3 * * *", ["clear", "c"], "i"),
        ("n" * 53, "0 3 * * *", ["clear", "c"], "i"),
    ):
        with pytest.raises(InputError):
            scheduled(name, cron, command, image=image, namespace="ns")
