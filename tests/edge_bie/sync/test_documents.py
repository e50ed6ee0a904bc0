"""Documents: what is understood, how the rest is refused, and that writing them is the reverse of reading them."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudedge.config import Config
from cloudedge.edge_bie.client import File, StoredObjects, Text
from cloudedge.edge_bie.sync import desired_state, dump_documents, load_documents
from cloudedge.edge_bie.sync._sync_documents import read_documents
from cloudedge.errors import ConfigError, InputError, NotFound
from cloudedge.hub.objects._directory import DirectoryStore
from tests.edge_bie.sync.samples import EXAMPLE, config, desired, example

pytestmark = pytest.mark.rules


def loaded(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    return load_documents(tmp_path)


BAD = {
    "no kind": ("name: x", "Unable to extract tag"),
    "unknown kind": ("kind: pod\nname: x", "'pod'.*'config'"),
    "unknown key": ("kind: config\nname: x\nfoo: 1", "config.foo: Extra inputs"),
    "number as a text": ("kind: config\nname: x\ntexts: {a: 1}", "expected a string; quote it"),
    "number as a label": ("kind: node\nname: x\nlabels: {a: 1}", "expected a string; quote it"),
    "number as a name": ("kind: config\nname: 12", "expected a string; quote it"),
    "pasted secret": ("kind: secret\nname: x\nvalues: {a: s3cret}", "wanted env:NAME or file:PATH"),
    "pasted password": (
        "kind: registry\nname: x\naddress: a\nusername: u\npassword: s3cret",
        "wanted env:NAME or file:PATH",
    ),
    "path and url": (
        "kind: config\nname: x\nfiles: {a: {path: p, url: u}}",
        "either path, of a file to upload, or url",
    ),
    "digest of a path": ("kind: config\nname: x\nfiles: {a: {path: p, md5: m}}", "are computed"),
    "bad set": ("kind: set\nname: X Y", "set.name"),
    "not yaml": ("a: [", "is not YAML"),
    "a list": ("- 1", "document 1"),
    "twice": ("kind: config\nname: x\n---\nkind: config\nname: x", "config x is in .* already"),
    "two sets": ("kind: set\nname: x\n---\nkind: set\nname: y", "set y is in .* already"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_documents_are_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=f"(?s){message}") as caught:
        loaded(tmp_path, text)
    assert "a.yaml" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_nothing_there(tmp_path):
    with pytest.raises(NotFound):
        load_documents(tmp_path / "absent")
    with pytest.raises(InputError, match="no YAML documents"):
        load_documents(tmp_path)


def test_folders_below_and_empty_documents(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x.yml").write_text("---\nkind: config\nname: xx\n---\n")
    (tmp_path / "notes.txt").write_text("not: [yaml")
    ((document, folder),) = load_documents(tmp_path)
    assert (document.name, folder) == ("xx", tmp_path / "b")


def test_traps_are_refused_before_anything_is_asked(tmp_path):
    with pytest.raises(InputError, match=r"contains '{{'"):
        desired(config(text="{{.X}}"))
    with pytest.raises(InputError, match="Split it into two configs"):
        desired({**config(), "files": {"b": {"url": "https://x/y"}}})
    with pytest.raises(InputError, match="not have BIE's form"):
        desired({"kind": "app", "name": "xx", "services": [1]})


def test_files_are_hashed_and_texts_read_and_nothing_is_sent(tmp_path):
    folder = example(tmp_path / "f", b"zip")
    objects = StoredObjects(DirectoryStore(tmp_path / "objects"), "http://files.example")
    state = desired_state(load_documents(folder), objects)
    (model,) = state.configs["paddle-yolov3-model"].items.values()
    assert model == File(objects.url_of(state.uploads[0].digest), model.md5, "zip", state.uploads[0].digest[7:])
    assert state.configs["paddle-yolov3-run-script"].items["run.sh"] == Text((folder / "scripts/run.sh").read_text())
    assert state.apps["paddle-serving"].configs.keys() == {"paddle-yolov3-run-script", "paddle-yolov3-model"}
    assert state.apps["paddle-serving"].replica == 1
    assert all(each.labels["cloudedge-set"] == "seed" for each in (*state.configs.values(), *state.apps.values()))
    assert not (tmp_path / "objects").exists()
    with pytest.raises(ConfigError, match="no storage for files"):
        desired_state(load_documents(folder))


def test_resolved_documents_mean_the_same_without_the_folder(tmp_path):
    folder = example(tmp_path / "f")
    objects = StoredObjects(DirectoryStore(tmp_path / "objects"), "http://files.example")
    state = desired_state(load_documents(folder), objects)
    text = dump_documents(state.documents)
    again = desired_state([(d, tmp_path) for d in read_documents(yaml.safe_load_all(text))])
    assert (again.configs, again.apps, again.labels, again.set) == (state.configs, state.apps, state.labels, state.set)
    assert again.documents == state.documents


def test_a_missing_file_and_a_missing_secret(tmp_path):
    objects = StoredObjects(DirectoryStore(tmp_path / "objects"), "http://files.example")
    with pytest.raises(NotFound, match=r"model\.zip does not exist"):
        desired_state(load_documents(EXAMPLE), objects)
    with pytest.raises(ConfigError, match="NOT_SET is not set"):
        desired({"kind": "secret", "name": "xx", "values": {"a": "env:NOT_SET"}})


words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t"), max_size=20)
keys = st.from_regex(r"[-._a-zA-Z0-9]{1,8}", fullmatch=True)


@settings(max_examples=60)
@given(
    st.dictionaries(keys, words, max_size=3),
    st.dictionaries(keys, words | st.none(), max_size=3),
    words,
    st.dictionaries(st.sampled_from(["selector", "description", "nodeSelector"]), words, max_size=3),
)
def test_what_is_dumped_is_read_again(texts, labels, description, more):
    documents = read_documents(
        [
            {"kind": "config", "name": "xx", "texts": texts, "description": description},
            {"kind": "node", "name": "nn", "labels": labels},
            {"kind": "app", "name": "aa", "services": [{"name": "s", "args": [description]}], **more},
        ]
    )
    assert read_documents(yaml.safe_load_all(dump_documents(documents))) == documents


def test_the_documented_cloud_is_understood():
    page = (EXAMPLE.parents[1] / "docs/how-to/bie.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert Config.model_validate(yaml.safe_load(text)).clouds["prod"].signer == "bce-auth-v1"
