"""Following logs: pods of a real API server, their logs from a stand-in for the node that has none."""

import itertools
import re
import threading

import pytest

from cloudedge.kube import Kind
from tests.kube.fault_proxy import forward, lines, settled

pytestmark = pytest.mark.cluster

CONTAINER = {"name": "main", "image": "none", "imagePullPolicy": "Never"}
NEVER = {"restartPolicy": "Never", "containers": [CONTAINER], "nodeSelector": {"cloudedge/none": "none"}}


@pytest.fixture
def node(shaky):
    """A cluster, and how often the log of each pod was asked for; every pod wrote one line."""
    server, client = shaky
    asked: list[str] = []

    def choose(_, path):
        found = re.match(r".*/pods/([^/]+)/log\b", path)
        if not found:
            return forward
        asked.append(found[1])
        return lines(f"2026-01-01T00:00:0{len(asked) % 10}Z {found[1]} wrote\n".encode())

    server.choose = choose
    return client, asked


def made(client, name):
    client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": NEVER})


def is_now(client, name, phase, state=None):
    container = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    statuses = [container | {"state": state}] if state else []
    client.patch(Kind.POD, name, {"status": {"phase": phase, "containerStatuses": statuses}}, subresource="status")


def ended(client, name):
    is_now(client, name, "Succeeded", {"terminated": {"exitCode": 0}})


class Following:
    """Follows in another thread, as a person at a terminal does."""

    def __init__(self, client, **how):
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._run, args=(client.logs(follow=True, timeout_s=60, **how),))
        self._thread.start()

    def _run(self, found):
        self.lines += [line.text for line in found]

    @property
    def is_done(self):
        return not self._thread.is_alive()

    def done(self):
        self._thread.join(40)
        assert self.is_done
        return sorted(set(self.lines))


NAMES = (f"p{number}" for number in itertools.count())


def test_pods_that_were_named_are_waited_for(node):
    client, _ = node
    first, second = next(NAMES), next(NAMES)
    made(client, first)
    ended(client, first)
    asked = threading.Event()
    following = Following(client, pods=[first, second], is_over=lambda: bool(asked.set()))
    assert asked.wait(30), "every pod that was seen has ended, so it is asked whether that was all"
    assert not following.is_done
    made(client, second)
    ended(client, second)
    assert following.done() == [f"{first} wrote", f"{second} wrote"]


def test_pods_that_never_begin_are_not_waited_for(node):
    client, asked = node
    first, refused, deleted, absent = next(NAMES), next(NAMES), next(NAMES), next(NAMES)
    for name in (first, refused, deleted):
        made(client, name)
    ended(client, first)
    following = Following(client, pods=[first, refused, deleted])
    settled(lambda: first in asked)  # by then it has seen all three: one that is gone before may still come
    is_now(client, refused, "Failed")
    client.delete(Kind.POD, deleted)
    assert following.done() == [f"{first} wrote"]
    over = Following(client, pods=[first, absent], is_over=lambda: True)
    assert over.done() == [f"{first} wrote"]


def test_a_container_that_starts_again_is_not_asked_for_its_log_without_a_pause(node):
    client, asked = node
    name = next(NAMES)
    made(client, name)
    is_now(client, name, "Running", {"terminated": {"exitCode": 1}})
    following = Following(client, pods=[name])
    settled(lambda: len(asked) >= 3)
    # At most two requests a second: a log that ends at once is not read as fast as the server can answer.
    before, pause = len(asked), threading.Event()
    pause.wait(2.0)
    assert len(asked) - before <= 5
    ended(client, name)
    following.done()
