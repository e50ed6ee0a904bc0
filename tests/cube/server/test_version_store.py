"""What a server keeps on disk, in this process: the API's borders, room, and restarts at awkward moments."""

from __future__ import annotations

import json
import shutil
import time
from collections import namedtuple
from pathlib import Path

import pytest
import requests

from cloudedge.cube import AdminServer, PartStore, Server, ServerConfig
from cloudedge.cube.formats import Source
from cloudedge.cube.server import FileServer
from cloudedge.cube.server import _staging as staging_module
from cloudedge.cube.server import _version_store as holdings_module
from cloudedge.cube.server._version_store import VersionStore
from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound, StorageError, Unavailable
from cloudedge.io._memory import free_memory_bytes
from tests.cube.delivery.tables import changed

pytestmark = pytest.mark.parts

TOKEN = "a-secret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def files(workshop):
    with FileServer(workshop.artifacts) as files:
        yield files


@pytest.fixture
def place(tmp_path, files):
    return Place(tmp_path / "state", files)


class Place:
    """Holdings that can be opened again, as after a kill."""

    def __init__(self, folder: Path, files: FileServer) -> None:
        self.folder, self._files = folder, files
        self.open()

    def open(self) -> list[str]:
        self.server = Server(ServerConfig(port=0, threads=1))
        self.held = VersionStore(self.server, self.folder)
        return self.held.restore()

    def stage(self, version, artifact) -> int:
        return self.held.staging.stage(
            version.version, artifact, [Source(self._files.url(artifact.directory))], deadline_s=30
        )

    def take(self, version, artifact) -> None:
        self.stage(version, artifact)
        self.held.load(version.version)
        self.held.activate(version.version)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.server.versions()]


def test_a_base_stays_on_disk_as_long_as_a_delta_needs_it(place, tables, workshop):
    versions = [tables.fresh()]
    place.take(versions[0], workshop.base(versions[0], 1)[0])
    for seed in range(3):
        versions.append(tables.version(changed(tables.rows[versions[-1].version], seed), versions[-1]))
        place.take(versions[-1], workshop.delta(*versions[-2:], 1)[0])
    first, second, third, last = (each.version for each in versions)
    for name in (first, second):
        place.held.unload(name)
    assert sorted(place.names) == sorted([third, last])
    assert (place.folder / "versions" / first).exists()
    assert place.open() == []
    assert sorted(place.names) == sorted([third, last])
    assert place.server.active == last
    # Back to one that is only kept as a base: nothing travels.
    assert {(each["name"], each["state"]) for each in place.held.kept()} == {(first, "staged"), (second, "staged")}
    assert place.stage(versions[1], workshop.base(versions[1], 1)[0]) == 0
    place.held.load(second)
    place.held.activate(second)
    rows = tables.rows[second]
    assert PartStore(place.held._natives[second]).get([*rows][:5]) == [row.tobytes() for row in [*rows.values()][:5]]
    whole = tables.fresh()
    place.take(whole, workshop.base(whole, 1)[0])
    for name in (third, last):
        place.held.unload(name)
    kept = {path.name for path in (place.folder / "versions").iterdir()}
    assert kept == {first, second, whole.version}


def test_without_an_active_version_it_answers_only_who_asks_for_one(place, tables, workshop):
    versions = [tables.fresh(), tables.fresh()]
    for version in versions:
        place.take(version, workshop.base(version, 1)[0])
    place.held.deactivate()
    assert (place.server.active, place.server.is_ready, place.held.previous) == (None, False, None)
    assert place.open() == []  # also after a restart
    assert (place.server.active, len(place.names)) == (None, 2)
    place.held.deactivate()
    for version in versions:  # neither the active one nor the one to go back to is in the way
        place.held.unload(version.version)
    assert (place.names, place.held.describe()) == ([], [])


def test_the_one_to_go_back_to_goes_only_if_somebody_gives_it_up(place, tables, workshop):
    versions = [tables.fresh(), tables.fresh()]
    for version in versions:
        place.take(version, workshop.base(version, 1)[0])
    first, last = (each.version for each in versions)
    with pytest.raises(Conflict, match="the one to roll back to"):
        place.held.unload(first)
    place.held.unload(first, previous=True)
    assert (place.names, place.held.previous) == ([last], None)
    assert place.open() == []  # also after a restart
    assert (place.names, place.server.active, place.held.previous) == ([last], last, None)
    with pytest.raises(Conflict, match="is active"):
        place.held.unload(last, previous=True)


