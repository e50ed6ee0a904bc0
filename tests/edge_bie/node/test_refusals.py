"""What a node refuses, and says so: tampered objects, wrong signatures, old statements, lies, full disks."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from dataclasses import replace

import pytest
import requests

from cloudedge.bundle import new_key_pair
from cloudedge.edge_bie.client import Config, Text
from cloudedge.edge_bie.model._names import app_name
from cloudedge.edge_bie.model._statement import Blob
from cloudedge.errors import StorageError
from tests.edge_bie.node.played_runtime import PlayedRuntime
from tests.edge_bie.node.world import PASSPHRASE, eventually, make_bundle, noise, settle, signed
from tests.faults import proves_fault

pytestmark = pytest.mark.parts


@pytest.fixture
def played():
    runtime = PlayedRuntime()
    yield runtime
    runtime.stop()


@pytest.fixture
def node(world, played):
    """A node that runs version 1."""
    agent = world.agent(runtime=played)
    world.release(make_bundle(world.hub, world.folder, 1))
    settle(agent)
    assert played.asks(world.port) == 1
    yield agent
    agent.close()


def is_refused(world, played, agent, statement, *, reason, words):
    """The old version answers, and the report says what happened."""
    settle(agent)
    assert played.asks(world.port) == 1
    stats = world.stats(statement)
    (instance,) = stats.instances
    (verify,) = instance.init_containers
    assert (verify.name, verify.state, verify.reason) == ("cloudedge-verify", "Terminated", reason)
    assert words in stats.cause
    assert stats.status == "Failed"
    return stats


def damage(world, bundle, path="w", how=lambda data: data[:-1] + b"?"):
    """Change an object where nodes download it."""
    blob = world.lab.objects / "sha256" / bundle.dense_layers[path].digest.removeprefix("sha256:")
    data = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(how(data))


def test_a_tampered_object(world, played, node):
    bundle = make_bundle(world.hub, world.folder, 2, files={"w": noise(5000, 1)})
    statement = world.publish(bundle)
    damage(world, bundle)
    world.point(statement)
    is_refused(world, played, node, statement, reason="Tampered", words="the statement says")
    # Repaired, it is taken: nothing of the wrong bytes was kept.
    damage(world, bundle, how=lambda data: data[:-1] + noise(5000, 1)[-1:])
    node._failures.keep(())
    settle(node)
    assert played.asks(world.port) == 2


@pytest.mark.parametrize("how", [lambda data: data + b"more", lambda data: data[:100]], ids=["longer", "shorter"])
def test_an_object_of_another_length(world, played, node, how):
    bundle = make_bundle(world.hub, world.folder, 2, files={"w": noise(5000, 1)})
    statement = world.publish(bundle)
    damage(world, bundle, how=how)
    world.point(statement)
    is_refused(world, played, node, statement, reason="Tampered", words="were promised")


def test_an_object_that_is_gone(world, played, node):
    bundle = make_bundle(world.hub, world.folder, 2, files={"w": noise(5000, 1)})
    statement = world.publish(bundle)
    (world.lab.objects / "sha256" / bundle.dense_layers["w"].digest.removeprefix("sha256:")).unlink()
    world.point(statement)
    is_refused(world, played, node, statement, reason="NotFound", words="404")


@pytest.mark.parametrize("how", ["other key", "none", "other words"])
def test_a_wrong_signature(world, played, node, how):
    bundle = make_bundle(world.hub, world.folder, 2)
    statement = world.statement(bundle)
    other, _ = new_key_pair(world.folder, "other", PASSPHRASE)
    signature = {
        "other key": statement.sign(other, PASSPHRASE),
        "none": b"",
        "other words": replace(statement, sequence=99).sign(world.key, PASSPHRASE),
    }[how]
    world.publish(bundle, statement=statement, signature=signature)
    world.point(statement)
    is_refused(world, played, node, statement, reason="SignatureInvalid", words="sign")
    assert node.state.slots["paddle-serving"].highest == 1


def test_a_bundle_signed_by_somebody_else(world, played, node):
    other, _ = new_key_pair(world.folder, "other", PASSPHRASE)
    bundle = signed(world, make_bundle(world.hub, world.folder, 2), key=other)
    statement = world.release(bundle)
    is_refused(world, played, node, statement, reason="SignatureInvalid", words="none of its 1 signatures")


@proves_fault(
    area="edge",
    fault="an old statement is sent to a node again",
    happens="the node refuses it: statements are numbered",
    cure="nothing",
)
def test_an_old_statement_sent_again(world, played, node):
    (slot,) = node.state.slots.values()
    assert slot.highest == 1
    older = world.publish(make_bundle(world.hub, world.folder, 7), sequence=0)
    world.point(older)
    is_refused(world, played, node, older, reason="Replayed", words="number 0; number 1")
    same = world.publish(make_bundle(world.hub, world.folder, 8), sequence=1)
    world.point(same)
    is_refused(world, played, node, same, reason="Replayed", words="number 1; number 1")


def test_the_number_survives_the_node(world, played, node):
    second = world.release(make_bundle(world.hub, world.folder, 2))
    settle(node)
    assert played.asks(world.port) == 2
    first = next(iter(world.bie.apps()))  # both revisions are still in the account
    assert first
    node.close()
    again = world.agent(runtime=played)
    old = world.statement(make_bundle(world.hub, world.folder, 3), sequence=1)
    world.publish(None, statement=old)
    world.point(old)
    settle(again)
    assert played.asks(world.port) == 2
    assert "number 1; number 2" in world.stats(old).cause
    world.point(second)
    settle(again)
    assert world.stats(second).status == "Running"
    again.close()


def test_going_back_moves_no_byte(world, played, node):
    first = make_bundle(world.hub, world.folder, 5, files={"w": noise(50_000, 5)})
    world.release(first)
    settle(node)
    world.release(make_bundle(world.hub, world.folder, 6, files={"w": noise(50_000, 6)}))
    settle(node)
    assert played.asks(world.port) == 6
    before = node.state.fetched
    world.release(first)
    settle(node)
    assert played.asks(world.port) == 5
    assert node.state.fetched == before


def test_a_statement_that_speaks_for_another_app_or_manifest(world, played, node):
    bundle = make_bundle(world.hub, world.folder, 2)
    good = world.statement(bundle)
    stray = Blob("sha256:" + "0" * 64, 10, "application/x")
    lies = {
        "does not name its bundle's manifest": replace(good, manifest=stray),
        "names": replace(good, blobs=good.blobs[1:]),
        "runs cloudedge.invalid/process": replace(good, image="paddle@sha256:" + "1" * 64),
    }
    for words, statement in lies.items():
        if statement.manifest is stray:
            (world.lab.objects / "sha256" / ("0" * 64)).write_bytes(b"0123456789")
        world.sequence += 1
        statement = world.with_content(replace(statement, sequence=world.sequence))  # noqa: PLW2901 - its own number
        world.publish(None, statement=statement, image="cloudedge.invalid/process")
        world.point(statement)
        is_refused(world, played, node, statement, reason="Tampered", words=words)


def seen(world, kind, name):
    return requests.get(f"{world.lab.admin_url}/v1/{kind}/{name}", timeout=10).json()


def tamper(world, statement, how):
    """Do what somebody can do who may write to the account, and has no key."""
    name = app_name(statement.app, statement.revision)
    app = seen(world, "apps", name)
    service = app["services"][0]
    if how == "script":
        config = seen(world, "configs", world.script)

        def write():
            config["data"] = [{"key": "run.sh", "value": {"type": "kv", "value": f"evil {time.monotonic_ns()}"}}]
            world.write("PUT", f"configs/{world.script}", config)
            return seen(world, "apps", name)["version"] != app["version"]

        eventually(write)  # the app follows a config only if its version is greater, as text: not in the same second
        return
    if how == "another config":
        world.write("POST", "configs", Config("stranger", {"sitecustomize.py": Text("evil()")}).to_json())
        app["volumes"].append({"name": "more", "config": {"name": "stranger"}})
        service["volumeMounts"].append({"name": "more", "mountPath": "/home/work/script/lib"})
    elif how == "host path":
        app["volumes"].append({"name": "more", "hostPath": {"path": "/etc"}})
        service["volumeMounts"].append({"name": "more", "mountPath": "/host"})
    elif how == "service":
        app["services"].append({"name": "more", "image": "evil", "command": ["evil"]})
    else:
        service.update({
            "environment": {"env": [*service["env"], {"name": "LD_PRELOAD", "value": "evil.so"}]},
            "arguments": {"args": ["-c", "evil"]},
            "command": {"command": ["/bin/evil"]},
            "privileged": {"security": {"privileged": True}},
            "port": {"ports": [{**service["ports"][0], "containerPort": 1}]},
        }[how])  # fmt: skip
    world.write("PUT", f"apps/{name}", {**app, "replica": 1})


TAMPERED = [
    "script", "another config", "host path", "service", "environment", "arguments", "command", "privileged", "port",
]  # fmt: skip


@pytest.mark.parametrize("how", TAMPERED)
def test_an_app_that_was_changed_after_it_was_signed(world, played, node, how):
    statement = world.publish(make_bundle(world.hub, world.folder, 2))
    tamper(world, statement, how)
    world.point(statement)
    is_refused(world, played, node, statement, reason="Tampered", words="signed")
    assert node.state.slots["paddle-serving"].highest == 1


@pytest.mark.parametrize("how", TAMPERED)
def test_the_live_app_changed_in_place(world, played, node, how):
    """It is a revision that was accepted, with its number: what it would run is looked at all the same."""
    live = node.state.slots["paddle-serving"].live
    statement = world.released
    tamper(world, statement, how)
    is_refused(world, played, node, statement, reason="Tampered", words="signed")
    assert node.state.slots["paddle-serving"].live == live


def test_a_signature_gives_no_folder_of_the_machine(world, played, node):
    """The key says who may release, and not what this machine gives away."""
    world.state = "/etc"
    statement = world.publish(make_bundle(world.hub, world.folder, 2))
    world.point(statement)
    is_refused(world, played, node, statement, reason="Rejected", words="--allow-host-path /etc")


def test_a_node_with_a_key_runs_nothing_without_a_statement(world, played, node):
    (app,) = [app for app in (world.bie.app(each.name) for each in world.bie.apps()) if app]
    body = {**app.to_json(), "name": "stranger", "labels": {}, "selector": "baetyl-node-name=n1", "replica": 1}
    body["volumes"] = [volume for volume in body["volumes"] if volume["name"] == "script"]
    body["services"][0]["volumeMounts"] = [m for m in body["services"][0]["volumeMounts"] if m["name"] == "script"]
    body["services"][0]["ports"] = []
    world.write("POST", "apps", body)
    settle(node)
    report = world.reported()
    assert "runs only signed apps" in report.app("stranger").cause
    assert played.asks(world.port) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@proves_fault(
    area="edge",
    fault="a node has no room for a version",
    happens="it fetches nothing, keeps the old one and reports why",
    cure="make room; it tries again by itself",
)
def test_a_disk_without_room_is_noticed_before_a_byte_is_fetched(world, played, small_disk):
    agent = world.agent(folder=small_disk / "n1", runtime=played)
    world.release(make_bundle(world.hub, world.folder, 1))
    settle(agent)
    before = agent.state.fetched
    statement = world.release(make_bundle(world.hub, world.folder, 2, files={"w": noise(6_000_000, 2)}))
    is_refused(world, played, agent, statement, reason="DiskFull", words="bytes, ")
    assert agent.state.fetched == before
    agent.close()


@pytest.mark.parametrize("when", ["download", "assemble", "try"])
def test_a_disk_that_fills_up_meanwhile(world, played, small_disk, when):
    """Real ENOSPC, at three moments: the version that runs stays, and when there is room the new one comes."""
    ballast = small_disk / "ballast"

    def fill(step):
        if step == when and not ballast.exists():
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass

    agent = world.agent(folder=small_disk / "n1", runtime=played)
    world.release(make_bundle(world.hub, world.folder, 1))
    settle(agent)
    agent._at = fill
    bundle = make_bundle(world.hub, world.folder, 2, files={"w": noise(1_500_000, 2)})
    statement = world.release(bundle)
    try:
        settle(agent)
    except StorageError:
        settle(agent, 1)
    assert played.asks(world.port) == 1
    stats = world.stats(statement)
    assert "no space is left" in stats.cause
    assert "DiskFull" in {c.reason for i in stats.instances for c in (*i.init_containers, *i.containers)}
    ballast.unlink()
    agent._at = lambda _: None
    agent._failures.keep(())
    settle(agent)
    assert played.asks(world.port) == 2
    assert shutil.disk_usage(small_disk).free > 0
    agent.close()
