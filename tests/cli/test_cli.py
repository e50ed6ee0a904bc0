"""The command line as a stranger uses it: real processes, exit codes, what goes where."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cloudedge.cli import app
from cloudedge.cli._context import read_token
from cloudedge.errors import ConfigError, StorageError
from tests.models import change_table, make_model, make_table

CLOUDEDGE = str(Path(sys.executable).with_name("cloudedge"))


def cloudedge(*words, code=0, stdin=None):
    done = subprocess.run([CLOUDEDGE, *map(str, words)], capture_output=True, text=True, check=False, input=stdin)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def data(*words):
    return json.loads(cloudedge(*words, "--json").stdout)


@pytest.fixture
def model(tmp_path):
    return make_model(tmp_path / "model")


@pytest.fixture
def tables(tmp_path):
    table = make_table(3000)
    np.savez(tmp_path / "one.npz", **table)
    np.savez(tmp_path / "two.npz", **change_table(table, seed=1))
    return tmp_path / "one.npz", tmp_path / "two.npz"


@pytest.mark.parts
def test_the_whole_life_of_a_bundle(model, tables, tmp_path):
    one, two = tables
    (tmp_path / "sig.json").write_text('{"feed": [{"name": "x"}], "fetch": [{"name": "y"}]}')
    (tmp_path / "probe.json").write_text('[{"feed": {"x": [1]}, "expect": {"y": [2]}}]')
    first = data(
        "bundle", "pack", model, "--name", "ctr", "--sparse", f"dict={one}", "--metric", "auc=0.75",
        "--signature", tmp_path / "sig.json", "--probe", tmp_path / "probe.json", "--dataset", "criteo",
    )  # fmt: skip
    assert (first["version"], first["tables"]["dict"]["rows"]) == ("1", 3000)
    assert first["lineage"]["metrics"] == {"auc": 0.75}
    assert first["signature"]["feed"][0]["name"] == "x"
    second = data("bundle", "pack", model, "--name", "ctr", "--sparse", f"dict={two}", "--parent", "ctr:1")
    assert second["tables"]["dict"]["deltas"] == 1
    found = data("bundle", "diff", "ctr:1", "ctr:2")
    assert found["bytes_to_ship"] < 5000
    far = tmp_path / "far"
    planned = data("hub", "push", "ctr:2", far, "--dry-run")
    assert not far.exists()
    pushed = data("hub", "push", "ctr:2", far, "--tag", "prod")
    assert planned == pushed
    assert data("hub", "push", "ctr:2", far)["bytes_sent"] == 0
    assert data("hub", "list", far)["ctr"][0]["digest"] == second["digest"]
    elsewhere = ("--local", tmp_path / "elsewhere")
    assert data("hub", "pull", "ctr:prod", far, *elsewhere)["digest"] == second["digest"]
    assert data("bundle", "verify", "ctr:2", "--deep", *elsewhere)["digest"] == second["digest"]
    cloudedge("bundle", "unpack", "ctr:2", tmp_path / "out", *elsewhere)
    assert (tmp_path / "out/model.pdmodel").read_bytes() == (model / "model.pdmodel").read_bytes()
    zips = [data("bundle", "export", "ctr:2", "--zip", tmp_path / f"{i}.zip")["md5"] for i in range(2)]
    assert zips[0] == zips[1]
    data("hub", "push", "ctr:1", far, "--tag", "prod")
    history = data("hub", "history", "ctr:prod", far)
    assert [(e["digest"], bool(e["until"])) for e in history] == [(second["digest"], True), (first["digest"], False)]
    assert data("hub", "show", "ctr:prod", far)["tags"] == ["1", "prod"]
    cloudedge("hub", "untag", "ctr:2", far)
    kept = data("hub", "gc", far, "--dry-run", "--keep", "0s")
    assert kept["bytes_freed"] > 0
    assert kept["kept"][0]["reasons"] == ["version 1", "tag prod"]
    cloudedge("hub", "gc", far, "--keep", "0s", "--yes")
    assert data("hub", "gc", far, "--dry-run", "--keep", "0s")["deleted"] == []


@pytest.mark.parts
def test_signing(model, tmp_path):
    cloudedge("bundle", "pack", model, "--name", "ctr")
    cloudedge("key", "new", "ann", "--dir", tmp_path)
    cloudedge("key", "new", "bob", "--dir", tmp_path, "--no-passphrase")
    assert (tmp_path / "ann.key").stat().st_mode & 0o777 == 0o600
    cloudedge("bundle", "verify", "ctr", "--key", tmp_path / "ann.pub", code=1)
    cloudedge("bundle", "sign", "ctr", "--key", tmp_path / "ann.key", "--dry-run")
    cloudedge("bundle", "verify", "ctr", "--key", tmp_path / "ann.pub", code=1)
    cloudedge("bundle", "sign", "ctr", "--key", tmp_path / "ann.key")
    cloudedge("bundle", "verify", "ctr", "--key", tmp_path / "ann.pub")
    assert "not signed" not in cloudedge("bundle", "verify", "ctr", "--key", tmp_path / "bob.pub", code=1).stderr
    cloudedge("key", "new", "ann", "--dir", tmp_path, code=1)


@pytest.mark.parts
def test_results_and_words_are_kept_apart(model):
    done = cloudedge("bundle", "pack", model, "--name", "ctr")
    assert done.stdout.startswith("ctr:1 sha256:")
    assert "next: cloudedge hub push ctr:1" in done.stderr


@pytest.mark.parts
def test_dry_runs_change_nothing(model, tmp_path):
    home = tmp_path / "home"
    assert data("bundle", "pack", model, "--name", "ctr", "--dry-run")["version"] == "auto"
    assert not home.exists()
    cloudedge("bundle", "pack", model, "--name", "ctr")
    before = sorted(p.stat().st_mtime_ns for p in home.rglob("*.json"))
    cloudedge("hub", "tag", "ctr:1", "prod", "--dry-run")
    cloudedge("hub", "untag", "ctr:1", "--dry-run")
    cloudedge("hub", "gc", "--dry-run")
    assert "model.pdmodel" in data("bundle", "unpack", "ctr:1", tmp_path / "out", "--dry-run")["files"]
    cloudedge("bundle", "export", "ctr:1", "--zip", tmp_path / "out.zip", "--dry-run")
    cloudedge("key", "new", "--dir", tmp_path, "--dry-run")
    assert not list(tmp_path.glob("out*")) + list(tmp_path.glob("*.key"))
    assert sorted(p.stat().st_mtime_ns for p in home.rglob("*.json")) == before


WRONG = {
    "unknown command": (["bundle", "fly"], 2),
    "missing option": (["bundle", "pack", "x"], 2),
    "bad pair": (["bundle", "pack", ".", "--name", "x", "--sparse", "nope"], 2),
    "bad choice": (["bundle", "pack", ".", "--name", "x", "--on-duplicate", "first"], 2),
    "untag without tag": (["hub", "untag", "ctr"], 2),
    "unknown bundle": (["bundle", "inspect", "ctr:9"], 1),
    "bad reference": (["bundle", "inspect", "C T R"], 1),
    "no hub named": (["hub", "push", "ctr:1"], 1),
    "unknown hub": (["hub", "list", "nowhere"], 1),
    "absent folder": (["bundle", "pack", "/absent", "--name", "x"], 1),
    "bad config": (["config", "check", "/absent.yaml"], 1),
}


@pytest.mark.parts
@pytest.mark.parametrize(("words", "code"), WRONG.values(), ids=WRONG)
def test_exit_codes_and_messages(words, code):
    done = cloudedge(*words, code=code)
    assert done.stdout == ""
    assert done.stderr.strip()


@pytest.mark.parts
def test_tags_move_only_from_where_expected(model):
    digest = data("bundle", "pack", model, "--name", "ctr")["digest"]
    cloudedge("hub", "tag", "ctr:1", "prod", "--expect", digest, code=1)
    cloudedge("hub", "tag", "ctr:1", "prod", "--expect", "none")
    assert data("hub", "tag", "ctr:1", "prod", "--expect", digest)["seq"] == 1


@pytest.mark.parts
def test_gc_asks_before_it_deletes(model):
    cloudedge("bundle", "pack", model, "--name", "ctr")
    cloudedge("hub", "untag", "ctr:1")
    cloudedge("hub", "gc", "--keep", "0s", code=1, stdin="n\n")
    assert data("hub", "gc", "--keep", "0s", "--dry-run")["deleted"]
    cloudedge("hub", "gc", "--keep", "0s", stdin="y\n")
    assert not data("hub", "gc", "--keep", "0s", "--dry-run")["deleted"]


@pytest.mark.parts
def test_copy_between_hubs_named_in_the_configuration(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cloudedge.yaml").write_text("hubs: {a: ./a, b: ./b}\ndefault_hub: a\n")
    cloudedge("config", "check")
    assert data("config", "show")["hubs"]["a"]["url"] == "./a"
    cloudedge("bundle", "pack", model, "--name", "ctr")
    cloudedge("hub", "push", "ctr:1")
    cloudedge("hub", "copy", "ctr:1", "a", "b")
    assert cloudedge("hub", "list", "b").stdout == "ctr\t1\t1\t\n"


@pytest.mark.parts
def test_a_bundle_over_the_limit_is_not_pulled(model, tmp_path, monkeypatch):
    cloudedge("bundle", "pack", model, "--name", "ctr")
    cloudedge("hub", "push", "ctr:1", tmp_path / "far")
    monkeypatch.chdir(tmp_path)
    Path("cloudedge.yaml").write_text("limits: {max_bundle: 1kB}\n")
    assert "max_bundle" in cloudedge("hub", "pull", "ctr:1", tmp_path / "far", code=1).stderr


def commands(group=app, path=()):
    for command in group.registered_commands:
        yield (*path, command.name or command.callback.__name__)
    for sub in group.registered_groups:
        named = (sub.name,) if isinstance(sub.name, str) else ()  # without a name: beside its parent's commands
        yield from commands(sub.typer_instance, (*path, *named))


@pytest.mark.rules
@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_explains_itself(path):
    done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "Usage:" in done.output


@pytest.mark.parts
def test_the_shell_can_complete_commands():
    asked = {"_CLOUDEDGE_COMPLETE": "complete_bash", "COMP_WORDS": "cloudedge hub pu", "COMP_CWORD": "2"}
    done = subprocess.run([CLOUDEDGE], capture_output=True, text=True, check=False, env=os.environ | asked)
    assert done.stdout.split() == ["push", "pull"]


@pytest.mark.rules
def test_a_token_file_holds_a_token(tmp_path):
    file = tmp_path / "token"
    with pytest.raises(StorageError, match="No such file"):
        read_token(file)
    file.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty") as caught:
        read_token(file)
    assert "Write the token" in caught.value.hint
    file.write_text("secret\n")
    assert (read_token(file), read_token(None)) == ("secret", None)
