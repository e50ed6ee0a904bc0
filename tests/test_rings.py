"""The rings: every test is in one, and one of `rules` starts no process and opens no socket."""

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cloudedge.cube import Server
from tests.conftest import pytest_collection_modifyitems


def item(*marks):
    return SimpleNamespace(nodeid="tests/test_x.py::test_y[1]", iter_markers=lambda: iter(marks))


@pytest.mark.rules
@pytest.mark.parametrize("marks", [(), (pytest.mark.timeout,), (pytest.mark.rules, pytest.mark.parts)])
def test_a_test_in_no_ring_or_in_two_is_refused(marks):
    with pytest.raises(pytest.UsageError, match=r"test_x\.py::test_y: (none|parts and rules)\nAdd `pytestmark"):
        pytest_collection_modifyitems([item(pytest.mark.rules), item(*marks)])


@pytest.mark.rules
@pytest.mark.parametrize("marks", [(pytest.mark.parts,), (pytest.mark.rules, pytest.mark.rules)])
def test_a_test_in_one_ring_is_not(marks):
    pytest_collection_modifyitems([item(*marks)])


@pytest.mark.rules
def test_a_rule_cannot_reach_for_real_parts():
    with socket.socket() as one:
        for real in (
            lambda: subprocess.run([sys.executable, "-c", ""], check=True),
            lambda: one.bind(("127.0.0.1", 0)),
            lambda: one.connect(("127.0.0.1", 1)),
            Server,
        ):
            with pytest.raises(pytest.fail.Exception, match="of the ring `rules` calls"):
                real()


@pytest.mark.parts
def test_a_part_can():
    subprocess.run([sys.executable, "-c", ""], check=True)
    socket.create_server(("127.0.0.1", 0)).close()
