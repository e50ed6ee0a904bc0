"""Settings, secrets, what a server's answers mean, and which servers compare what a write expects."""

from __future__ import annotations

import http.client
import logging
import os
import subprocess
import sys
from functools import partial

import pytest
import s3_servers
from bos_double import authorization
from store_openers import bos_settings, s3_settings

from cloudedge.clock import ManualClock
from cloudedge.errors import ConfigError, Conflict, NotFound, Rejected, StorageError, Unavailable
from cloudedge.hub.objects._bos import BosSettings, BosStore
from cloudedge.hub.objects._s3 import S3Settings, S3Store
from cloudedge.hub.objects._store_calls import http_answer, split_url

# What the answers mean ----------------------------------------------------------------------------------

TABLE = [
    ("AccessDenied", 403, Rejected),
    ("InvalidAccessKeyId", 401, Rejected),
    ("NoSuchKey", 404, NotFound),
    ("NoSuchBucket", 404, NotFound),
    ("PreconditionFailed", 412, Conflict),
    ("ConditionalRequestConflict", 409, Conflict),
    ("QuotaExceeded", 403, StorageError),
    ("InsufficientStorage", 507, StorageError),
    ("BadDigest", 400, Unavailable),
    ("RequestTimeout", 400, Unavailable),
    ("SlowDown", 503, Unavailable),
    ("InternalError", 500, Unavailable),
    ("", 502, Unavailable),
    ("TooManyRequests", 429, Unavailable),
    ("InvalidArgument", 400, Rejected),
]


@pytest.mark.parametrize(("code", "status", "kind"), TABLE)
@pytest.mark.parametrize("table", ["_s3", "_bos"])
def test_each_answer_means_one_thing(table, code, status, kind):
    explanations = sys.modules[f"cloudedge.hub.objects.{table}"]._EXPLANATIONS
    names = http_answer(code, status, "").names
    assert next(explanations[name][0] for name in names if name in explanations) is kind


@pytest.mark.parametrize("change", [{"access_key": "nobody"}, {"secret_key": "wrong-secret"}])
@pytest.mark.parametrize("server", ["rclone", "seaweedfs"])
def test_s3_refuses_wrong_keys(request, server, change):
    settings = s3_settings(request.getfixturevalue(f"{server}_server"), **change)
    with pytest.raises(Rejected) as error:
        S3Store("s3://hub/x", settings).put("key", b"")
    assert "key" in error.value.hint
    assert settings.secret_key not in f"{error.value!r}{error.value}{error.value.facts}"


def test_bos_refuses_wrong_keys(bos):
    for keys in (("nobody", bos.keys[1]), (bos.keys[0], "wrong-secret")):
        store = BosStore("bos://hub", BosSettings(*keys, endpoint=bos.endpoint))
        with pytest.raises(Rejected):
            store.put("key", b"")
    assert set(bos.refused) == {"InvalidAccessKeyId", "SignatureDoesNotMatch"}


def test_a_bucket_that_is_not_there(rclone_server):
    with pytest.raises(NotFound, match="NoSuchBucket") as error:
        S3Store("s3://nowhere/x", s3_settings(rclone_server)).put("key", b"")
    assert "Create the bucket" in error.value.hint


def test_an_answer_that_is_not_bos_at_all(rclone_server):
    store = BosStore("bos://hub", BosSettings("ak", "sk", endpoint=rclone_server), clock=ManualClock())
    with pytest.raises(Unavailable) as error:
        list(store.list(""))
    assert "proxy" in error.value.hint


# Conditional writes -------------------------------------------------------------------------------------


def test_conditional_writes_are_used_where_they_work_and_only_there(open_rclone, open_seaweedfs, open_bos):
    for open_store, works in ((open_rclone, False), (open_seaweedfs, True), (open_bos, False)):
        store = open_store()
        assert store.compare_and_set is works
        assert list(store.list("")) == []


def test_whether_they_work_is_tried_once(open_seaweedfs, monkeypatch):
    store = open_seaweedfs()
    assert store.compare_and_set
    monkeypatch.setattr(store._s3, "put_if", None)
    assert store.compare_and_set


# Settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["s3:/bucket", "s3://", "bos://bucket", "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket?x=1"]
)
def test_urls_that_are_none(url):
    with pytest.raises(ConfigError, match=r"s3://bucket/prefix|step"):
        split_url(url, "s3")


