"""Pods that run: logs of several at once, ports forwarded, commands, and why one does not start."""

import http.client
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import urllib.request
from contextlib import suppress

import pytest

from cloudedge import errors
from cloudedge.kube import Kind, state_of
from tests.kube.fault_proxy import settled
from tests.kube.real_cluster import lab

pytestmark = pytest.mark.cluster

IMAGE = "cloudedge-test/busybox:1"


@pytest.fixture(scope="module")
def pods(tmp_path_factory):
    """A cluster whose node has an image with a shell."""
    with lab("queues", with_pods=True) as cluster:
        for needed in ("docker", "busybox"):
            if shutil.which(needed) is None:
                pytest.skip(f"there is no {needed} here")
        if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False).returncode:
            archive = tmp_path_factory.mktemp("image") / "image.tar"
            with tarfile.open(archive, "w") as tar:
                tar.add(shutil.which("busybox"), "bin/busybox")
            subprocess.run(["docker", "import", str(archive), IMAGE], check=True, capture_output=True)
        yield cluster


def pod(name, script, image=IMAGE, **labels):
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "args": ["busybox", "sh", "-c", script]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def is_ready(found):
    return any(each.get("ready") for each in ((found or {}).get("status") or {}).get("containerStatuses") or [])


@pytest.fixture(scope="module")
def web(pods):
    script = "mkdir /w; head -c 5000000 /dev/zero >/w/zeros; echo hello >/w/index.html; exec httpd -f -p 8080 -h /w"
    obj = pod("web", f"PATH=/bin; busybox --install -s /bin; {script}")
    probe = {"httpGet": {"path": "/index.html", "port": 8080}, "periodSeconds": 1}
    obj["spec"]["containers"][0]["readinessProbe"] = probe
    pods.apply(obj)
    pods.wait(Kind.POD, "web", is_ready, timeout_s=120, what="starting web")
    return pods


def test_logs_of_several_pods_come_as_one(pods):
    """One pod is there, another comes while its log is read; every line comes once, and then it is over."""
    pods.apply(pod("one", "for i in 1 2 3 4 5 6; do echo one $i; busybox sleep 1; done", job="logs"))
    later = threading.Timer(1, pods.apply, [pod("two", "echo two 1; echo two 2", job="logs")])
    later.start()
    found = [(line.pod, line.text) for line in pods.logs("job=logs", follow=True, timeout_s=120)]
    later.join()
    assert [text for name, text in found if name == "one"] == [f"one {i}" for i in range(1, 7)]
    assert [text for name, text in found if name == "two"] == ["two 1", "two 2"]
    again = list(pods.logs("job=logs"))
    assert sorted((line.pod, line.text) for line in again) == sorted(found)
    assert [line.at for line in again] == sorted(line.at for line in again)
    assert [line.text for line in pods.logs(pods=["one"], tail=2)] == ["one 5", "one 6"]
    with pytest.raises(errors.NotFound):
        list(pods.logs(pods=["three"]))
    with pytest.raises(errors.InputError):
        pods.logs()


def test_logs_of_a_pod_with_two_containers(pods):
    obj = pod("pair", "echo first", job="pair")
    second = dict(obj["spec"]["containers"][0], name="side", args=["busybox", "echo", "second"])
    obj["spec"]["containers"].append(second)
    pods.apply(obj)
    assert [line.text for line in pods.logs("job=pair", follow=True, timeout_s=120)] == ["first"]
    assert [line.text for line in pods.logs("job=pair", container="side")] == ["second"]
    with pytest.raises(errors.InputError, match="nobody"):
        list(pods.logs("job=pair", container="nobody"))
    with pytest.raises(errors.InputError, match="nobody"):
        list(pods.logs("job=pair", container="nobody", follow=True, timeout_s=60))


def test_much_goes_up_and_down_at_once(pods):
    pods.apply(pod("echo", "while busybox true; do busybox nc -l -p 8080 -e busybox cat; done"))
    pods.wait(Kind.POD, "echo", is_ready, timeout_s=120, what="starting echo")
    sent = bytes(range(256)) * 8192
    with pods.port_forward("echo", 8080) as port:
        connection = _connected(port, b"x", b"x")
        writer = threading.Thread(target=connection.sendall, args=(sent,), daemon=True)
        writer.start()
        got = bytearray()
        while len(got) < len(sent):
            chunk = connection.recv(1 << 16)
            assert chunk, f"it ended after {len(got)} bytes"
            got += chunk
        writer.join()
        connection.close()
    assert got == sent


def test_a_port_leads_to_a_pod(web):
    with web.port_forward("web", 8080) as port:
        for _ in range(3):
            assert urllib.request.urlopen(f"http://127.0.0.1:{port}/index.html", timeout=20).read() == b"hello\n"
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/zeros", timeout=60).read() == bytes(5_000_000)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/index.html", timeout=5)


@pytest.mark.parametrize(("name", "far"), [("web", 9), ("nobody", 8080)])
def test_a_port_that_leads_nowhere_closes(name, far, web):
    with web.port_forward(name, far) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.connect()
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            _ask(connection)
        connection.close()


def _ask(connection):
    connection.request("GET", "/")
    connection.getresponse()


def test_a_forwarded_connection_ends_with_its_pod(pods):
    pods.apply(pod("talker", "busybox nc -l -p 8080 -e busybox sh -c 'echo hi; busybox sleep 600'"))
    pods.wait(Kind.POD, "talker", is_ready, timeout_s=120, what="starting talker")
    with pods.port_forward("talker", 8080) as port:
        connection = _connected(port, b"", b"hi\n")
        pods.delete(Kind.POD, "talker", wait_s=60)
        connection.settimeout(60)
        assert connection.recv(100) == b""
        connection.close()


def _connected(port, said, answer):
    """Connect once somebody listens in the pod: a pod without a probe is ready before its program is."""
    for _ in range(100):
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        with suppress(ConnectionError):
            connection.sendall(said)
            if connection.recv(100) == answer:
                return connection
        connection.close()
        time.sleep(0.1)
    raise AssertionError("nobody listens")


def test_a_command_in_a_pod(web):
    done = web.run("web", ["busybox", "sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert web.run("web", ["busybox", "echo", "$HOME;*"]).stdout == b"$HOME;*\n"
    with pytest.raises(errors.DeadlineExceeded):
        web.run("web", ["busybox", "sleep", "30"], timeout_s=1)
    with pytest.raises(errors.NotFound):
        web.run("nobody", ["busybox", "true"])


def test_why_a_pod_does_not_start(pods):
    pods.apply(pod("stuck", "true", image="no.such/image:1"))
    is_refused = lambda found: "ErrImageNeverPull" in state_of(found)  # noqa: E731
    found = pods.wait(Kind.POD, "stuck", is_refused, timeout_s=120, what="refusing its image")
    settled(lambda: any("ErrImageNeverPull" in str(each) for each in pods.events(found)), within_s=60)
    with pytest.raises(errors.DeadlineExceeded) as caught:
        pods.wait(Kind.POD, "stuck", is_ready, timeout_s=1, what="starting stuck")
    assert "no.such/image:1" in caught.value.state
    assert any("ErrImageNeverPull" in event for event in caught.value.events)
