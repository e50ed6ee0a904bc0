"""What is done to make a service run as wanted, decided without an engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from cloudedge.errors import InputError
from cloudedge.serving.docker import Found, WantedService, own_runtime, plan_run, plan_stop, stock_runtime
from cloudedge.serving.docker._containers import _target

pytestmark = pytest.mark.rules

WANTED = WantedService("ctr", "image", "sha256:1", ("ctr:1",), {"/models": "/hub"}, 9393, 8000)
OURS = Found(WANTED.model_container, "model", running=True, ready=True)
FRONT = Found(WANTED.front_container, "front", running=True, ready=True, host_port=8000)
OLD = Found("cloudedge-ctr-old", "model", running=True, ready=True)
DEAD = Found("cloudedge-ctr-dead", "model", running=False)

CASES = {
    "no image": (replace(WANTED, image_id=""), [], "build start-model await-ready start-front"),
    "nothing runs": (WANTED, [], "start-model await-ready start-front"),
    "all is well": (WANTED, [OURS, FRONT], "switch"),
    "another model runs": (WANTED, [OLD, FRONT], "start-model await-ready switch drain remove:cloudedge-ctr-old"),
    "cut short before the new one was ready": (
        WANTED, [OLD, FRONT, replace(OURS, ready=False)], "await-ready switch drain remove:cloudedge-ctr-old",
    ),
    "cut short before the switch": (WANTED, [OLD, FRONT, OURS], "switch drain remove:cloudedge-ctr-old"),
    "cut short before the old one was removed": (WANTED, [OURS, FRONT, DEAD], "switch remove:cloudedge-ctr-dead"),
    "ours has ended": (
        WANTED, [replace(OURS, running=False), FRONT], f"remove:{OURS.name} start-model await-ready switch",
    ),
    "the front has ended": (WANTED, [OURS, replace(FRONT, running=False)], f"remove:{FRONT.name} start-front"),
    "another port": (WANTED, [OURS, replace(FRONT, host_port=1)], f"remove:{FRONT.name} start-front"),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "found", "expected"), CASES.values(), ids=CASES.keys())
def test_steps(wanted, found, expected):
    steps = plan_run(wanted, found)
    assert " ".join(s.kind if s.kind != "remove" else f"remove:{s.subject}" for s in steps) == expected
    assert all(step.reason for step in steps)


def test_nobody_is_cut_off():
    """Whatever is found: nothing that ran is removed before the new one is ready and the front turned to it."""
    for _, found, _ in CASES.values():
        kinds = [step.kind for step in plan_run(WANTED, found)]
        subjects = [step.subject for step in plan_run(WANTED, found)]
        for running in (container.name for container in found if container.role == "model" and container.running):
            if running in subjects:
                turn = kinds.index("switch") if "switch" in kinds else kinds.index("start-front")
                assert subjects.index(running) > turn


@pytest.mark.parametrize(
    "changed",
    [{"command": ("ctr:2",)}, {"image_id": "sha256:2"}, {"mounts": {"/models": "/other"}}, {"environment": {"A": "b"}}],
    ids=["command", "image", "mount", "environment"],
)
def test_what_makes_another_container(changed):
    assert replace(WANTED, **changed).model_container != WANTED.model_container


def test_another_port_is_not_another_container():
    assert replace(WANTED, host_port=8001).model_container == WANTED.model_container


def test_other_bytes_under_the_same_name_are_another_container(tmp_path):
    one, other = (own_runtime("ctr", "ctr:1", digest, tmp_path, port=1) for digest in ("sha256:a", "sha256:b"))
    assert one.model_container != other.model_container


def test_every_protocol_of_our_runtime_is_reached(tmp_path):
    wanted = own_runtime("ctr", "ctr:1", "sha256:a", tmp_path, port=1)
    said = dict(pairwise(wanted.command))
    assert (said["--port"], said["--grpc-port"]) == (str(wanted.container_port), str(wanted.grpc_port))
    targets = {path.rpartition("/")[2]: address.decode().strip() for path, address in _target(wanted).items()}
    assert targets == {"target": f"{wanted.model_container}:9393", "target.grpc": f"{wanted.model_container}:9395"}


def test_what_our_runtime_is_given_is_mounted_and_part_of_what_it_is(tmp_path):
    (tmp_path / "cube.conf").write_text("[]")
    (tmp_path / "my_hooks.py").write_text("class MyOp: ...")

    def made(**options):
        return own_runtime("ctr", "ctr:1", "sha256:a", tmp_path, port=1, **options)

    hooks = f"{tmp_path}/my_hooks.py:MyOp"
    wanted = made(cube=tmp_path / "cube.conf", on_missing_shard="default", ops=hooks)
    assert wanted.command[-6:] == (
        "--cube", "/cube/cube.conf", "--on-missing-shard", "default", "--ops", "/hooks/my_hooks.py:MyOp",
    )  # fmt: skip
    assert wanted.mounts["/cube/cube.conf"] == str(tmp_path / "cube.conf")
    assert wanted.mounts["/hooks/my_hooks.py"] == str(tmp_path / "my_hooks.py")
    assert made(ops="installed.hooks:MyOp").command[-1] == "installed.hooks:MyOp"
    for option, file in ({"ops": hooks}, "my_hooks.py"), ({"cube": tmp_path / "cube.conf"}, "cube.conf"):
        before = made(**option).model_container
        assert made(**option).model_container == before
        (tmp_path / file).write_text("something else")
        assert made(**option).model_container != before
    with pytest.raises(InputError, match=r"none\.conf"):
        made(cube=tmp_path / "none.conf")


def test_the_front_ends_first():
    assert plan_stop([OURS, OLD, FRONT])[0].subject == FRONT.name


def test_stock_wants_its_own_files(tmp_path):
    with pytest.raises(InputError, match=r"serving_server_conf\.prototxt"):
        stock_runtime("ctr", tmp_path, port=1)
    (tmp_path / "serving_server").mkdir()
    (tmp_path / "serving_server/serving_server_conf.prototxt").touch()
    assert stock_runtime("ctr", tmp_path, port=1).mounts == {"/models": str(tmp_path / "serving_server")}
