"""One of two servers hangs, or its network is gone: no call fails, and none waits for its deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest

from cloudedge.errors import DeadlineExceeded
from cloudedge.serving import Client, EndpointPolicy
from tests.faults import proves_fault
from tests.serving.client.relay import Relay
from tests.serving.protocols.event_loop import loop_in_thread

pytestmark = pytest.mark.parts

ROWS = {"x": np.array([[0.5, 0.25]], np.float32)}
DEADLINE_S = 60.0
POLICY = EndpointPolicy(first_patience_s=0.3, rest_s=0.3, longest_rest_s=1.0)


@contextmanager
def process(scheme):
    """A server as a process; yields its URL and its pid."""
    command = [sys.executable, "-m", "tests.serving.client.tiny_server", scheme]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip(), server.pid
        finally:
            server.kill()


def states(client):
    return client.endpoint_states()


class Asking:
    """Callers that never stop while the block lasts."""

    def __init__(self, client, callers=4):
        self.client = client
        self.took, self.failed = [], []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(callers)
        self._callers = callers

    def __enter__(self):
        for _ in range(self._callers):
            self._pool.submit(self._ask)
        self.until(200)
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._pool.shutdown()

    def until(self, more, condition=lambda: True):
        """Wait until so many more calls were answered, and for a condition."""
        start, end = len(self.took), time.monotonic() + 120
        while len(self.took) < start + more or not condition():
            assert time.monotonic() < end, "did not happen"
            assert not self.failed
            time.sleep(0.01)
        return self.took[start:]

    def _ask(self):
        while not self._stop.wait(0.002):
            begun = time.monotonic()
            try:
                assert self.client.predict(ROWS)["price"].tolist() == [[0.75]]
            except Exception as error:  # noqa: BLE001 - whatever it is, the call has failed
                self.failed.append(error)
                continue
            self.took.append(time.monotonic() - begun)


def is_rested_and_others_answer(asking, url):
    """The faulty server rests, its rests go on, and calls are answered by the other one, long before the deadline."""

    def state():
        return next(each for each in states(asking.client) if each.url == url)

    before = state().rests
    took = asking.until(100, lambda: state().resting and state().rests > before)
    took += asking.until(300, lambda: state().rests > before + 1)
    assert not asking.failed
    assert max(took) < DEADLINE_S / 4
    return state


@proves_fault(
    area="servers",
    fault="one of two serving replicas hangs",
    happens="the client gives its tries up early and lets it rest; no request fails",
    cure="nothing; the supervisor restarts it",
)
@pytest.mark.parametrize("scheme", ["http", "general+http", "grpc", "brpc"])
def test_a_stopped_process(scheme):
    with (
        process(scheme) as (first, pid),
        process(scheme) as (second, _),
        Client(first, second, timeout_s=DEADLINE_S, policy=POLICY) as client,
        Asking(client) as asking,
    ):
        os.kill(pid, signal.SIGSTOP)
        try:
            state = is_rested_and_others_answer(asking, first)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert state().cut >= 1 or state().probes >= 1
        asking.until(50, lambda: not state().resting)
        answered = state().answered
        asking.until(50, lambda: state().answered > answered + 10)
        assert not asking.failed


@proves_fault(
    area="servers",
    fault="the network drops or resets one replica's connections",
    happens="as if it hung",
    cure="nothing",
)
@pytest.mark.parametrize("fault", ["drop", "reset"])
@pytest.mark.parametrize("scheme", ["http", "brpc"])
def test_a_network_that_drops_or_resets(scheme, fault):
    with loop_in_thread() as call, process(scheme) as (behind, _), process(scheme) as (second, _):
        relay = Relay(urlsplit(behind).port)
        server = call(relay.start())
        first = f"{scheme}://127.0.0.1:{relay.port}"
        with Client(first, second, timeout_s=DEADLINE_S, policy=POLICY) as client, Asking(client) as asking:
            if fault == "reset":
                call(relay.reset())
            else:
                relay.fault = "drop"
            state = is_rested_and_others_answer(asking, first)
            relay.fault = ""
            asking.until(50, lambda: not state().resting)
            answered = state().answered
            asking.until(50, lambda: state().answered > answered + 10)
            assert not asking.failed

        async def close():
            server.close()
            await relay.reset()

        call(close())


def test_a_client_that_starts_while_one_hangs():
    with process("http") as (first, pid), process("http") as (second, _):
        os.kill(pid, signal.SIGSTOP)
        with Client(first, second, timeout_s=DEADLINE_S, policy=POLICY) as client:
            begun = time.monotonic()
            assert client.predict(ROWS).endpoint == second
            assert time.monotonic() - begun < DEADLINE_S / 4
            assert states(client)[0].resting


def test_all_servers_hang():
    with (
        process("http") as (first, one),
        process("http") as (second, two),
        Client(first, second, timeout_s=1.0, policy=POLICY) as client,
    ):
        client.predict(ROWS, timeout_s=DEADLINE_S)
        for pid in (one, two):
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DeadlineExceeded):
            client.predict(ROWS)
        os.kill(two, signal.SIGCONT)
        assert client.predict(ROWS, timeout_s=DEADLINE_S).endpoint == second
