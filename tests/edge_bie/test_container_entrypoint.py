"""The entry-point helper on a stock node: it starts what is whole, signed and not older, and nothing else."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cloudedge.bundle import Bundle, new_key_pair
from cloudedge.edge_bie import container_entrypoint as entry
from cloudedge.edge_bie.model._probe_client import ask_recorded
from cloudedge.errors import InputError
from cloudedge.hub import LocalHub
from tests.edge_bie.fleet.test_probe import PROBES, SIGNATURE, serving
from tests.edge_bie.node.world import PASSPHRASE, SERVER, World, free_port, make_bundle, noise
from tests.models import change_table, make_table

pytestmark = pytest.mark.parts

ENTRY = Path(entry.__file__)
SAYS = "import os, sys; sys.stdout.write(os.environ['CLOUDEDGE_BUNDLE'] + ' ' + os.environ['CLOUDEDGE_HUB'])"


@pytest.fixture
def makes(tmp_path):
    """What makes statements and bundles, without a cloud."""
    key, public = new_key_pair(tmp_path, "release", PASSPHRASE)
    return World(tmp_path, None, None, LocalHub(tmp_path / "far"), key, public, 18082)


def mount(makes, root, bundle, **options):
    """Lay out what a stock node mounts into a container."""
    statement = makes.statement(bundle, **options)
    for blob in (statement.manifest, *statement.blobs):
        hexes = blob.digest.removeprefix("sha256:")
        folder = root / "cloudedge" / "blobs" / f"model-{hexes[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(makes.hub._files.path(f"blobs/sha256/{hexes}"), folder / f"sha256-{hexes}")
    folder = root / "cloudedge" / "statement"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "statement.json").write_bytes(statement.to_bytes())
    (folder / "statement.sig").write_bytes(base64.b64encode(statement.sign(makes.key, PASSPHRASE)))
    return statement


def start(root, *options, python=sys.executable, env=None):
    environment = {"PATH": os.environ["PATH"], "CLOUDEDGE_ROOT": str(root), **(env or {})}
    command = [python, str(ENTRY), *options, "--", sys.executable, "-c", SAYS]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


TRIED = {
    "right": ([[4.0, 0.5]], ""),
    "within what is tolerated": ([[4.000001, 0.5]], ""),
    "as Paddle Serving writes it": ("array([[4. , 0.5]], dtype=float32)", ""),
    "as a text": ("[[4.0, 0.5]]", ""),
    "another number": ([[5.0, 0.5]], "fetch_0 is off by 1"),
    "another shape": ([4.0, 0.5], "fetch_0 has shape [2]"),
    "nothing": (None, "fetch_0 is not among what it answers"),
    "words": ("a dog", "fetch_0 is no array of numbers"),
    "an empty array": ("array([], shape=(0, 2), dtype=float32)", "fetch_0 has shape [0, 2]"),
}


@pytest.mark.parametrize("path", ["/v1/predict", "/yolov3/prediction"])
@pytest.mark.parametrize(("answer", "complaint"), TRIED.values(), ids=TRIED)
def test_the_helper_judges_answers_as_the_control_side_does(tmp_path, answer, complaint, path):
    (tmp_path / ".bundle").mkdir()
    (tmp_path / ".bundle/probes.json").write_text(PROBES.model_dump_json())
    (tmp_path / ".bundle/signature.json").write_text(SIGNATURE.model_dump_json())
    pipeline = {"err_no": 0, "key": ["y"] if answer is not None else [], "value": [answer]}
    body = {"outputs": {} if answer is None else {"y": answer}} if path == "/v1/predict" else pipeline
    with serving({path: (200, body)}) as port:
        base = f"http://127.0.0.1:{port}"
        for ask, error in (
            (lambda: entry.ask(base, "yolov3", str(tmp_path)), entry.Refused),
            (lambda: ask_recorded(base, "yolov3", PROBES, SIGNATURE, timeout_s=10), InputError),
        ):
            if complaint:
                with pytest.raises(error) as caught:
                    ask()
                assert complaint in str(caught.value)
            else:
                ask()


ON_TRIAL = {
    "right": ({}, 0, ""),
    "wrong": ({"wrong": True}, 1, "y is off by 1"),
    "it crashes": ({"crash": True}, 1, "on trial the server ended with exit code 1"),
}


@pytest.mark.parametrize(("how", "code", "complaint"), ON_TRIAL.values(), ids=ON_TRIAL)
def test_on_trial_a_server_is_started_asked_and_ended(makes, tmp_path, how, code, complaint):
    root, port = tmp_path / "root", free_port()
    mount(makes, root, make_bundle(makes.hub, tmp_path, 3, **how))
    (tmp_path / "server.py").write_text(SERVER)
    environment = {
        "PATH": os.environ["PATH"], "CLOUDEDGE_ROOT": str(root), "CLOUDEDGE_SERVICE": "yolov3", "PORT": str(port),
        "CLOUDEDGE_PORT": str(port),
    }  # fmt: skip
    command = [sys.executable, str(ENTRY), "--key", str(makes.public), "--trial", "--", sys.executable, "server.py"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, complaint in done.stderr) == (code, True), done.stderr
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_a_server_that_never_answers_is_given_up(makes, tmp_path):
    root = tmp_path / "root"
    mount(makes, root, make_bundle(makes.hub, tmp_path, 3))
    environment = {"PATH": os.environ["PATH"], "CLOUDEDGE_ROOT": str(root), "CLOUDEDGE_PORT": str(free_port())}
    options = ["--key", str(makes.public), "--trial", "--trial-s", "1"]
    command = [sys.executable, str(ENTRY), *options, "--", "sleep", "600"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "did not answer within 1 s" in done.stderr


def without_cryptography(tmp_path):
    """Return an environment in which the package cannot be imported."""
    folder = tmp_path / "hidden" / "cryptography"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError")
    return {"PYTHONPATH": str(folder.parent)}


def test_it_stays_within_python_3_6_and_bies_templates():
    text = ENTRY.read_text()
    ast.parse(text, feature_version=(3, 6))
    assert "{{" not in text
    assert "cloudedge" not in {
        (node.module or "").partition(".")[0] for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)
    }


def test_a_whole_revision_starts_with_its_model_folder_and_layout(makes, tmp_path):
    first = make_table(rows=300)
    v1 = make_bundle(makes.hub, tmp_path, 1, files={"w.bin": noise(5000, 1)}, sparse={"emb": first})
    second = change_table(first, seed=5)
    v2 = make_bundle(makes.hub, tmp_path, 2, files={"w.bin": noise(5000, 1)}, sparse={"emb": second}, parent=v1)
    assert len(v2.table_layers["emb"]) == 2
    root = tmp_path / "root"
    mount(makes, root, v2)
    done = start(root, "--key", str(makes.public))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"yolov3@{v2.digest} {root}/cloudedge/hub"
    model = root / "home/work/yolov3"
    assert (model / "w.bin").read_bytes() == noise(5000, 1)
    assert json.loads((model / "model.json").read_text())["version"] == 2
    assert (model / ".bundle/probes.json").is_file()
    # Tables with their deltas are read from the layout, as `cloudedge serve --hub` does it.
    opened = Bundle.open(f"yolov3@{v2.digest}", hub=LocalHub(root / "cloudedge/hub"))
    opened.verify(deep=True)
    assert np.array_equal(opened.sparse["emb"].keys, second["keys"])


@pytest.mark.parametrize("checker", ["cryptography", "openssl", "neither"])
def test_who_signed_is_checked_by_what_there_is(makes, tmp_path, checker):
    root = tmp_path / "root"
    mount(makes, root, make_bundle(makes.hub, tmp_path, 1))
    env = {} if checker == "cryptography" else without_cryptography(tmp_path)
    if checker == "neither":
        env["PATH"] = str(tmp_path)
    elif checker == "openssl" and shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    good = start(root, "--key", str(makes.public), env=env)
    if checker == "neither":
        assert good.returncode == 1
        assert "neither the package cryptography nor the program openssl" in good.stderr
        return
    assert good.returncode == 0, good.stderr
    _, other = new_key_pair(tmp_path, "other", None)
    bad = start(root, "--key", str(other), env=env)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "was not signed with" in bad.stderr


def test_without_a_key_it_starts_only_when_told_to(makes, tmp_path):
    root = tmp_path / "root"
    mount(makes, root, make_bundle(makes.hub, tmp_path, 1))
    assert "no key" in start(root).stderr
    assert start(root, "--allow-unsigned").returncode == 0


def test_damage_is_refused_and_an_older_number_too(makes, tmp_path):
    root = tmp_path / "root"
    v1, v2 = (make_bundle(makes.hub, tmp_path, version, files={"w.bin": noise(3000, version)}) for version in (1, 2))
    mount(makes, root, v1)
    key = ("--key", str(makes.public))
    assert start(root, *key).returncode == 0
    mount(makes, root, v2)
    assert start(root, *key).returncode == 0
    assert start(root, *key).returncode == 0  # the same one again, after a restart
    mount(makes, root, v1, sequence=1)
    assert "number 1; number 2 was accepted before" in start(root, *key).stderr
    mount(makes, root, v1, sequence=2)
    assert "number 2; number 2 was accepted" in start(root, *key).stderr
    mount(makes, root, v1)
    layer = v1.dense_layers["w.bin"].digest.removeprefix("sha256:")
    (blob,) = (root / "cloudedge/blobs").glob(f"*/sha256-{layer}")
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    assert "cut short, or changed" in start(root, *key).stderr
    blob.unlink()
    assert "is not here" in start(root, *key).stderr
    statement = root / "cloudedge/statement/statement.json"
    statement.write_bytes(statement.read_bytes().replace(b'"sequence":3', b'"sequence":9'))
    assert "was not signed with" in start(root, *key).stderr


def test_a_number_that_cannot_be_kept_is_a_reason_not_to_start_and_says_what_to_do(makes, tmp_path):
    root = tmp_path / "root"
    mount(makes, root, make_bundle(makes.hub, tmp_path, 1))
    (tmp_path / "file").write_text("no folder")
    done = start(root, "--key", str(makes.public), "--state", str(tmp_path / "file" / "state"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"Let user {os.getuid()} write to the node's folder that `edge.state` names." in done.stderr


def test_an_unpacking_that_was_cut_off_is_mended(makes, tmp_path):
    root = tmp_path / "root"
    v1 = make_bundle(makes.hub, tmp_path, 1, files={"w.bin": noise(3000, 1)})
    mount(makes, root, v1)
    model = root / "home/work/yolov3"
    model.mkdir(parents=True)
    (model / "w.bin").write_bytes(b"half of it")
    (model / "server.log").write_text("kept")
    assert start(root, "--key", str(makes.public)).returncode == 0
    assert hashlib.sha256((model / "w.bin").read_bytes()).digest() == hashlib.sha256(noise(3000, 1)).digest()
    assert (model / "server.log").read_text() == "kept"


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.9"])
def test_it_runs_on_the_pythons_of_serving_images(makes, tmp_path, version):
    candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")]
    works = [
        path
        for path in filter(None, candidates)
        if not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode  # a shim may lead nowhere
    ]
    if not works:
        pytest.skip(f"python{version} is not installed")
    found = works[0]
    root = tmp_path / "root"
    mount(makes, root, make_bundle(makes.hub, tmp_path, 1, files={"w.bin": noise(3000, 1)}))
    done = start(root, "--key", str(makes.public), python=str(found))
    assert done.returncode == 0, done.stderr
    assert (root / "home/work/yolov3/w.bin").read_bytes() == noise(3000, 1)
    (blob, *_) = (root / "cloudedge/blobs").glob("*/sha256-*")
    blob.write_bytes(b"?")
    assert "cut short, or changed" in start(root, "--key", str(makes.public), python=str(found)).stderr
