"""What every test may use, and the ring that every test is in.

`rules`: decisions, formats and the simulator; no process is started and no socket opened, which is enforced here.
`parts`: real parts of this machine: processes, sockets, Paddle, a Docker engine, real peers.
`cluster`: needs the Kubernetes cluster that CLOUDEDGE_TEST_KUBECONFIG names.

A hub and a configuration of its own come with every test, and none of the user's own settings.
"""

from __future__ import annotations

import multiprocessing.process
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings

from cloudedge.cube import Client, Server
from cloudedge.hub import LocalHub

# How long an example takes says something of the machine, not of the code.
settings.register_profile("cloudedge", deadline=None)
settings.load_profile("cloudedge")

RINGS = ("rules", "parts", "cluster")
NOT_FOR_RULES: list[tuple[Any, str]] = [
    (subprocess.Popen, "__init__"),
    (multiprocessing.process.BaseProcess, "start"),
    (os, "fork"),
    (os, "posix_spawn"),
    (socket.socket, "bind"),
    (socket.socket, "connect"),
    (socket.socket, "connect_ex"),
    (Client, "__init__"),  # these two open their sockets in C++
    (Server, "__init__"),
]
NOT_FOR_RULES_ONCE_LOADED = {
    "grpc": ("server", "insecure_channel", "secure_channel"),
    "grpc.aio": ("server", "insecure_channel", "secure_channel"),
    "uvloop": ("new_event_loop",),
}
"""Of modules that open sockets in C, and that a run may never load."""


def rings_of(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers() if mark.name in RINGS}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses among them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wrong = {item.nodeid.partition("[")[0]: sorted(rings_of(item)) for item in items if len(rings_of(item)) != 1}
    if wrong:
        listed = "\n".join(f"  {test}: {' and '.join(rings) or 'none'}" for test, rings in wrong.items())
        raise pytest.UsageError(
            f"Each test is in one ring: {', '.join(RINGS)}. These are not:\n{listed}\n"
            "Add `pytestmark = pytest.mark.rules` (or `parts`, `cluster`) to the module, or where its tests differ"
            " `@pytest.mark.rules` to each of them. tests/conftest.py says what the rings are."
        )


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        # Neither an Exception nor an OSError: the code under test does not take it for one of its own.
        pytest.fail(f"a test of the ring `rules` calls {what}: without it, or in the ring `parts`")

    return refused


@contextmanager
def _kept_in(item: pytest.Item) -> Iterator[None]:
    """Let a test of the ring `rules` start no process and open no socket."""
    with pytest.MonkeyPatch.context() as patch:
        if rings_of(item) == {"rules"}:
            loaded = [
                (sys.modules[m], name)
                for m, names in NOT_FOR_RULES_ONCE_LOADED.items()
                if m in sys.modules
                for name in names
            ]
            for place, name in NOT_FOR_RULES + loaded:
                patch.setattr(place, name, _refuse(f"{place.__name__}.{name}"))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _kept_in(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _kept_in(item):
        return (yield)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests out of the user's own hub and configuration."""
    monkeypatch.setenv("CLOUDEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLOUDEDGE_CONFIG", raising=False)
    monkeypatch.setenv("CLOUDEDGE_KEY_PASSPHRASE", "a passphrase for tests")


@pytest.fixture
def hub(tmp_path: Path) -> LocalHub:
    return LocalHub(tmp_path / "hub")


@pytest.fixture
def far(tmp_path: Path) -> LocalHub:
    return LocalHub(tmp_path / "far")