def test_upstreams_control_commands_are_refused_since_they_would_pass_by_what_is_on_disk(place, tables, workshop):
    versions = [tables.fresh(), tables.fresh()]
    for version in versions:
        place.take(version, workshop.base(version, 1)[0])
    before = (place.folder / "state.json").read_bytes()
    with place.server as server:
        url = f"http://127.0.0.1:{server.port}/ControlService/cmd"
        for command in ({"cmd": "enable", "version": versions[0].version}, {"cmd": "bg_unload"}, {"cmd": "bg_switch"}):
            answer = requests.post(url, json=command, timeout=10)
            assert (answer.status_code, "admin API only" in answer.json()["error"]) == (403, True)
        status = requests.post(url, json={"cmd": "status"}, timeout=10)
        assert status.json()["cur_version"] == versions[1].version
        assert (server.active, len(place.names)) == (versions[1].version, 2)
    assert (place.folder / "state.json").read_bytes() == before


def test_an_order_that_was_obeyed_is_remembered_across_a_restart(place):
    def ask(order):
        with AdminServer(place.server, holdings=place.held, token=TOKEN) as admin:
            return requests.get(
                f"http://127.0.0.1:{admin.port}/versions", headers=BEARER | {"Cloudedge-Order": order}, timeout=10
            ).status_code

    assert [ask(order) for order in ("12", "11", "12", "13")] == [200, 409, 200, 200]
    (place.folder / "order").write_text("nonsense")
    assert ask("1") == 200


def test_a_download_that_broke_off_goes_on(place, tables, workshop, monkeypatch):
    version = tables.fresh(2000)
    artifact = workshop.base(version, 1)[0]
    calls = []

    def breaks_off(url, path, **options):
        calls.append(url)
        if len(calls) > 1:
            raise Unavailable("the line is dead")
        return real(url, path, **options)

    real = staging_module.fetch
    monkeypatch.setattr(staging_module, "fetch", breaks_off)
    with pytest.raises(Unavailable, match=r"cannot fetch .*the line is dead"):
        place.stage(version, artifact)
    assert [(each["name"], each["state"]) for each in place.held.describe()] == [(version.version, "partial")]
    with pytest.raises(NotFound, match="was not fetched"):
        place.held.load(version.version)
    monkeypatch.undo()
    place.open()
    done = artifact.files[0].size
    assert place.stage(version, artifact) == artifact.size - done
    assert place.stage(version, artifact) == 0


def test_a_server_that_stops_does_not_wait_for_a_download(place, tables, workshop, files):
    version = tables.fresh(20_000)
    artifact = workshop.base(version, 1)[0]
    slow = VersionStore(place.server, place.folder, limit_bytes_per_s=70_000)  # 10 s for all of it
    with AdminServer(place.server, holdings=slow, token=TOKEN) as admin:
        url = f"http://127.0.0.1:{admin.port}"
        body = {"name": "v", "artifact": artifact.as_json(), "sources": [{"url": files.url(artifact.directory)}]}
        assert requests.post(f"{url}/staged", json=body, headers=BEARER, timeout=10).status_code == 202
        data = place.folder / "versions" / "v"
        while not any(path.name.startswith(".data.0") and path.stat().st_size for path in data.glob(".*")):
            time.sleep(0.01)
    assert not (data / "artifact.json").exists()
    place.open()
    source = [Source(files.url(artifact.directory))]
    assert 0 < place.held.staging.stage("v", artifact, source, deadline_s=30) < artifact.size


def test_another_source_is_asked_when_one_fails(place, tables, workshop, files):
    version = tables.fresh()
    artifact = workshop.base(version, 1)[0]
    assert "t0ken" not in repr(Source("http://127.0.0.1:1/gone", "t0ken"))
    sources = [Source(files.url("nowhere")), Source(files.url(artifact.directory))]
    assert place.held.staging.stage(version.version, artifact, sources, deadline_s=30) == artifact.size


def test_no_room(place, tables, workshop, monkeypatch):
    version = tables.fresh()
    artifact = workshop.base(version, 1)[0]
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - what shutil returns
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, (64 << 20) + 100))
    with pytest.raises(StorageError, match=f"{artifact.size} bytes do not fit.*room for 100 more") as found:
        place.stage(version, artifact)
    assert found.value.free_bytes == 100


