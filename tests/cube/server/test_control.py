"""Upstream's control service, mapped on named versions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
import requests

from tests.cube import plain_wire as plain

pytestmark = pytest.mark.parts


class Controlled:
    def __init__(self, server):
        self.server = server
        self.url = f"http://127.0.0.1:{server.port}/ControlService/cmd"

    def __call__(self, **command: object) -> tuple[int, str]:
        answer = requests.post(self.url, data=json.dumps(command), timeout=5)
        return answer.status_code, answer.text

    def status(self) -> dict[str, object]:
        code, body = self(cmd="status")
        assert code == 200
        return json.loads(body)

    def answers(self) -> str:
        url = self.url.replace("ControlService/cmd", "DictService/seek")
        return requests.post(url, json={"keys": [1], "version_required": True}, timeout=5).json()["version"]


@pytest.fixture
def control(shard, files):
    files.versions = {"101": {1: (9.0, 9.0)}, "102": {1: (7.0, 7.0)}}
    return Controlled(shard)


def loaded(control: Controlled) -> set[str]:
    return {version.name for version in control.server.versions()}


def test_load_enable_unload(control):
    assert control.status() == {"cur_version": "100", "bg_version": "", "status": 0}
    assert control(cmd="bg_load_base", version_path="/101") == (200, "null")
    assert control.status() == {"cur_version": "100", "bg_version": "101", "status": 0}
    assert control.answers() == "100"
    assert control(cmd="enable", version="101") == (200, "null")
    assert control.answers() == "101"
    assert control.status() == {"cur_version": "101", "bg_version": "100", "status": 0}
    assert control(cmd="bg_unload") == (200, "null")
    assert control.status() == {"cur_version": "101", "bg_version": "", "status": 0}
    assert loaded(control) == {"101"}


def test_switch_swaps_and_swaps_back(control):
    assert control(cmd="bg_switch") == (500, "null"), "nothing to switch to"
    control(cmd="bg_load_base", version_path="/101")
    for expected in ("101", "100", "101"):
        assert control(cmd="bg_switch") == (200, "null")
        assert control.answers() == expected


def test_a_load_retires_the_background_version_first(control):
    control(cmd="bg_load_base", version_path="/101")
    assert control(cmd="bg_load_base", version_path="/102") == (200, "null")
    assert loaded(control) == {"100", "102"}
    assert control(cmd="bg_load_base", version_path="/nothing") == (500, "null")
    assert control.status()["bg_version"] == ""
    assert loaded(control) == {"100"}


def test_enable(control):
    assert control(cmd="enable", version="100") == (200, "null"), "it is current already"
    assert control(cmd="enable", version="101") == (500, "null"), "it is not loaded"
    assert control(cmd="enable") == (500, "null")


@pytest.mark.parametrize("command", ["reload_base", "reload_patch"])
def test_reload_loads_switches_and_unloads(control, command):
    assert control(cmd=command, version_path="/101") == (200, "null")
    assert loaded(control) == {"101"}
    assert control.answers() == "101"


def test_a_failed_reload_says_so_and_keeps_what_runs(control):
    assert control(cmd="reload_base", version_path="/nothing") == (500, "null")
    assert control.answers() == "100"


@pytest.mark.parametrize("path", ["101", "", "/", "//", "/101/", "/../101", "/x/../../101", "/./101", "/a\0b", None, 5])
def test_version_paths_that_are_refused(control, path, files):
    assert control(cmd="bg_load_base", version_path=path) == (500, "null")
    assert files.loads == 0


def test_a_version_that_is_loaded_is_not_loaded_again(control, files):
    assert control(cmd="bg_load_base", version_path="/100") == (200, "null")
    assert files.loads == 0
    assert control(cmd="bg_unload") == (200, "null")
    assert control.answers() == "100", "the active one stays"


@pytest.mark.parametrize("body", ["", "null", "[]", "5", "{", '{"cmd":5}', '{"cmd":null}', "{}"])
def test_no_command_is_400_with_an_empty_body(control, body):
    answer = requests.post(control.url, data=body, timeout=5)
    assert (answer.status_code, answer.text) == (400, "")


def test_an_unknown_command_is_500(control):
    assert control(cmd="dance") == (500, "null")


def test_a_patch_needs_something_below_it(start):
    assert Controlled(start())(cmd="bg_load_patch", version_path="/101") == (500, "null")


def test_two_loads_at_once_and_status_meanwhile(control, files):
    running, release = threading.Event(), threading.Event()
    files.before_load = lambda: (running.set(), release.wait(10))
    answers: list[tuple[int, str]] = []
    first = threading.Thread(target=lambda: answers.append(control(cmd="bg_load_base", version_path="/101")))
    first.start()
    try:
        assert running.wait(10)
        assert control(cmd="bg_load_base", version_path="/102") == (500, "null"), "one at a time; refused at once"
        assert control.status()["status"] == 1
        assert control.answers() == "100", "lookups go on"
    finally:
        release.set()
        first.join()
    assert answers == [(200, "null")]
    assert control.status() == {"cur_version": "100", "bg_version": "101", "status": 0}


def test_over_baidu_std_the_command_is_the_attachment(control):
    def call(command: str) -> plain.Response:
        body = command.encode()
        meta = plain.text(1, plain.text(1, b"ControlService") + plain.text(2, b"cmd")) + plain.number(4, 3)
        with plain.Peer(control.server.port) as peer:
            return peer.call(plain.frame(meta + plain.number(5, len(body)), body))

    assert call('{"cmd":"enable","version":"101"}').code == 2001
    assert call("{}").code == 2001
    control.server.refuse_control("somebody else keeps the versions")
    refused = call('{"cmd":"bg_unload"}')
    assert (refused.code, refused.error) == (1, b"somebody else keeps the versions")
    assert call('{"cmd":"status"}').code == 0
    assert control(cmd="enable", version="100") == (403, '{"error":"somebody else keeps the versions"}')


ELSEWHERE = "198.51.100.1"
IN_A_NETWORK_OF_ITS_OWN = f"""
import subprocess, sys
for command in ("ip link set lo up", "ip addr add {ELSEWHERE}/32 dev lo"):
    subprocess.run(command.split(), check=True)
import requests
from cloudedge.cube import Server, ServerConfig
with Server(ServerConfig(host="{ELSEWHERE}", port=0, remote_control=sys.argv[1] == "True")) as server:
    url = f"http://{{server.address}}"
    control = requests.post(url + "/ControlService/cmd", data='{{"cmd":"status"}}', timeout=5)
    health = requests.get(url + "/health", timeout=5)
    print(control.status_code, health.status_code)
"""


@pytest.mark.parametrize("allowed", [False, True])
def test_commands_from_elsewhere_need_permission(allowed):
    # An address other than loopback, in a network namespace of the test's own: nothing leaves it.
    if not all(map(shutil.which, ("unshare", "ip"))) or os.geteuid() != 0:
        pytest.skip("making a network namespace needs root, unshare and ip")
    program = ["unshare", "--net", sys.executable, "-c", IN_A_NETWORK_OF_ITS_OWN, str(allowed)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["200" if allowed else "403", "200"], done.stderr
