"""Models from where jobs leave them: a web server, a bucket, a folder; and archives that try to get out."""

import io
import tarfile
import threading
from contextlib import closing, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from boto3.session import Session
from botocore.config import Config

from cloudedge.bundle import Lineage
from cloudedge.errors import Conflict, InputError, NotFound, Unavailable
from cloudedge.training import Outputs
from cloudedge.training.results._outputs import lineage_of, read_metrics
from tests.hub.objects.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, rclone
from tests.training.samples import BUILT, WITH_SAMPLES

LINEAGE = Lineage(job="ads/ctr@1")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def web(folder):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def archive(path, members):
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                file.addfile(info)
            else:
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parts
def test_archives_and_files_are_fetched_whole(tmp_path):
    archive(tmp_path / "ctr.tar.gz", {"./model/a": b"1", "metrics.json": b'{"auc": 0.5}'})
    (tmp_path / "one.bin").write_bytes(b"x" * 5000)
    with web(tmp_path) as url:
        got = Outputs(f"{url}/ctr.tar.gz", LINEAGE).fetch(tmp_path / "got")
        assert files(got) == {"model/a": b"1", "metrics.json": b'{"auc": 0.5}'}
        assert read_metrics(got) == {"auc": 0.5}
        assert files(Outputs(f"{url}/one.bin", LINEAGE).fetch(tmp_path / "one")) == {"one.bin": b"x" * 5000}
        with pytest.raises(Conflict):
            Outputs(f"{url}/one.bin", LINEAGE).fetch(tmp_path / "one")
        with pytest.raises(NotFound):
            Outputs(f"{url}/none.tar", LINEAGE).fetch(tmp_path / "none")
        (tmp_path / "bad.tar").write_bytes(b"not a tar")
        with pytest.raises(InputError, match="not a tar archive"):
            Outputs(f"{url}/bad.tar", LINEAGE).fetch(tmp_path / "none")
    with pytest.raises(Unavailable):
        Outputs(f"{url}/one.bin?token=secret", LINEAGE).fetch(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parts
@pytest.mark.parametrize("member", [{"../out": b"1"}, {"/etc/x": b"1"}, {"a/../../b": b"1"}, {"link": None}])
def test_archives_do_not_get_out(tmp_path, member):
    archive(tmp_path / "evil.tgz", {"fine": b"1", **member})
    with web(tmp_path) as url, pytest.raises(InputError):
        Outputs(f"{url}/evil.tgz", LINEAGE).fetch(tmp_path / "deep" / "got")
    assert list((tmp_path / "deep").iterdir()) == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parts
def test_a_bucket_is_fetched_with_the_credentials_of_its_hub(tmp_path, monkeypatch):
    (tmp_path / "s3").mkdir()
    with rclone(tmp_path / "s3") as endpoint:
        config = Config(s3={"addressing_style": "path"})
        session = Session(ACCESS_KEY, SECRET_KEY, region_name="us-east-1")
        with closing(session.client("s3", endpoint_url=endpoint, config=config)) as client:
            for name in ("ctr/1/model", "ctr/1/deep/rows", "ctr/2/model"):
                client.put_object(Bucket=BUCKET, Key=name, Body=name.encode())
        monkeypatch.setenv("TEST_SECRET", SECRET_KEY)
        hub = {
            "url": f"s3://{BUCKET}/bundles",
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key": ACCESS_KEY,
            "secret_key": "env:TEST_SECRET",
        }
        (tmp_path / "cloudedge.yaml").write_text(yaml.safe_dump({"hubs": {"office": hub}}))
        monkeypatch.setenv("CLOUDEDGE_CONFIG", str(tmp_path / "cloudedge.yaml"))
        got = Outputs(f"s3://{BUCKET}/ctr/1", LINEAGE).fetch(tmp_path / "got")
        assert files(got) == {"model": b"ctr/1/model", "deep/rows": b"ctr/1/deep/rows"}
        with pytest.raises(NotFound, match="holds no files"):
            Outputs(f"s3://{BUCKET}/ctr/9", LINEAGE).fetch(tmp_path / "none")


@pytest.mark.rules
def test_what_a_bundle_says_of_its_origin(tmp_path, hub):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"1")
    lineage = lineage_of(WITH_SAMPLES.manifest, "ads/cached@7", "demo:1")
    bundle = Outputs(str(tmp_path / "model"), lineage).pack("ctr", hub=hub)
    assert (bundle.lineage.job, bundle.lineage.dataset, bundle.lineage.code) == (
        "ads/cached@7",
        "sampleset/criteo",
        "demo:1",
    )
    told = {"metadata": {"annotations": {"cloudedge/dataset": "d", "cloudedge/code": "c"}}}
    assert lineage_of({**BUILT["ps"].manifest, **told}, "r", "i") == Lineage(job="r", dataset="d", code="c")
    (tmp_path / "model" / "metrics.json").write_text('{"auc": "high"}')
    with pytest.raises(InputError, match="names and numbers"):
        Outputs(str(tmp_path / "model"), lineage).pack("ctr", hub=hub)


@pytest.mark.rules
@pytest.mark.parametrize(
    ("url", "error"), [("", NotFound), ("ftp://x/y", InputError), ("pvc://a/b", InputError), ("/none", NotFound)]
)
def test_places_that_cannot_be_fetched_from(tmp_path, url, error):
    with pytest.raises(error):
        Outputs(url, LINEAGE).fetch(tmp_path / "got")
    assert not (tmp_path / "got").exists()
