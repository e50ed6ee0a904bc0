"""Files for nodes: one URL for each digest, in a folder, a BOS bucket and an S3 bucket, sent once and whole."""

from __future__ import annotations

import hashlib
import io
import urllib.request

import pytest

from cloudedge.config import HubConfig, ObjectsConfig
from cloudedge.edge_bie.client import StoredObjects, open_objects, put_file
from cloudedge.edge_bie.lab import Lab
from cloudedge.errors import ConfigError, IntegrityError
from cloudedge.hub.objects._directory import DirectoryStore
from cloudedge.hub.objects._multipart import PART
from tests.hub.objects import s3_servers
from tests.hub.objects.bos_double import BosDouble
from tests.hub.objects.openers import bos_opener, s3_opener

SMALL = b"a model" * 100


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def reader(data):
    def open_at(start):
        source = io.BytesIO(data)
        source.seek(start)
        return source

    return open_at


@pytest.fixture(scope="module")
def rclone_endpoint(tmp_path_factory):
    with s3_servers.rclone(tmp_path_factory.mktemp("rclone")) as endpoint:
        yield endpoint


@pytest.fixture(params=["directory", "bos", "rclone"])
def objects(request, tmp_path):
    if request.param == "directory":
        yield StoredObjects(DirectoryStore(tmp_path / "objects"), "http://files.example/")
    elif request.param == "bos":
        with BosDouble(tmp_path).running() as double:
            yield StoredObjects(bos_opener(double)(), "http://files.example/")
    else:
        endpoint = request.getfixturevalue("rclone_endpoint")
        yield StoredObjects(s3_opener(endpoint)(), "http://files.example/")


@pytest.mark.parts
@pytest.mark.parametrize("size", [0, 1000, PART + 1000], ids=["empty", "small", "in parts"])
def test_a_file_is_sent_once_and_has_both_digests(objects, size):
    data = (SMALL * (size // len(SMALL) + 1))[:size]
    stored = objects.put(digest(data), size, reader(data))
    assert stored.url == f"http://files.example/sha256/{hashlib.sha256(data).hexdigest()}"
    assert (stored.md5, stored.sha256) == (hashlib.md5(data).hexdigest(), hashlib.sha256(data).hexdigest())
    assert stored.sent_bytes == size
    again = objects.put(digest(data), size, reader(data))
    assert (again.sent_bytes, again.url, again.md5) == (0, stored.url, stored.md5)
    assert b"".join(objects._store.get(f"sha256/{stored.sha256}")) == data


@pytest.mark.parts
def test_another_source_is_refused_and_nothing_kept(objects):
    with pytest.raises(IntegrityError):
        objects.put(digest(SMALL), len(SMALL), reader(SMALL[:-1] + b"!"))
    assert objects._store.head(f"sha256/{digest(SMALL)[7:]}") is None


@pytest.mark.parts
def test_an_upload_that_broke_off_goes_on(tmp_path):
    """The source fails in the last of three parts; the next attempt sends that one only."""
    data = SMALL * (2 * PART // len(SMALL) + 2000)
    with BosDouble(tmp_path).running() as double:
        objects = StoredObjects(bos_opener(double)(), "http://files.example")
        sources = []

        def open_at(start):
            sources.append(start)
            # The first reading is for the digests; the second one is sent, and breaks.
            cut = len(data) - 10 if len(sources) == 2 else len(data)
            source = Breaking(data, cut)
            source.seek(start)
            return source

        with pytest.raises(OSError, match="the disk went away"):
            objects.put(digest(data), len(data), open_at)
        before = double.received["part"]
        assert before == 2 * PART
        stored = objects.put(digest(data), len(data), reader(data))
        assert stored.md5 == hashlib.md5(data).hexdigest()
        assert b"".join(objects._store.get(f"sha256/{stored.sha256}")) == data
        assert double.received["part"] - before == len(data) - 2 * PART


class Breaking(io.BytesIO):
    """A file on a disk that goes away at an offset."""

    def __init__(self, data, cut):
        super().__init__(data)
        self._cut = cut

    def read(self, size=-1):
        if self.tell() + size > self._cut and self._cut < len(self.getbuffer()):
            raise OSError("the disk went away")
        return super().read(size)


@pytest.mark.parts
def test_nodes_of_the_lab_can_download_it(tmp_path):
    (tmp_path / "model.zip").write_bytes(SMALL)
    with Lab(tmp_path / "lab") as lab:
        config = ObjectsConfig(store=HubConfig(url=str(lab.objects)), public_url=lab.objects_url)
        stored = put_file(open_objects(config), tmp_path / "model.zip")
        with urllib.request.urlopen(stored.url, timeout=5) as answer:
            assert answer.read() == SMALL


@pytest.mark.rules
def test_a_file_that_is_another_than_expected(tmp_path):
    (tmp_path / "model.zip").write_bytes(SMALL)
    objects = StoredObjects(DirectoryStore(tmp_path / "objects"), "http://files.example/")
    with pytest.raises(IntegrityError):
        put_file(objects, tmp_path / "model.zip", expected=digest(b"other"))


PUBLIC = {
    "bos": ({"url": "bos://models/x", "access_key": "a"}, "https://models.bj.bcebos.com/x"),
    "bos elsewhere": (
        {"url": "bos://models", "access_key": "a", "endpoint": "http://127.0.0.1:1"},
        "http://127.0.0.1:1/models",
    ),
    "s3": ({"url": "s3://models/x/y", "region": "eu-1"}, "https://models.s3.eu-1.amazonaws.com/x/y"),
    "s3 elsewhere": ({"url": "s3://models", "endpoint": "https://minio.example"}, "https://minio.example/models"),
}


@pytest.mark.rules
@pytest.mark.parametrize(("store", "url"), PUBLIC.values(), ids=PUBLIC)
def test_buckets_have_urls_of_their_own(store, url, monkeypatch):
    monkeypatch.setenv("SK", "s")
    config = ObjectsConfig(store=HubConfig(**store, secret_key="env:SK"))
    if "access_key" not in store:
        config = ObjectsConfig(store=HubConfig(**store, access_key="a", secret_key="env:SK"))
    sha256 = "0" * 64
    assert open_objects(config).url_of(f"sha256:{sha256}") == f"{url}/sha256/{sha256}"


@pytest.mark.rules
def test_a_folder_needs_a_public_url(tmp_path):
    with pytest.raises(ConfigError, match="need a public_url"):
        open_objects(ObjectsConfig(store=HubConfig(url=str(tmp_path))))