def test_a_url_with_a_password_is_refused_and_not_repeated():
    with pytest.raises(ConfigError) as error:
        split_url("s3://user:hunter2@bucket/x", "s3")
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("url", ["s3://bucket/some/where", "s3://bucket/some/where/", "s3://bucket//some/where"])
def test_urls_with_spare_slashes(url):
    assert split_url(url, "s3") == ("bucket", "some/where")


def test_half_a_pair_of_keys_is_refused():
    with pytest.raises(ConfigError):
        S3Settings(access_key="only")


def test_no_keys_at_all_says_where_to_put_them(monkeypatch, tmp_path, rclone_server):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    store = S3Store("s3://hub/x", S3Settings(endpoint_url=rclone_server, path_style=True))
    with pytest.raises(ConfigError) as error:
        store.put("key", b"")
    assert "AWS_PROFILE" in error.value.hint


@pytest.mark.parametrize("endpoint", ["no url", "ftp//x"])
def test_an_endpoint_that_is_none(endpoint):
    with pytest.raises(ConfigError, match="endpoint"):
        S3Store("s3://hub/x", S3Settings(endpoint_url=endpoint))


def test_a_bos_bucket_has_a_bos_name():
    with pytest.raises(ConfigError):
        BosStore("bos://Not.A_Bucket", BosSettings("ak", "sk"))


def test_bos_speaks_https_to_its_region_unless_told_otherwise(monkeypatch):
    asked = []

    class Asked(http.client.HTTPSConnection):
        def __init__(self, host, port, **_):
            asked.append((host, port))
            raise OSError("no network in tests")

    monkeypatch.setattr(http.client, "HTTPSConnection", Asked)
    store = BosStore("bos://hub/x", BosSettings("ak", "sk", region="gz"), clock=ManualClock())
    with pytest.raises(Unavailable):
        store.put("key", b"")
    assert set(asked) == {("hub.gz.bcebos.com", 443)}


def test_a_session_token_is_sent_and_signed(bos):
    store = BosStore("bos://hub", bos_settings(bos, session_token="temporary"))
    store.put("key", b"x")
    assert bos.objects


def test_secrets_reach_neither_repr_nor_log(bos, open_rclone, caplog):
    caplog.set_level(logging.DEBUG)
    settings = bos_settings(bos, session_token="session-secret")
    store = BosStore("bos://hub", settings)
    store.put("key", b"x")
    s3 = open_rclone()
    s3.put("key", b"x")
    shown = f"{settings!r}{S3Settings(access_key='ak', secret_key='very-secret', session_token='token-secret')!r}"
    shown += f"{store!r}{vars(store)!r}{s3!r}{vars(s3)!r}" + caplog.text
    for secret in (
        bos.keys[1],
        s3_servers.SECRET_KEY,
        "very-secret",
        "session-secret",
        "token-secret",
        "sign_key",
    ):
        assert secret not in shown


def test_the_sdks_are_loaded_only_when_needed():
    code = (
        "import sys, cloudedge.hub.objects._s3, cloudedge.hub.objects._bos\n"
        "sys.exit(bool({'boto3', 'botocore', 'baidubce'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("module", "open_store"),
    [
        ("boto3", partial(S3Store, "s3://bucket", S3Settings())),
        ("baidubce", partial(BosStore, "bos://bucket", BosSettings("ak", "sk"))),
    ],
)
def test_a_missing_extra_says_how_to_get_it(monkeypatch, module, open_store):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as error:
        open_store()
    assert "pip install 'cloudedge[" in error.value.hint


# The double itself --------------------------------------------------------------------------------------


def test_the_doubles_signature_matches_the_published_vector():
    assert (
        authorization(
            ("AKEXAMPLE", "SKEXAMPLE"),
            "PUT",
            "/v1/configs/paddle-yolov3-model",
            [("pageNo", "1"), ("name", "中 a/b"), ("empty", "")],
            {"Host": "iotedge.bj.baidubce.com", "x-bce-date": "2024-01-02T03:04:05Z"},
            signed=("host", "x-bce-date"),
            at="2024-01-02T03:04:05Z",
        )
        == "bce-auth-v1/AKEXAMPLE/2024-01-02T03:04:05Z/1800/host;x-bce-date/"
        "1668f069e32c72d2938612df8b257c41cbfdf887feaabd3537acbd92e8b6eaba"
    )
