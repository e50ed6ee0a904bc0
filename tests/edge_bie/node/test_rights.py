"""What an app may ask of the machine: nothing, unless the operator of the node said so."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloudedge.cli import app as cli
from cloudedge.clock import ManualClock
from cloudedge.edge_bie.model import AppRef, DesiredApp
from cloudedge.edge_bie.node import Rights
from cloudedge.edge_bie.node._download import Downloads
from cloudedge.edge_bie.node._install import Installer
from cloudedge.edge_bie.node._report import trouble_of
from cloudedge.edge_bie.node._store import NodeStore
from cloudedge.edge_bie.node._units import NodeState
from cloudedge.errors import InputError, Rejected
from tests.faults import proves_fault

pytestmark = pytest.mark.rules


def an_app(service=None, *, path="", **more):
    volumes = [{"name": "host", "hostPath": {"path": path}}] if path else []
    mounts = [{"name": "host", "mountPath": "/data"}] if path else []
    services = [{"name": "ss", "image": "i", "command": ["x"], "volumeMounts": mounts, **(service or {})}]
    return DesiredApp.parse({"name": "app", "version": "1", "services": services, "volumes": volumes, **more})


class Brought(Exception):
    """The runtime was asked for the app's images: nothing stands in its way."""


class Engine:
    """A runtime that is asked for nothing but images."""

    def __init__(self, kind="docker"):
        self.kind = kind

    def bring_images(self, images, logins):
        raise Brought


def install(app, folder, rights=None, *, kind="docker"):
    """Install an unsigned app as far as its images, on a node without a key."""
    installer = Installer(
        lambda kind, pins: {},
        NodeStore(folder, Downloads(folder / "downloads")),
        runtime=Engine(kind),
        node="n1",
        namespace="",
        key=None,
        rights=rights or Rights(),
        clock=ManualClock(),
    )
    with pytest.raises(Brought):
        installer.prepare(app, NodeState(), lambda step: None)


@proves_fault(
    area="edge",
    fault="the cloud asks a node for a privileged container",
    happens="the node refuses and reports which option would allow it",
    cure="`cloudedge edge node --allow-privileged`, if it is meant",
)
@pytest.mark.parametrize("field", ["security", "securityContext"])
def test_a_privileged_container_needs_the_operator(tmp_path, field):
    app = an_app({field: {"privileged": True}})
    with pytest.raises(Rejected, match="--allow-privileged") as refused:
        install(app, tmp_path)
    trouble = trouble_of(refused.value, "verifying")
    assert trouble.reason == "Rejected"
    assert "ss asks to run privileged" in trouble.cause  # the cloud shows the cause
    assert "--allow-privileged" in trouble.cause
    install(app, tmp_path, Rights(privileged=True))
    install(app, tmp_path, kind="process")  # it gets no more than the node's user has
    install(an_app({field: {"privileged": False}}), tmp_path)


@pytest.mark.parametrize(
    ("service", "more", "asked"),
    [
        ({"hostNetwork": True}, {}, "hostNetwork"),
        ({}, {"hostNetwork": True}, "hostNetwork"),
        ({}, {"hostPID": True}, "hostPID"),
        ({}, {"hostIPC": True}, "hostIPC"),
        ({"devices": [{"devicePath": "/dev/mem"}]}, {}, "devices"),
        ({"security": {"capabilities": {"add": ["SYS_ADMIN"]}}}, {}, "security.capabilities"),
    ],
)
def test_what_no_container_gets(tmp_path, service, more, asked):
    with pytest.raises(Rejected, match=f"asks for {asked}, which"):
        install(an_app(service, **more), tmp_path, Rights(privileged=True, host_paths=(Path("/"),)))
    install(an_app(service, **more), tmp_path, kind="process")
    assert an_app({"hostNetwork": False, "devices": [], "security": {"capabilities": {}}}).host_access == ()


@pytest.mark.parametrize("kind", ["docker", "process"])
def test_folders_of_the_machine_are_named_by_the_operator(tmp_path, kind):
    node, allowed = tmp_path / "node", tmp_path / "data"
    rights = Rights(host_paths=(allowed,))
    for path in ("/etc", "/", str(tmp_path), f"{allowed}base", f"{allowed}/../node"):
        with pytest.raises(Rejected, match="--allow-host-path"):
            install(an_app(path=path), node, rights, kind=kind)
    for path in (str(allowed), f"{allowed}/cameras", "cloudedge"):
        install(an_app(path=path), node, rights, kind=kind)
    with pytest.raises(InputError, match="host path"):
        install(an_app(path="../hub"), node, rights, kind=kind)


@pytest.mark.parametrize("below", ["host", "data"])
def test_a_link_that_an_app_left_leads_nowhere(tmp_path, below):
    """A container may write into a folder it mounts; the engine would follow its link on the host."""
    folder = tmp_path / below
    folder.mkdir()
    (folder / "link").symlink_to("/etc")
    path = "link" if below == "host" else str(folder / "link")
    with pytest.raises(Rejected, match="--allow-host-path /etc"):
        install(an_app(path=path), tmp_path, Rights(host_paths=(tmp_path / "data",)))


def test_a_field_of_another_shape_is_refused():
    with pytest.raises(InputError):
        an_app({"securityContext": "all"})
    assert an_app().ref == AppRef("app", "1")


def test_a_relative_folder_is_no_folder_to_allow():
    ran = CliRunner().invoke(
        cli, ["edge", "node", "--cloud", "http://127.0.0.1:1", "--name", "n1", "--allow-host-path", "data", "--dry-run"]
    )
    assert ran.exit_code != 0
    assert "absolute path" in ran.output + str(ran.exception)
