"""A node that runs containers on a real engine; the image is one static program, made here."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from cloudedge.edge_bie.model._apps import DesiredApp
from cloudedge.edge_bie.node import DockerRuntime, Supervised
from cloudedge.edge_bie.node._docker import _limits
from cloudedge.edge_bie.node._units import ServiceRun
from cloudedge.errors import InputError
from tests.edge_bie.node.world import Hammer, eventually, make_bundle, settle

docker = pytest.importorskip("docker", reason="the Docker SDK is not installed")

RUN = """trap 'exit 0' TERM
/bin/busybox nc -ll -p "$PORT" -e /bin/busybox sh /home/work/script/handler.sh &
wait
"""
HANDLER = r"""
read -r line
length=0
while read -r head; do
  head=$(printf %s "$head" | tr -d '\r')
  [ -z "$head" ] && break
  case "$head" in [Cc]ontent-[Ll]ength:*) length=${head#*: };; esac
done
[ "$length" -gt 0 ] && head -c "$length" >/dev/null
model=$(cat "$CLOUDEDGE_MODEL/model.json")
version=$(printf %s "$model" | sed 's/.*"version": \([0-9]*\).*/\1/')
factor=$(printf %s "$model" | sed 's/.*"factor": \([0-9]*\).*/\1/')
body="{\"version\": $version}"
case "$line" in *"/v1/predict"*) body="{\"outputs\": {\"y\": [[$((2 * factor)).0]]}}";; esac
printf 'HTTP/1.1 200 OK\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' "${#body}" "$body"
"""


@pytest.fixture(scope="module")
def image():
    """An image of busybox alone, by its digest."""
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker engine answers")
    busybox = shutil.which("busybox")
    if busybox is None or subprocess.run(["ldd", busybox], capture_output=True, check=False).returncode == 0:
        pytest.skip("busybox-static is not installed")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("bin/busybox")
        data = Path(busybox).read_bytes()
        member.size, member.mode = len(data), 0o755
        archive.addfile(member, io.BytesIO(data))
        for name in ("cat", "head", "printf", "sed", "sh", "tr"):
            member = tarfile.TarInfo(f"bin/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(member)
    made = subprocess.run(["docker", "import", "-"], input=buffer.getvalue(), capture_output=True, check=True)
    digest = made.stdout.decode().strip()
    yield digest
    subprocess.run(["docker", "rmi", digest], capture_output=True, check=False)


def an_app(**limits):
    service = {"name": "serving", "image": "i", "resources": {"limits": limits}}
    return DesiredApp.parse({"name": "app", "version": "1", "services": [service]}).services[0]


@pytest.mark.rules
def test_limits_are_what_the_engine_is_asked_for():
    said = _limits(_run_of(an_app(**{"cpu": "500m", "memory": "4Gi", "nvidia.com/gpu": "2"})))
    # As `docker run --gpus 2` sends it; whether an engine has NVIDIA's runtime shows when a container starts.
    asked = {"Driver": "", "Count": 2, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}
    assert said == {"nano_cpus": 500_000_000, "mem_limit": 4 << 30, "device_requests": [asked]}
    sent = docker.types.HostConfig(version="1.41", **said)
    assert sent["DeviceRequests"] == [asked]
    assert _limits(_run_of(an_app())) == {}
    assert _limits(_run_of(an_app(memory="2k", cpu="1.5"))) == {"nano_cpus": 1_500_000_000, "mem_limit": 2000}


def _run_of(service):
    return ServiceRun("serving", (), {}, cpus=service.cpus, memory=service.memory, gpus=service.gpus)


@pytest.mark.rules
@pytest.mark.parametrize("limit", [{"cpu": "two"}, {"memory": "4 GB"}, {"nvidia.com/gpu": "-1"}], ids=str)
def test_a_limit_that_is_none_is_named(limit):
    with pytest.raises(InputError, match=next(iter(limit))):
        an_app(**limit)


def containers(mark):
    listed = ["docker", "ps", "--quiet", "--filter", f"label=cloudedge.edge.node={mark}"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()


def release(world, bundle, image):
    return world.release(bundle, statement=world.statement(bundle, image=image))


@pytest.mark.parts
def test_containers_come_change_crash_and_outlive_the_agent(world, image):
    world.scripts = {"run.sh": RUN, "handler.sh": HANDLER}
    world.shell = "/bin/sh"
    folder = world.folder / "n1"
    runtime = DockerRuntime(Supervised(folder / "processes", address="127.0.0.1"), folder)
    agent = world.agent(runtime=runtime)
    try:
        first = release(world, make_bundle(world.hub, world.folder, 1), image)
        settle(agent)
        assert world.asks() == 1, world.stats(first)
        assert world.stats(first).status == "Running"
        (before,) = containers(runtime._mark)
        mounts = subprocess.run(
            ["docker", "inspect", "--format", "{{range .Mounts}}{{.Destination}}={{.RW}} {{end}}", before],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "/cloudedge/hub=false" in mounts
        assert "/home/work/yolov3=true" in mounts
        client = Hammer(world)
        release(world, make_bundle(world.hub, world.folder, 2), f"busybox-built-here@{image}")  # by its ID
        settle(agent)
        client.stop()
        assert world.asks() == 2
        assert not client.failed
        (after,) = containers(runtime._mark)
        assert after != before
        bad = release(world, make_bundle(world.hub, world.folder, 3, wrong=True), image)
        settle(agent)
        assert world.asks() == 2
        assert "off by 1" in world.stats(bad).cause
        assert containers(runtime._mark) == [after]
        other = release(world, make_bundle(world.hub, world.folder, 4), "sha256:" + "0" * 64)
        settle(agent)
        assert world.asks() == 2
        assert world.stats(other).cause
        agent.close()
        pid = int(
            subprocess.run(
                ["docker", "inspect", "--format", "{{.State.Pid}}", after], capture_output=True, check=True
            ).stdout
        )
        os.kill(pid, 9)
        eventually(lambda: world.asks() == 2)  # the engine starts it again, without an agent
    finally:
        runtime.stop()
    assert not containers(runtime._mark)