def test_no_memory(place, tables, workshop, monkeypatch):
    version = tables.fresh()
    place.stage(version, workshop.base(version, 1)[0])

    def too_much(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(holdings_module, "load_artifact", too_much)
    with pytest.raises(StorageError, match="not enough memory to load version"):
        place.held.load(version.version)
    monkeypatch.undo()
    place.held.load(version.version)
    assert place.names == [version.version]


def test_versions_loaded_from_a_path_are_kept_too(place, tables, workshop):
    version = tables.fresh()
    artifact = workshop.base(version, 1)[0]
    place.held.load("by-path", path=str(artifact.directory))
    place.held.activate("by-path")
    assert place.open() == []
    assert place.server.active == "by-path"
    second = tables.version(changed(tables.rows[version.version], 1))
    place.take(second, workshop.delta(version, second, 1)[0])
    assert place.open() == []
    assert place.server.active == second.version


def test_what_is_damaged_is_left_out_with_what_is_made_of_it(place, tables, workshop):
    first, other = tables.fresh(), tables.fresh()
    second = tables.version(changed(tables.rows[first.version], 1), first)
    place.take(other, workshop.base(other, 1)[0])
    place.take(first, workshop.base(first, 1)[0])
    place.take(second, workshop.delta(first, second, 1)[0])
    (place.folder / "versions" / first.version / "data.0").write_bytes(b"")
    problems = place.open()
    assert [each.split(":")[0] for each in problems] == [first.version, second.version]
    assert place.names == [other.version]
    assert place.server.active is None
    assert [path.name for path in (place.folder / "versions").iterdir()] == [other.version]
    (place.folder / "state.json").write_text("{")
    with pytest.raises(IntegrityError, match="is damaged"):
        place.open()


def test_what_cannot_be_read_at_the_moment_stays_and_comes_back(place, tables, workshop):
    first, second = tables.fresh(), tables.fresh()
    for version in (first, second):
        place.take(version, workshop.base(version, 1)[0])
    data = place.folder / "versions" / second.version / "data.0"
    data.rename(data.with_name("aside"))
    data.mkdir()  # reading it fails as from a bad disk: the system says no
    (problem,) = place.open()
    assert problem.startswith(f"{second.version}: cannot load the part")
    assert (place.names, place.server.active) == ([first.version], None)
    data.rmdir()
    data.with_name("aside").rename(data)
    assert place.open() == []
    assert (sorted(place.names), place.server.active) == (sorted([first.version, second.version]), second.version)


def test_too_little_memory_at_a_start_costs_no_files(place, tables, workshop, monkeypatch):
    version = tables.fresh()
    place.take(version, workshop.base(version, 1)[0])

    def too_much(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(holdings_module, "load_artifact", too_much)
    (problem,) = place.open()
    assert "not enough memory" in problem
    monkeypatch.undo()
    assert place.open() == []
    assert place.server.active == version.version


def test_a_version_activated_while_it_is_let_go_stays_whole(place, tables, workshop, monkeypatch):
    first, second, third = (tables.fresh() for _ in range(3))
    for version in (first, second, third):
        place.take(version, workshop.base(version, 1)[0])
    real = VersionStore._forget

    def activated_first(held, name):
        held.activate(name)
        real(held, name)

    monkeypatch.setattr(VersionStore, "_forget", activated_first)
    with pytest.raises(Conflict, match="just been activated"):
        place.held.unload(first.version)
    assert place.open() == []
    assert place.server.active == first.version


def test_a_version_that_is_not_loaded_is_not_written_down_as_active(place, tables, workshop):
    version, staged = tables.fresh(), tables.fresh()
    place.take(version, workshop.base(version, 1)[0])
    place.stage(staged, workshop.base(staged, 1)[0])
    with pytest.raises(NotFound):
        place.held.activate(staged.version)
    assert json.loads((place.folder / "state.json").read_text())["active"] == version.version
    assert place.open() == []
    assert place.server.active == version.version


def test_a_note_that_is_damaged_hides_nothing_else(place, tables, workshop):
    good, bad = tables.fresh(), tables.fresh()
    place.take(good, workshop.base(good, 1)[0])
    artifact = workshop.base(bad, 1)[0]
    place.stage(bad, artifact)
    (place.folder / "versions" / bad.version / "artifact.json").write_text("{")
    with AdminServer(place.server, holdings=place.held, token=TOKEN) as admin:
        found = requests.get(f"http://127.0.0.1:{admin.port}/versions", headers=BEARER, timeout=10).json()
        states = {each["name"]: each["state"] for each in found["versions"]}
        assert states == {good.version: "loaded", bad.version: "failed"}
        place.take(bad, artifact)
    assert place.server.active == bad.version


def test_with_its_disk_gone_a_server_still_says_what_it_has(place, tables, workshop):
    version = tables.fresh()
    place.take(version, workshop.base(version, 1)[0])
    with AdminServer(place.server, holdings=place.held, token=TOKEN) as admin:
        shutil.rmtree(place.folder)
        found = requests.get(f"http://127.0.0.1:{admin.port}/versions", headers=BEARER, timeout=10).json()
    assert (found["active"], found["free_disk_bytes"]) == (version.version, 0)
    assert [each["state"] for each in found["versions"]] == ["loaded"]


def test_names_do_not_leave_the_folder_or_change_their_rows(place, tables, workshop):
    version, other = tables.fresh(), tables.fresh()
    for name in ("../x", ".hidden", "a/b", ""):
        with pytest.raises(InputError, match="cannot name a version"):
            place.held.staging.stage(name, workshop.base(version, 1)[0], [], deadline_s=1)
    place.take(version, workshop.base(version, 1)[0])
    with pytest.raises(Conflict, match="does not change under its name"):
        place.stage(version, workshop.base(other, 1)[0])
    with pytest.raises(Conflict, match="loaded already"):
        place.held.load(version.version)
    with pytest.raises(NotFound):
        place.held.activate("nothing")
    with pytest.raises(NotFound):
        place.held.unload("nothing")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"name": 5},
        {"artifact": None},
        {"sources": None},
        {"sources": [{"url": "file:///etc/passwd"}]},
        {"sources": [{"url": "http://x", "more": 1}]},
        {"sources": ["http://x"]},
        {"deadline_s": 0},
        {"deadline_s": True},
        {"deadline_s": "soon"},
    ],
)
def test_a_request_to_fetch_is_checked(place, tables, workshop, change):
    artifact = workshop.base(tables.fresh(), 1)[0]
    good = {"name": "v", "artifact": artifact.as_json(), "sources": [{"url": "http://127.0.0.1:1/x"}], "deadline_s": 1}
    with AdminServer(place.server, holdings=place.held, token=TOKEN) as admin:
        url = f"http://127.0.0.1:{admin.port}/staged"
        answer = requests.post(url, json={**good, **change}, headers=BEARER, timeout=10)
        assert (answer.status_code, answer.json()["kind"]) == (400, "InputError")
        assert requests.post(url, json=good, headers=BEARER, timeout=10).status_code == 202
        deadline = time.monotonic() + 30
        while (found := requests.get(f"http://127.0.0.1:{admin.port}/versions/v", headers=BEARER, timeout=10).json())[
            "state"
        ] != "failed":
            assert time.monotonic() < deadline
        assert found["kind"] in ("Unavailable", "DeadlineExceeded")


