"""The model hub, in a folder and in a real S3 server that lets everybody read and nobody list."""

from __future__ import annotations

import io
import json
import tarfile
import threading

import pytest
import requests

from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound
from cloudedge.pipeline import ModelHub
from cloudedge.pipeline.__main__ import main
from cloudedge.pipeline._modelhub import archive_url, read_record, unpack
from tests.hub.objects.s3_servers import ACCESS_KEY, SECRET_KEY, seaweedfs


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with seaweedfs(tmp_path_factory.mktemp("weed")) as endpoint:
        yield endpoint


@pytest.fixture(params=["folder", "s3"])
def endpoint(request, tmp_path, monkeypatch):
    if request.param == "folder":
        return str(tmp_path / "hub")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return request.getfixturevalue("s3")


@pytest.fixture
def files(tmp_path):
    one, two = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
    one.write_bytes(b"one" * 1000)
    two.write_bytes(b"two" * 1000)  # as large: a store that compares sizes would not notice
    return one, two


@pytest.mark.parts
def test_a_version_never_changes(endpoint, files, tmp_path):
    hub = ModelHub.at(endpoint, prepare=True)
    first = hub.push(files[0], "ctr", "1")
    assert hub.push(files[0], "ctr", "1") == first == hub.record("ctr", "1")
    with pytest.raises(Conflict, match="other bytes"):
        hub.push(files[1], "ctr", "1")
    hub.push(files[1], "ctr", "2")
    assert hub.versions("ctr") == ["1", "2"]
    assert hub.fetch("ctr", "1", tmp_path / "back.tar.gz") == first
    assert (tmp_path / "back.tar.gz").read_bytes() == files[0].read_bytes()


@pytest.mark.parts
def test_latest_follows(endpoint, files, tmp_path):
    hub = ModelHub.at(endpoint, prepare=True)
    hub.push(files[0], "follows", "latest")
    second = hub.push(files[1], "follows", "latest")
    assert hub.record("follows", "latest") == second
    hub.fetch("follows", "latest", tmp_path / "back.tar.gz")
    assert (tmp_path / "back.tar.gz").read_bytes() == files[1].read_bytes()


@pytest.mark.parts
def test_an_interrupted_push_is_finished_by_the_next(endpoint, files, tmp_path, monkeypatch):
    hub = ModelHub.at(endpoint, prepare=True)
    store = hub._store
    with monkeypatch.context() as broken:
        broken.setattr(type(store), "upload", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            hub.push(files[0], "half", "1")
    with pytest.raises(Conflict):
        hub.push(files[1], "half", "1")  # who came first has the version
    hub.push(files[0], "half", "1")
    hub.fetch("half", "1", tmp_path / "back.tar.gz")


@pytest.mark.parts
def test_of_two_who_push_at_once_one_is_refused(endpoint, files):
    outcomes = []

    def push(file):
        try:
            outcomes.append(ModelHub.at(endpoint).push(file, "race", "1"))
        except Conflict:
            outcomes.append(None)

    ModelHub.at(endpoint, prepare=True)
    threads = [threading.Thread(target=push, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [each for each in outcomes if each]
    assert ModelHub.at(endpoint).record("race", "1") == winner


@pytest.mark.rules
def test_what_was_changed_behind_its_back_is_noticed(tmp_path, files):
    hub = ModelHub.at(str(tmp_path / "hub"))
    hub.push(files[0], "ctr", "1")
    (tmp_path / "hub/model-center/ctr/1/ctr.tar.gz").write_bytes(files[1].read_bytes())
    with pytest.raises(IntegrityError):
        hub.fetch("ctr", "1", tmp_path / "back.tar.gz")
    assert not (tmp_path / "back.tar.gz").exists()


@pytest.mark.parts
def test_the_launcher_pushes_and_servers_read_without_keys(s3, files, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    words = ["upload", "--file", str(files[0]), "--endpoint", s3, "--model-name", "open", "--model-version", "7"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    record = read_record(s3, "open", "7")
    assert (record.sha256, record.size) == (told["sha256"], told["size"])
    assert requests.get(archive_url(s3, "open", "7"), timeout=10).content == files[0].read_bytes()
    assert requests.get(f"{s3}/model-center/?list-type=2", timeout=10).status_code == 403
    with pytest.raises(NotFound):
        read_record(s3, "open", "8")


@pytest.mark.rules
def test_what_is_not_packed_is_said(tmp_path, capsys):
    words = ["upload", "--file", str(tmp_path / "no.tar.gz"), "--endpoint", str(tmp_path), "--model-name", "m"]
    assert main([*words, "--model-version", "1"]) == 1
    assert "Need Convert" in capsys.readouterr().err
    assert main(words) == 1
    assert "--model-version is missing" in capsys.readouterr().err


@pytest.mark.rules
@pytest.mark.parametrize("name", ["../out", "/etc/out"])
def test_an_archive_leads_nowhere_else(tmp_path, name):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(InputError):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "to")
    assert not (tmp_path / "out").exists()


@pytest.mark.rules
def test_a_link_in_an_archive_is_refused(tmp_path):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("m/link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(InputError, match="not a plain file"):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "to")
