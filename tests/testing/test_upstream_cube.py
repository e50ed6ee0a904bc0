"""The double does what the description of upstream's programs says, mistakes included."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import threading
import time

import pytest
import requests

from cloudedge.cube import Client, ClientConfig, VersionSkew
from cloudedge.cube.server import FileServer
from cloudedge.testing.upstream_cube import UpstreamAgent, UpstreamServer
from tests.cube.upstream.tables import build_rows, table, value

pytestmark = pytest.mark.parts


@pytest.fixture
def server(tmp_path):
    with UpstreamServer(tmp_path / "cube") as server:
        yield server


@pytest.fixture
def agent():
    with UpstreamAgent() as agent:
        yield agent


@pytest.fixture
def files(tmp_path):
    (tmp_path / "out").mkdir()
    with FileServer(tmp_path / "out") as files:
        yield files


def control(server, **body):
    return requests.post(f"http://127.0.0.1:{server.port}/ControlService/cmd", json=body, timeout=10)


def command(agent, server, name, version, **more):
    work = {
        "command": name, "dict_name": "ctr", "deploy_path": str(server.deploy_path), "version": str(version),
        "depend": str(version), "id": "1", "key": "1", "mode": "base", "shard_seq": 0, "source": "",
        "port": str(server.port),
    }  # fmt: skip
    return requests.post(f"http://127.0.0.1:{agent.port}/agent/cmd", json=work | more, timeout=30).json()


def deliver(agent, server, files, report, version):
    tar = report.directory / "ctr_part0.tar"
    assert command(agent, server, "download", version, source=files.url(tar))["success"] == "0"
    assert command(agent, server, "reload", version)["success"] == "0"
    assert command(agent, server, "enable", version)["success"] == "0"


def install(server, report, version, shard=0):
    shutil.copytree(report.directory / f"ctr_part{shard}", server.deploy_path / "data" / str(version))


def test_the_agent_says_that_it_runs(agent):
    told = requests.get(f"http://127.0.0.1:{agent.port}/agent/status", timeout=5).json()
    assert told == {"success": "0", "message": "query ok", "data": {"status": "RUNNING", "version": "3.0.0.1"}}


def test_a_form_content_type_empties_the_body(agent, server):
    work = json.dumps({"command": "enable", "dict_name": "ctr", "version": "1", "depend": "1", "shard_seq": 0})
    url = f"http://127.0.0.1:{agent.port}/agent/cmd"
    told = requests.post(url, data=work, headers={"Content-Type": "application/x-www-form-urlencoded"}, timeout=5)
    assert told.json()["success"] == "255"
    assert agent.works == []


def test_a_delivery_ends_with_the_version_served_and_no_way_back(agent, server, files, tmp_path):
    deliver(agent, server, files, build_rows(tmp_path, 100, table(10)), 100)
    deliver(agent, server, files, build_rows(tmp_path, 200, table(10, 2.0)), 200)
    assert server.seek([3]) == ([value(6, -6)], "200")
    assert server.background is None
    data = server.deploy_path / "data"
    assert not (data / "VERSION").exists()
    assert not (data / "100").exists()
    assert not (server.deploy_path / "cube_data" / "0" / "100").exists()
    assert (server.deploy_path / "cube_data" / "VERSION").read_text() == "200\n"
    server.restart()
    assert server.seek([3]) == ([value(6, -6)], "")
    (data / "VERSION").write_text("200\n")
    server.restart()
    assert server.version == "200"


def test_a_version_whose_name_begins_like_an_old_one_is_deleted_with_it(agent, server, files, tmp_path):
    deliver(agent, server, files, build_rows(tmp_path, 10, table(10)), 10)
    tar = build_rows(tmp_path, 100, table(10)).directory / "ctr_part0.tar"
    assert command(agent, server, "download", 100, source=files.url(tar))["success"] == "0"
    assert command(agent, server, "reload", 100)["success"] == "255"


def test_a_corrupt_download_stays_for_ever(agent, server, files, tmp_path):
    tar = build_rows(tmp_path, 100, table(10)).directory / "ctr_part0.tar"
    agent.corrupt_downloads = 1
    for _ in range(2):
        assert command(agent, server, "download", 100, source=files.url(tar))["success"] == "255"
    place = server.deploy_path / "cube_data" / "0" / "100"
    assert (place / "ctr_part0.tar.5").exists()


def test_an_absent_file_fails_after_all_tries(agent, server, files):
    agent.time_scale = 0.0001
    begun = time.monotonic()
    assert command(agent, server, "download", 100, source=files.url("absent.tar"))["success"] == "255"
    assert time.monotonic() - begun >= 92 * agent.time_scale


def test_enable_is_a_success_although_the_server_refused(agent, server, files, tmp_path):
    deliver(agent, server, files, build_rows(tmp_path, 100, table(10)), 100)
    tar = build_rows(tmp_path, 200, table(10)).directory / "ctr_part0.tar"
    command(agent, server, "download", 200, source=files.url(tar))
    command(agent, server, "reload", 200)
    assert server.background == "200"
    server.refuse["enable"] = 3
    assert command(agent, server, "enable", 200) == {"success": "0", "message": "query ok", "data": ""}
    assert (server.version, server.background) == ("100", None)


def test_works_whose_names_run_together_collide(agent, tmp_path):
    with UpstreamServer(tmp_path / "slow", load_s=0.5) as server:
        slow = threading.Thread(
            target=command, args=(agent, server, "reload", 5), kwargs={"dict_name": "d1", "shard_seq": 2}
        )
        slow.start()
        time.sleep(0.2)
        refused = command(agent, server, "enable", 5, dict_name="d", shard_seq=12)
        slow.join()
        assert refused["success"] == "255"
        assert command(agent, server, "enable", 5, dict_name="d", shard_seq=12)["success"] == "0"


def packed(path, *members):
    with tarfile.open(path, "w") as out:
        for member in members:
            out.addfile(member)
    path.with_name(f"{path.name}.md5").write_text(f"{hashlib.md5(path.read_bytes()).hexdigest()}  x\n")
    return path


def directory(mtime):
    member = tarfile.TarInfo(".")
    member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, mtime
    return member


def test_an_empty_part_never_loads(agent, server, files, tmp_path):
    tar = packed(tmp_path / "out" / "empty.tar", directory(time.time()))
    assert command(agent, server, "download", 100, source=files.url(tar))["success"] == "0"
    assert command(agent, server, "reload", 100)["success"] == "255"


def test_a_tar_that_sets_its_directory_back_is_cleaned_up_at_once(agent, server, files, tmp_path):
    tar = packed(tmp_path / "out" / "old.tar", directory(0))
    assert command(agent, server, "download", 100, source=files.url(tar))["success"] == "0"
    assert not (server.deploy_path / "cube_data" / "0" / "100").exists()


def test_control_commands_and_two_slots(server, tmp_path):
    for version in (100, 200, 300):
        install(server, build_rows(tmp_path, version, table(10, version)), version)
    assert control(server, cmd="bg_switch").status_code == 500
    assert control(server, cmd="bg_load_base", version_path="100").status_code == 500
    assert control(server, cmd="bg_load_base", version_path="/100").status_code == 200
    assert control(server, cmd="enable", version="200").status_code == 500
    assert control(server, cmd="enable", version="100").status_code == 200
    assert control(server, cmd="bg_load_base", version_path="/200").status_code == 200
    assert control(server, cmd="bg_load_base", version_path="/300").status_code == 200
    assert (server.version, server.background) == ("100", "300")
    assert control(server, cmd="enable", version="300").status_code == 200
    assert (server.version, server.background) == ("300", "100")
    assert control(server, cmd="bg_load_base", version_path="/nothing").status_code == 500
    assert server.background is None
    assert control(server, cmd="reload_base", version_path="/nothing").status_code == 200
    assert server.version == "300"
    assert control(server, cmd="bg_unload").status_code == 200
    assert control(server, cmd="unheard_of").status_code == 500
    url = f"http://127.0.0.1:{server.port}/ControlService/cmd"
    assert requests.post(url, data="[]", timeout=5).status_code == 400


def test_status_is_not_to_be_trusted(server, tmp_path):
    install(server, build_rows(tmp_path, 100, table(10)), 100)
    control(server, cmd="bg_load_base", version_path="/100")
    control(server, cmd="enable", version="100")
    told = [control(server, cmd="status").content for _ in range(20)]
    assert len(set(told)) > 1
    assert all(b'"status" : 0' in each for each in told)


def test_a_second_command_is_refused_at_once(server, tmp_path):
    install(server, build_rows(tmp_path, 100, table(10)), 100)
    server.load_s = 0.5
    loading = threading.Thread(target=control, args=(server,), kwargs={"cmd": "bg_load_base", "version_path": "/100"})
    loading.start()
    time.sleep(0.2)
    assert b'"status" : 1' in control(server, cmd="status").content
    assert control(server, cmd="bg_unload").status_code == 500
    loading.join()
    assert server.background == "100"


def test_our_client_reads_and_finds_that_pins_are_not_understood(server, tmp_path):
    install(server, build_rows(tmp_path, 100, table(10)), 100)
    with Client(ClientConfig([[f"127.0.0.1:{server.port}"]])) as client:
        assert not client.seek([1]).found[0]  # no data: "not found"
        (server.deploy_path / "data" / "VERSION").write_text("100\n")
        server.restart()
        result = client.seek([1, 2, 99])
        assert result.values.tolist() == [[1, -1], [2, -2], [0, 0]]
        assert (result.found.tolist(), result.version) == ([True, True, False], "100")
        with pytest.raises(VersionSkew):
            client.seek([1], pin="99")


def test_seeks_over_http(server, tmp_path):
    install(server, build_rows(tmp_path, 100, table(3)), 100)
    (server.deploy_path / "data" / "VERSION").write_text("100\n")
    server.restart()
    url = f"http://127.0.0.1:{server.port}/DictService/seek"
    told = requests.post(url, json={"keys": [1, "7"], "version_required": True, "version": "5"}, timeout=5).json()
    assert told["version"] == "100"
    assert [each["status"] for each in told["values"]] == [0, 4294967295]
    assert requests.post(url, data="", timeout=5).json() == {}
    assert requests.post(url, data="{", timeout=5).status_code == 400


def delta_server(tmp_path, generation, standalone):
    """Lay 101 (key 1 changed, key 5 new) over 100 (keys 1 and 3); returns a reader."""
    server = UpstreamServer(tmp_path / "cube", generation=generation)
    base = build_rows(tmp_path, 100, {1: (1.0, 2.0), 3: (3.0, -1.5)})
    install(server, base, 100)
    (server.deploy_path / "data" / "VERSION").write_text("100\n")
    server.restart()
    rows = standalone or {1: (9.0, 9.0), 5: (7.0, 7.0)}
    more = {} if standalone else {"base": 100}
    delta = build_rows(tmp_path, 101, rows, **more)
    install(server, delta, "100_101")
    if not standalone:
        for path in (base.directory / "ctr_part0").glob("*.0"):
            shutil.copy(path, server.deploy_path / "data" / "100_101")
    assert control(server, cmd="bg_load_patch", version_path="/100_101").status_code == 200
    assert control(server, cmd="enable", version="100_101").status_code == 200
    return server


@pytest.mark.parametrize(
    ("generation", "standalone", "expected"),
    [
        pytest.param("A", None, [(9, 9), (3, -1.5), (7, 7)], id="A takes cumulative deltas"),
        pytest.param("B", None, [(1, 2), (3, -1.5), (3, -1.5)], id="B gives wrong rows for them"),
        pytest.param("A", {1: (9.0, 9.0)}, [(9, 9), None, None], id="A replaces everything by a build of its own"),
        pytest.param("B", {1: (9.0, 9.0)}, [(9, 9), (3, -1.5), None], id="B lays it over"),
        pytest.param(
            "A", {1: (9.0, 9.0), 5: (7.0, 7.0)}, [(1, 2), (3, -1.5), None], id="A ignores one of equal length"
        ),
        pytest.param("B", {1: (9.0, 9.0), 5: (7.0, 7.0)}, [(1, 2), (3, -1.5), None], id="B ignores it too"),
    ],
)
def test_patches(tmp_path, generation, standalone, expected):
    with delta_server(tmp_path, generation, standalone) as server:
        values, version = server.seek([1, 3, 5])
        assert values == [None if row is None else value(*row) for row in expected]
        assert version == "100_101"


def test_a_server_without_data_dies_of_a_patch(server, tmp_path):
    install(server, build_rows(tmp_path, 100, table(10)), 100)
    control(server, cmd="bg_load_patch", version_path="/100")
    time.sleep(0.3)
    with pytest.raises(requests.ConnectionError):
        control(server, cmd="status")
