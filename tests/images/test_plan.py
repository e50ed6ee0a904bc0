"""What is built and pushed, decided without an engine; and what is said when it cannot be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloudedge.errors import InputError, NotFound, Rejected, Unavailable
from cloudedge.images import (
    KINDS,
    Build,
    dockerfiles_folder,
    kinds_of,
    local_name,
    lock_wheels,
    plan_build,
    plan_push,
    wheel_commands,
)
from cloudedge.images._build import failure
from cloudedge.images._catalogue import with_extras
from cloudedge.images._push import Layers, Pushed, refusal


@pytest.fixture
def wheels(tmp_path):
    for name in ("cloudedge-1-py3-none-any.whl", "paddle_serving_server-0.9.0-py3-none-any.whl"):
        (tmp_path / name).touch()
    lock_wheels(tmp_path)
    return tmp_path


@pytest.mark.rules
@pytest.mark.parametrize("kind", KINDS)
def test_every_image_is_small_and_no_root(kind):
    text = (dockerfiles_folder() / f"{kind}.Dockerfile").read_text()
    assert len(re.findall(r"^FROM \$\{BASE\}", text, flags=re.MULTILINE)) == 2, "what builds stays out of the image"
    final = text.rpartition("\nFROM ")[2]
    assert "\nUSER 10001\n" in final
    assert f"\nLABEL cloudedge.image={kind}\n" in final
    assert ("\nHEALTHCHECK " in final) == (kind not in {"trainer", "pipeline"})


@pytest.mark.rules
def test_all_are_named_once_and_in_order():
    assert kinds_of(["all", "cube"]) == list(KINDS)
    assert kinds_of(["serving", "cube", "serving"]) == ["cube", "serving"]
    with pytest.raises(InputError, match="image 'server' does not exist") as caught:
        kinds_of(["server"])
    assert "trainer" in caught.value.hint


@pytest.mark.rules
def test_what_is_named_for_one_image_goes_before_what_is_named_for_all(wheels):
    planned = plan_build(
        KINDS,
        tag="7",
        bases=["paddle-serving=old", "new"],
        wheelhouses=[f"trainer={wheels}"],
        extras=["s3"],
    )
    assert [(image, how.base, how.requirement, how.is_offline) for image, how in planned] == [
        ("cloudedge-cube:7", "new", "cloudedge[s3]", False),
        ("cloudedge-serving:7", "new", "cloudedge[serve,paddle,s3]", False),
        ("cloudedge-paddle-serving:7", "old", "", False),
        ("cloudedge-trainer:7", "new", "cloudedge[paddle,visualdl,s3]", True),
        ("cloudedge-pipeline:7", "new", "cloudedge[k8s,s3,visualdl]", False),
    ]
    assert planned[1][1].arguments == {"BASE": "new", "REQUIREMENT": "cloudedge[serve,paddle,s3]"}
    assert planned[2][1].arguments == {"BASE": "old"}


@pytest.mark.rules
def test_defaults_are_the_dockerfiles_own():
    ((image, how),) = plan_build(["paddle-serving"])
    assert (image, how.base) == ("cloudedge-paddle-serving:0.9.0", "python:3.9-slim-bullseye")
    assert local_name("cube") == "cloudedge-cube:latest"


@pytest.mark.rules
def test_a_base_for_an_image_that_is_not_asked_for():
    with pytest.raises(InputError, match="not requested"):
        plan_build(["cube"], bases=["serving=x"])


@pytest.mark.rules
@pytest.mark.parametrize("kind", KINDS)
def test_a_wheelhouse_without_the_wheel_is_refused_at_once(kind, tmp_path):
    """Or pip would go to the network, or fail minutes later."""
    with pytest.raises(InputError, match="has no wheel of") as caught:
        Build(kind, wheelhouse=tmp_path)
    assert caught.value.hint == f"Run `cloudedge image wheelhouse {tmp_path} {kind}`."
    with pytest.raises(InputError, match="is not a directory"):
        Build(kind, wheelhouse=tmp_path / "none")
    with pytest.raises(InputError, match=f"{kind}.Dockerfile does not exist"):
        Build(kind, dockerfiles=tmp_path)


@pytest.mark.rules
@pytest.mark.parametrize(
    ("requirement", "extras", "expected"),
    [
        ("cloudedge", [], "cloudedge"),
        ("cloudedge", ["s3"], "cloudedge[s3]"),
        ("cloudedge[serve,paddle]", ["s3", "serve"], "cloudedge[serve,paddle,s3]"),
        ("/src/checkout", ["s3"], "/src/checkout[s3]"),
    ],
)
def test_extras(requirement, extras, expected):
    assert with_extras(requirement, extras) == expected


@pytest.mark.rules
def test_wheels_of_our_images_share_a_directory():
    ((*command, what),) = wheel_commands(Path("w"), ["cube", "serving", "trainer"], source=Path("/src"), extras=["s3"])
    assert command[0] == sys.executable
    assert command[-2:] == ["--wheel-dir", "w"]
    assert what == "/src[paddle,s3,serve,visualdl]"
    assert command[command.index("--constraint") + 1] == str(dockerfiles_folder() / "constraints.txt")
    assert wheel_commands(Path("w"), ["cube"], python="python3.12")[0][0] == "python3.12"


@pytest.mark.rules
def test_wheels_of_paddle_serving_do_not():
    first, second = wheel_commands(Path("w"), ["paddle-serving"])
    assert first[0] == "python3.9"
    assert first[-1].endswith("requirements.txt")
    assert "--no-deps" in second
    with pytest.raises(InputError, match=r"Python 3\.9"):
        wheel_commands(Path("w"), KINDS)


@pytest.mark.rules
def test_where_images_are_pushed_to():
    (planned,) = plan_push(["serving"], "registry.example:5000/ads/", tag="3")
    assert (planned.source, planned.target) == (
        "cloudedge-serving:3",
        "registry.example:5000/ads/cloudedge-serving:3",
    )
    pushed = Pushed("serving", planned.target, "sha256:abc")
    assert pushed.pinned == "registry.example:5000/ads/cloudedge-serving@sha256:abc"


@pytest.mark.rules
@pytest.mark.parametrize("registry", ["https://registry.example", "", "a@b", "Registry.example"])
def test_what_is_no_registry(registry):
    with pytest.raises(InputError, match="not a registry"):
        plan_push(["cube"], registry)


REFUSALS = {
    "unauthorized: authentication required": (Rejected, "docker login r.example:5000"),
    "denied: requested access to the resource is denied": (Rejected, "docker login r.example:5000"),
    "no basic auth credentials": (Rejected, "docker login r.example:5000"),
    'Get "https://r.example:5000/v2/": http: server gave HTTP response to HTTPS client': (
        Rejected,
        "insecure-registries",
    ),
    "x509: certificate signed by unknown authority": (Rejected, "certs.d/r.example:5000"),
    "dial tcp 127.0.0.1:5000: connect: connection refused": (Unavailable, "the registry at r.example:5000 runs"),
    "dial tcp: lookup r.example: no such host": (Unavailable, "Check that the registry"),
    "received unexpected HTTP status: 507 Insufficient Storage": (Rejected, "registry's operator"),
}


@pytest.mark.rules
@pytest.mark.parametrize(("said", "expected"), REFUSALS.items())
def test_a_refused_push_says_what_to_do(said, expected):
    kind, hint = expected
    error = refusal("r.example:5000/cloudedge-cube:1", said)
    assert type(error) is kind
    assert hint in error.hint
    assert said in error.message


@pytest.mark.rules
def test_bytes_of_layers_that_are_pushed_at_the_same_time_add_up():
    told = []
    layers = Layers(lambda settled, total: told.append((settled, total)))
    events = [
        {"status": "The push refers to repository [x]"},
        {"id": "a", "status": "Preparing", "progressDetail": {}},
        {"id": "a", "status": "Pushing", "progressDetail": {"current": 10, "total": 100}},
        {"id": "b", "status": "Pushing", "progressDetail": {"current": 5, "total": 50}},
        {"id": "b", "status": "Layer already exists", "progressDetail": {}},
        {"id": "a", "status": "Pushing", "progressDetail": {"current": 120, "total": 100}},
        {"progressDetail": {}, "aux": {"Tag": "1", "Digest": "sha256:abc", "Size": 7}},
    ]
    for event in events:
        layers.take(event)
    assert told == [(10, 100), (5, 150), (110, 170)]
    assert layers.digest == "sha256:abc"


@pytest.mark.rules
def test_a_failed_build_says_what_to_do():
    how = Build("trainer", base="my-base")
    error = failure("i", how, "pull access denied", ["Step 1/9 : ARG BASE=x", "Step 2/9 : FROM ${BASE} AS build"])
    assert type(error) is NotFound
    assert "my-base" in error.message
    assert "--base" in error.hint
    said = ["Step 5/9 : RUN pip", "ERROR: No matching distribution found for paddlepaddle>=3"]
    error = failure("i", how, "returned a non-zero code: 1", said)
    assert type(error) is Unavailable
    assert "cloudedge image wheelhouse DIR trainer" in error.hint
    assert said[-1] in error.hint


def cloudedge(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "cloudedge", "image", *map(str, arguments)],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.parts
def test_dry_runs_need_no_engine(wheels):
    nobody = {"DOCKER_HOST": f"unix://{wheels}/none"}
    done = cloudedge("build", "all", "--wheelhouse", wheels, "--dry-run", "--json", **nobody)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["image"].partition(":")[0] for row in rows] == [f"cloudedge-{kind}" for kind in KINDS]
    assert {row["wheels"] for row in rows} == {str(wheels)}
    done = cloudedge("push", "cube", "--registry", "r.example", "--dry-run", "--json", **nobody)
    assert json.loads(done.stdout)[0]["target"] == "r.example/cloudedge-cube:latest"
    done = cloudedge("wheelhouse", "w", "cube", "--source", "/src", "--dry-run", **nobody)
    assert done.stdout.endswith(" --wheel-dir w /src\n")


@pytest.mark.parts
@pytest.mark.parametrize("command", [["build", "cube"], ["push", "cube", "--registry", "r.example"], ["list"]])
def test_no_engine(command, tmp_path):
    pytest.importorskip("docker")
    done = cloudedge(*command, DOCKER_HOST=f"unix://{tmp_path}/none")
    assert done.returncode == 1
    assert "no Docker engine answers" in done.stderr
    assert "DOCKER_HOST" in done.stderr


@pytest.mark.parts
def test_a_failing_pip_is_quoted(tmp_path):
    done = cloudedge("wheelhouse", tmp_path / "w", "cube", "--source", tmp_path / "nothing")
    assert done.returncode == 1
    assert "cannot make wheels" in done.stderr
    assert cloudedge("wheelhouse", tmp_path / "w", "cube", "--python", "no-such-python").returncode == 1
