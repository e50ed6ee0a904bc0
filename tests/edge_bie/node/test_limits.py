"""What must not grow, spill or be mistaken: damaged archives, unfinished files, nested mounts, long logs, proxies."""

from __future__ import annotations

import errno
import io
import os
import zipfile

import pytest

from cloudedge.clock import ManualClock
from cloudedge.edge_bie.model._apps import AppRef, DesiredApp
from cloudedge.edge_bie.model._mounts import MountedConfig
from cloudedge.edge_bie.node._archives import unpack_archive
from cloudedge.edge_bie.node._assemble import Parts, assemble
from cloudedge.edge_bie.node._docker import DockerRuntime
from cloudedge.edge_bie.node._download import Downloads
from cloudedge.edge_bie.node._report import app_stats, trouble_of
from cloudedge.edge_bie.node._store import NodeStore
from cloudedge.edge_bie.node._units import ServiceRun, Unit
from cloudedge.errors import InputError, Rejected, StorageError, Unavailable
from tests.edge_bie.node.cutting_server import CuttingServer
from tests.edge_bie.node.played_runtime import PlayedRuntime
from tests.edge_bie.node.test_apps import seed_objects, tarred
from tests.edge_bie.node.world import make_bundle, noise, settle


@pytest.fixture
def played():
    runtime = PlayedRuntime()
    yield runtime
    runtime.stop()