def test_a_server_that_keeps_nothing_says_so(tables, workshop):
    artifact = workshop.base(tables.fresh(), 1)[0]
    body = {"name": "v", "artifact": artifact.as_json(), "sources": [{"url": "http://127.0.0.1:1/x"}]}
    with Server(ServerConfig(port=0, threads=1)) as server, AdminServer(server, token=TOKEN) as admin:
        answer = requests.post(f"http://127.0.0.1:{admin.port}/staged", json=body, headers=BEARER, timeout=10)
        assert (answer.status_code, "--state" in answer.json()["hint"]) == (400, True)


def test_the_state_is_plain_and_small(place, tables, workshop):
    version = tables.fresh()
    place.take(version, workshop.base(version, 1)[0])
    state = json.loads((place.folder / "state.json").read_text())
    assert (state["active"], state["previous"]) == (version.version, None)
    assert [each["name"] for each in state["versions"]] == [version.version]


def test_free_memory_is_what_the_tighter_limit_leaves(tmp_path):
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    assert free_memory_bytes(meminfo, cgroup) is None
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:     2048 kB\n")
    assert free_memory_bytes(meminfo, cgroup) == 2 << 20
    cgroup.mkdir()
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("1000\n")
    (cgroup / "memory.stat").write_text("anon 5\ninactive_file 200\n")
    assert free_memory_bytes(meminfo, cgroup) == 2 << 20
    (cgroup / "memory.max").write_text("1500\n")
    assert free_memory_bytes(meminfo, cgroup) == 700