def deflated(data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights", data)
    return buffer.getvalue()


def spoilt(archive, at):
    return archive[:at] + bytes(byte ^ 0xFF for byte in archive[at : at + 40]) + archive[at + 40 :]


WORDS = b"".join(b"%d " % number for number in range(2_000))
"""What deflate makes shorter: what is stored as it is fails only by its checksum."""


@pytest.mark.rules
@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_an_archive_whose_bytes_are_spoilt_is_no_archive(tmp_path, kind):
    whole = deflated(WORDS) if kind == "zip" else tarred("tgz", ("weights", WORDS, ""))
    for at in range(60, len(whole) - 300, 200):
        (tmp_path / "a").write_bytes(spoilt(whole, at))
        with pytest.raises(InputError, match=r"can be read|shorter|longer|plain file|must stay inside its folder"):
            unpack_archive(tmp_path / "a", kind, tmp_path, room=10_000_000)


@pytest.mark.parts
def test_a_damaged_zip_is_reported(world, played):
    seed_objects(world, spoilt(deflated(WORDS), 200))
    agent = world.agent(key=False, runtime=played)
    settle(agent)
    assert "no zip that can be read" in world.reported().app("paddle-serving").cause
    agent.close()


@pytest.mark.parts
def test_what_came_of_an_app_that_waits_outlives_the_installation_of_another(world, played):
    agent = world.agent(runtime=played)
    other = agent.store.downloads.folder / f"{'0' * 64}.part"
    other.parent.mkdir(parents=True)
    for path in (other, other.with_suffix(".from")):
        path.write_bytes(b"the beginning of a large file")
    world.release(make_bundle(world.hub, world.folder, 1))
    settle(agent)
    assert played.asks(world.port) == 1
    assert other.exists()
    assert other.with_suffix(".from").exists()
    # What got nothing for weeks is wanted by nobody; and where there is no room, nothing is kept for later.
    os.utime(other, (0, 0))
    agent.store.collect(agent.state.units)
    assert not other.exists()
    other.write_bytes(b"the beginning of a large file")
    agent.store.collect(agent.state.units, idle_s=0.0)
    assert not list(other.parent.iterdir())
    agent.close()


@pytest.mark.parts
def test_a_file_of_unknown_length_may_fill_no_disk(tmp_path):
    with CuttingServer({"/f": noise(50_000, 1)}, lengths=False) as server:
        downloads = Downloads(tmp_path)
        with pytest.raises(StorageError, match="room for"):
            downloads.fetch("name", f"{server.url}/f", most=20_000)
        assert downloads.has("name") <= 20_000
        assert len(downloads.fetch("name", f"{server.url}/f", most=50_000).read_bytes()) == 50_000


@pytest.mark.parts
def test_downloads_take_no_proxy_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with CuttingServer({"/f": b"bytes"}) as server:
        assert Downloads(tmp_path, clock=ManualClock()).fetch("name", f"{server.url}/f").read_bytes() == b"bytes"


def nested(host, path="/data/model"):
    service = {"name": "ss", "image": "i", "command": ["x"], "volumeMounts": [
        {"name": "host", "mountPath": "/data"}, {"name": "texts", "mountPath": path},
    ]}  # fmt: skip
    volumes = [{"name": "host", "hostPath": {"path": str(host)}}, {"name": "texts", "config": {"name": "texts"}}]
    app = DesiredApp.parse({"name": "nested", "version": "1", "services": [service], "volumes": volumes})
    return Parts(app, {"texts": MountedConfig("texts", "1", {"run.sh": b"mine"})}, {})


@pytest.mark.rules
@pytest.mark.parametrize("kind", ["process", "docker"])
def test_a_mount_inside_a_folder_of_the_host_is_not_written_there(tmp_path, kind):
    host = tmp_path / "host"
    host.mkdir()
    store = NodeStore(tmp_path / "node", Downloads(tmp_path / "node/downloads"))
    how = {"kind": kind, "node": "n1", "key": None, "created": ""}
    if kind == "process":
        with pytest.raises(InputError, match="/data/model is inside of /data"):
            assemble(nested(host), store, **how)
    else:
        unit = assemble(nested(host), store, **how)
        binds = {bind.path: bind.source for bind in unit.runs[0].binds}
        assert binds["/data"] == str(host)
        assert (tmp_path / "node" / "units" / unit.id / "data/model/run.sh").read_bytes() == b"mine"
    assert not list(host.iterdir())
    assert assemble(nested(host, "/database"), store, **{**how, "created": "later"}).runs


CALLED = {
    "full": (StorageError("no space is left", errno=errno.ENOSPC), "DiskFull"),
    "quota": (StorageError("over quota", errno=errno.EDQUOT), "DiskFull"),
    "not allowed": (StorageError("permission denied", errno=errno.EACCES), "StorageError"),
    "broken": (StorageError("input/output error", errno=errno.EIO), "StorageError"),
}


@pytest.mark.rules
@pytest.mark.parametrize(("error", "reason"), CALLED.values(), ids=CALLED)
@pytest.mark.parametrize("phase", ["verifying", "starting"])
def test_only_a_full_disk_is_called_one(error, reason, phase):
    assert trouble_of(error, phase).reason == reason


class Chatty:
    """An engine's client whose containers write long lines, and whose list may be refused."""

    def __init__(self):
        self.containers = self

    def get(self, name):
        return self

    def logs(self, tail):
        return b"x" * 10_000_000

    def list(self, **_):
        raise self.error


@pytest.mark.rules
def test_a_server_that_writes_much_does_not_make_a_report_too_large():
    pytest.importorskip("docker")
    runtime = DockerRuntime.__new__(DockerRuntime)
    runtime._client, runtime._mark = Chatty(), "mark"
    unit = Unit(AppRef("app", "1"), "app", "", runs=(ServiceRun("s", (), {}),))
    assert len(runtime.tail(unit, "s")) <= 4096
    trouble = trouble_of(InputError(f"s ends: {'x' * 100_000}"), "starting")
    assert len(str(app_stats(unit.ref, machine="m", unit=unit, trouble=trouble))) < 16 << 10


@pytest.mark.rules
@pytest.mark.parametrize("error", [Rejected("500"), Unavailable("gone")])
def test_an_engine_that_says_no_stops_no_report(error):
    pytest.importorskip("docker")
    runtime = DockerRuntime.__new__(DockerRuntime)
    runtime._client, runtime._mark = Chatty(), "mark"
    runtime._client.error = error
    unit = Unit(AppRef("app", "1"), "app", "", runs=(ServiceRun("s", (), {}),))
    assert runtime.observe(unit)["s"].reason == "NoEngine"
