"""Packing and reading back: what goes in comes out, once, whatever it is called."""

import hashlib
import json
import os
import zipfile

import jsonschema
import numpy as np
import pytest

from cloudedge.bundle import Bundle, Lineage, ProbeRequest, Probes, Signature, Variable, diff, export_zip, unpack
from cloudedge.bundle import media_types as _media
from cloudedge.config import Limits
from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound
from cloudedge.hub import Descriptor, LocalHub, Manifest, copy, current
from tests.models import change_table, make_model, make_table

pytestmark = pytest.mark.rules


@pytest.fixture
def model(tmp_path):
    return make_model(tmp_path / "model")


def test_a_bundle_holds_what_was_packed(hub, model):
    table = make_table()
    bundle = Bundle.pack(
        model,
        name="ctr",
        version=3,
        sparse={"dict": table},
        signature=Signature(feed=(Variable(name="x", shape=(13,)),), fetch=(Variable(name="y", alias="score"),)),
        probes=Probes(requests=(ProbeRequest(feed={"x": [[0.0] * 13]}, expect={"y": [[0.5]]}),)),
        lineage=Lineage(dataset="criteo", metrics={"auc": 0.79}),
        framework_version="3.1.0",
        hub=hub,
    )
    again = Bundle.open("ctr:3", hub=hub)
    assert again.digest == bundle.digest
    assert {p: f.read_bytes() for p, f in again.dense.items()} == {
        p.relative_to(model).as_posix(): p.read_bytes() for p in model.rglob("*") if p.is_file()
    }
    assert (again.sparse["dict"].values == table["values"]).all()
    assert again.signature.fetch[0].alias == "score"
    assert again.probes.requests[0].tolerance == 1e-5
    assert again.lineage.metrics == {"auc": 0.79}
    assert again.needs.framework_version == "3.1.0"
    assert again.needs.memory_two_bytes == 2 * again.needs.memory_one_bytes
    again.verify(deep=True)


def test_probe_keys_cover_shards(hub, model):
    table = make_table(5000)
    probes = Bundle.pack(model, name="ctr", sparse={"dict": table}, hub=hub).probes
    assert len(probes.keys["dict"]) == 256
    assert set(probes.keys["dict"]) <= set(table["keys"].tolist())
    for shards in (1, 2, 7, 16):
        assert {key % shards for key in probes.keys["dict"]} == set(range(shards))


def test_packing_the_same_again_changes_nothing(hub, model):
    first = Bundle.pack(model, name="ctr", version=1, sparse={"dict": make_table()}, hub=hub)
    before = hub.tags("ctr")
    assert Bundle.pack(model, name="ctr", version=1, sparse={"dict": make_table()}, hub=hub).digest == first.digest
    assert hub.tags("ctr") == before


def test_a_version_is_not_packed_over(hub, model):
    Bundle.pack(model, name="ctr", version="1.0.0", hub=hub)
    (model / "more").write_text("x")
    with pytest.raises(Conflict, match="versions never change"):
        Bundle.pack(model, name="ctr", version="1.0.0", hub=hub)
    assert Bundle.pack(model, name="ctr", hub=hub).version == "1.0.1"


def test_a_parent_makes_a_delta_and_reading_is_the_same(hub, model):
    table = make_table(20_000, 16)
    one = Bundle.pack(model, name="ctr", sparse={"dict": table}, hub=hub)
    later = change_table(table, seed=5)
    two = Bundle.pack(model, name="ctr", sparse={"dict": later}, parent="ctr:1", hub=hub)
    alone = Bundle.pack(model, name="other", sparse={"dict": later}, hub=hub)
    assert [layer.media_type for layer in two.table_layers["dict"]] == [_media.TABLE_BASE, _media.TABLE_DELTA]
    assert two.table_layers["dict"][0] == one.table_layers["dict"][0]
    assert (two.sparse["dict"].values == alone.sparse["dict"].values).all()
    assert two.sparse["dict"].checksum == alone.sparse["dict"].checksum
    assert two.lineage.parent.digest == one.digest
    assert two.needs.memory_two_bytes < alone.needs.memory_two_bytes
    two.verify(deep=True)


def test_an_unchanged_table_adds_no_layer(hub, model):
    table = make_table()
    one = Bundle.pack(model, name="ctr", sparse={"dict": table}, hub=hub)
    two = Bundle.pack(model, name="ctr", sparse={"dict": table}, parent=one, hub=hub)
    assert two.table_layers == one.table_layers


def test_chains_are_compacted_by_policy(hub, model):
    table, parent, lengths = make_table(5000), None, []
    for i in range(6):
        bundle = Bundle.pack(
            model, name="ctr", sparse={"dict": table}, parent=parent, hub=hub, limits=Limits(max_deltas=2)
        )
        assert (bundle.sparse["dict"].values == table["values"]).all()
        lengths.append(len(bundle.table_layers["dict"]))
        table, parent = change_table(table, seed=i), bundle
    assert lengths == [1, 2, 3, 1, 2, 3]


def test_a_table_of_another_width_is_a_new_base(hub, model):
    one = Bundle.pack(model, name="ctr", sparse={"dict": make_table(dim=4)}, hub=hub)
    two = Bundle.pack(model, name="ctr", sparse={"dict": make_table(dim=8)}, parent=one, hub=hub)
    assert len(two.table_layers["dict"]) == 1
    found = diff(one, two).tables["dict"]
    assert (found.rows_before, found.rows_after, found.removed, found.added) == (1000, 1000, 1000, 1000)


def test_diff_counts_files_and_rows(hub, model):
    table = make_table(2000)
    one = Bundle.pack(model, name="ctr", sparse={"dict": table, "gone": table}, hub=hub)
    (model / "model.pdmodel").write_bytes(b"new")
    (model / "added").write_bytes(b"12345")
    (model / "sub" / "part 2 é.bin").unlink()
    after = {"keys": table["keys"][1:], "values": table["values"][1:].copy()}
    after["values"][5] += 1
    after["values"][7] += 1
    two = Bundle.pack(model, name="ctr", sparse={"dict": after, "new": table}, hub=hub)
    found = diff(one, two)
    assert (found.added, found.changed, found.removed) == (
        {"added": 5},
        {"model.pdmodel": 3},
        {"sub/part 2 é.bin": 200},
    )
    assert (found.tables["dict"].added, found.tables["dict"].changed, found.tables["dict"].removed) == (0, 2, 1)
    assert found.tables["gone"].removed == 2000
    assert found.tables["new"].added == 2000
    assert diff(two, two).bytes_to_ship == 0
    chained = Bundle.pack(model, name="ctr", sparse={"dict": after, "new": table}, parent=one, hub=hub)
    assert diff(one, chained) == found


def test_unpack_and_pack_again(hub, model, tmp_path):
    table = make_table()
    one = Bundle.pack(model, name="ctr", version=1, sparse={"dict": table}, hub=hub)
    two = Bundle.pack(model, name="ctr", sparse={"dict": change_table(table, seed=1)}, parent=one, hub=hub)
    unpack(one, tmp_path / "one")
    unpack(two, tmp_path / "two")
    own = tmp_path / "two" / ".bundle"
    assert json.loads((own / "lineage.json").read_bytes())["parent"]["digest"] == one.digest
    back = Bundle.pack(
        tmp_path / "one",
        name="ctr",
        version=1,
        sparse={"dict": tmp_path / "one/.bundle/tables/dict.safetensors"},
        hub=LocalHub(tmp_path / "hub2"),
    )
    assert back.digest == one.digest
    merged = Bundle.pack(tmp_path / "two", name="m", sparse={"dict": own / "tables/dict.safetensors"}, hub=hub)
    assert merged.sparse["dict"].checksum == two.sparse["dict"].checksum
    with pytest.raises(Conflict, match="exists"):
        unpack(one, tmp_path / "one")


def test_the_same_bundle_makes_the_same_zip(hub, model, tmp_path):
    bundle = Bundle.pack(model, name="ctr", sparse={"dict": make_table()}, hub=hub)
    one = export_zip(bundle, tmp_path / "1.zip").read_bytes()
    os.utime(model / "model.pdmodel", (1, 1))
    two = export_zip(Bundle.open("ctr:1", hub=hub), tmp_path / "2.zip").read_bytes()
    assert hashlib.md5(one).digest() == hashlib.md5(two).digest()
    with zipfile.ZipFile(tmp_path / "1.zip") as archive:
        assert archive.testzip() is None
        assert "model.pdmodel" in archive.namelist()
        assert archive.read("model.pdmodel") == (model / "model.pdmodel").read_bytes()
    with pytest.raises(Conflict, match="exists"):
        export_zip(bundle, tmp_path / "1.zip")


def test_large_files_are_linked_and_small_ones_copied(hub, model, monkeypatch):
    monkeypatch.setattr("cloudedge.bundle.packing._pack._LINK_FROM_BYTES", 1000)
    bundle = Bundle.pack(model, name="ctr", hub=hub)
    inode = {p: (model / p).stat().st_ino == f.stat().st_ino for p, f in bundle.dense.items()}
    assert inode["model.pdiparams"]
    assert not inode["model.pdmodel"]
    copied = Bundle.pack(model, name="ctr", hub=LocalHub(hub.url + "2"), copy=True)
    assert copied.dense["model.pdiparams"].stat().st_ino != (model / "model.pdiparams").stat().st_ino


def test_writing_to_a_linked_file_is_noticed_and_a_pull_mends_it(hub, far, model, monkeypatch):
    monkeypatch.setattr("cloudedge.bundle.packing._pack._LINK_FROM_BYTES", 1000)
    bundle = Bundle.pack(model, name="ctr", hub=hub)
    copy(hub, far, "ctr", bundle.digest, tags=["1"], by="me", at="t")
    with (model / "model.pdiparams").open("r+b") as file:
        file.write(b"in place")
    with pytest.raises(IntegrityError, match=r"overwritten: model\.pdiparams"):
        bundle.verify()
    with pytest.raises(IntegrityError, match="changed after packing"):
        _ = bundle.dense
    Bundle.pull("ctr:1", far, hub=hub).verify()
    assert (model / "model.pdiparams").read_bytes().startswith(b"in place")


def test_the_config_is_what_modelpack_asks_for(hub, model):
    bundle = Bundle.pack(model, name="ctr", sparse={"dict": make_table()}, hub=hub)
    config = json.loads(b"".join(hub.read_blob("ctr", bundle.manifest.config)))
    text = {"type": "string"}
    strict = {"type": "object", "additionalProperties": False}
    schema = {
        **strict,
        "required": ["descriptor", "config", "modelfs"],
        "properties": {
            "descriptor": {**strict, "properties": {"name": text, "version": text, "createdAt": text}},
            "config": {**strict, "properties": {"format": text, "architecture": text, "precision": text}},
            "modelfs": {
                **strict,
                "required": ["type", "diffIds"],
                "properties": {"type": {"enum": ["layers"]}, "diffIds": {"type": "array", "items": text}},
            },
        },
    }
    jsonschema.validate(config, schema)
    assert config["modelfs"]["diffIds"] == [layer.digest for layer in bundle.manifest.layers]
    assert bundle.manifest.artifact_type == "application/vnd.cncf.model.manifest.v1+json"
    assert bundle.dense_layers["model.pdiparams"].media_type == "application/vnd.cncf.model.weight.v1.raw"
    assert bundle.dense_layers["model.pdmodel"].media_type == "application/vnd.cncf.model.weight.config.v1.raw"


def test_what_a_newer_cloudedge_adds_is_kept_byte_for_byte(hub, far, model, tmp_path):
    bundle = Bundle.pack(model, name="ctr", hub=hub)
    value = json.loads(bundle.manifest.raw)
    future = hub.write_bytes(b"\x00from 2030", "application/vnd.cloudedge.hologram.v9")
    value["layers"].append({**future.to_json(), "urls": ["x"]})
    value["newField"] = {"deep": [1.50]}
    raw = json.dumps(value, indent=3).encode()
    manifest = Manifest.parse(raw)
    hub.write_manifest("ctr", manifest)
    hub.move_tag("ctr", "future", manifest.descriptor, by="me", at="t")
    copy(hub, far, "ctr", manifest.digest, tags=["future"], by="me", at="t")
    there = Bundle.open("ctr:future", hub=far)
    assert there.manifest.raw == raw
    assert b"".join(far.read_blob("ctr", future)) == b"\x00from 2030"
    there.verify()
    unpack(there, tmp_path / "out")


def test_parts_keep_fields_they_do_not_know():
    lineage = Lineage.model_validate({"dataset": "d", "fromTheFuture": {"x": 1}})
    assert lineage.model_dump(mode="json", exclude_defaults=True) == {"dataset": "d", "fromTheFuture": {"x": 1}}


def test_ten_thousand_files_and_an_empty_one(hub, tmp_path):
    folder = tmp_path / "many"
    for i in range(100):
        (folder / f"{i:02}").mkdir(parents=True)
        for j in range(100):
            (folder / f"{i:02}" / f"{j:02}").write_text(f"{i}-{j}" if i + j else "")
    bundle = Bundle.pack(folder, name="many", hub=hub)
    assert len(bundle.dense_layers) == 10_000
    assert len(bundle.manifest.raw) < 4 << 20
    assert bundle.dense["00/00"].read_bytes() == b""
    bundle.verify()


# --- what is refused ---------------------------------------------------------------------------------------


def test_strange_folders_are_refused(hub, model, tmp_path):
    with pytest.raises(InputError, match=r"the folder .* does not exist"):
        Bundle.pack(tmp_path / "absent", name="x", hub=hub)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no tables were given"):
        Bundle.pack(tmp_path / "empty", name="x", hub=hub)
    (model / "link").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="link is a symbolic link"):
        Bundle.pack(model, name="x", hub=hub)
    (model / "link").unlink()
    (model / "dirlink").symlink_to(model / "sub")
    with pytest.raises(InputError, match="dirlink is a symbolic link"):
        Bundle.pack(model, name="x", hub=hub)
    (model / "dirlink").unlink()
    os.mkfifo(model / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        Bundle.pack(model, name="x", hub=hub)
    assert hub.names() == []


def test_a_name_that_is_not_utf8_is_refused(hub, model):
    (model / os.fsdecode(b"\xff\xfe")).touch()
    with pytest.raises(InputError, match="not UTF-8"):
        Bundle.pack(model, name="x", hub=hub)


@pytest.mark.parametrize("version", ["v3", "1.2", "latest", "-1", ""])
def test_bad_versions(hub, model, version):
    with pytest.raises(InputError, match="not a version"):
        Bundle.pack(model, name="x", version=version, hub=hub)


def test_bad_tables_probes_and_parents(hub, model):
    with pytest.raises(InputError, match="has no rows"):
        Bundle.pack(model, name="x", sparse={"t": {k: v[:0] for k, v in make_table().items()}}, hub=hub)
    with pytest.raises(InputError, match="name the table 'u'"):
        Bundle.pack(model, name="x", sparse={"t": make_table()}, probes=Probes(keys={"u": (1,)}), hub=hub)
    with pytest.raises(InputError, match="not a tag"):
        Bundle.pack(model, name="x", sparse={"../t": make_table()}, hub=hub)
    with pytest.raises(NotFound, match="no bundle y:1"):
        Bundle.pack(model, name="x", parent="y:1", hub=hub)


DAMAGE = {
    "flipped bit": lambda f: f.write_bytes(bytes([f.read_bytes()[0] ^ 1]) + f.read_bytes()[1:]),
    "cut short": lambda f: f.write_bytes(f.read_bytes()[:-1]),
    "made longer": lambda f: f.write_bytes(f.read_bytes() + b"x"),
    "gone": lambda f: f.unlink(),
    "emptied": lambda f: f.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named_and_never_travels(hub, far, model, tmp_path, damage):
    bundle = Bundle.pack(model, name="ctr", hub=hub)
    damage(bundle.dense["model.pdiparams"])
    with pytest.raises(IntegrityError, match=r"model\.pdiparams"):
        bundle.verify()
    with pytest.raises((IntegrityError, NotFound)):
        copy(hub, far, "ctr", bundle.digest, tags=["1"], by="me", at="t")
    assert far.names() == []
    with pytest.raises((IntegrityError, NotFound)):
        unpack(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises((IntegrityError, NotFound)):
        export_zip(bundle, tmp_path / "out.zip")
    assert list(tmp_path.glob("*out*")) == []


def forged(hub, bundle, change):
    value = json.loads(bundle.manifest.raw)
    change(value["layers"])
    manifest = Manifest.parse(json.dumps(value).encode())
    hub.write_manifest("bad", manifest)
    hub.move_tag("bad", "1", manifest.descriptor, by="mallory", at="t")
    return Bundle.open("bad:1", hub=hub)


def test_a_manifest_with_a_wrong_size_is_refused(hub, far, model):
    def change(layers):
        layers[0]["size"] += 1

    bad = forged(hub, Bundle.pack(model, name="ctr", hub=hub), change)
    with pytest.raises(IntegrityError, match="truncated"):
        bad.verify()
    with pytest.raises(IntegrityError):
        copy(hub, far, "bad", bad.digest, tags=["1"], by="me", at="t")
    assert current(far.tags("bad"), "1") is None


@pytest.mark.parametrize(
    "path", ["../escape", "/etc/passwd", "a/../../b", "a//b", "./a", "a\\b", "", "a\nb", "x" * 2000, ".."]
)
def test_members_that_leave_their_folder_are_refused(hub, model, tmp_path, path):
    def change(layers):
        layers[0]["annotations"][_media.FILE_PATH] = path

    with pytest.raises(InputError, match="must stay inside its folder"):
        forged(hub, Bundle.pack(model, name="ctr", hub=hub), change)


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), (".bundle/needs.json", "x")])
def test_two_members_at_one_place_are_refused(hub, model, tmp_path, paths):
    def change(layers):
        for layer, path in zip(layers, paths, strict=False):
            layer["annotations"][_media.FILE_PATH] = path

    with pytest.raises(InputError, match="two members at"):
        unpack(forged(hub, Bundle.pack(model, name="ctr", hub=hub), change), tmp_path / "out")
    assert list(tmp_path.glob("*out*")) == []


def test_an_artifact_without_layers_is_no_bundle(hub):
    config = hub.write_bytes(b"{}", "c")
    manifest = Manifest.build(artifact_type="", config=config, layers=[], annotations={})
    hub.write_manifest("x", manifest)
    hub.move_tag("x", "1", manifest.descriptor, by="me", at="t")
    with pytest.raises(InputError, match="not a bundle"):
        Bundle.open("x:1", hub=hub)


def test_a_part_that_is_not_what_it_should_be(hub, model):
    def change(layers):
        layer = next(x for x in layers if x["mediaType"] == _media.LINEAGE)
        blob = hub.write_bytes(b'{"metrics": {"auc": "high"}}', _media.LINEAGE)
        layer.update(blob.to_json())

    bad = forged(hub, Bundle.pack(model, name="ctr", hub=hub), change)
    with pytest.raises(InputError, match=r"Lineage: metrics\.auc: .*found 'high'"):
        bad.verify()


def test_open_says_what_there_is(hub, model):
    Bundle.pack(model, name="ctr", hub=hub)
    with pytest.raises(NotFound, match="The hub has 1"):
        Bundle.open("ctr:7", hub=hub)
    with pytest.raises(NotFound, match="no bundle named dog"):
        Bundle.open("dog", hub=hub)
    assert Bundle.open("ctr", hub=hub).version == "1"
    assert Bundle.open(f"ctr@{Bundle.open('ctr', hub=hub).digest[:20]}", hub=hub).version == "1"


def test_descriptors_can_be_keys():
    assert len({Descriptor.of(b"x", "m"), Descriptor.of(b"x", "m"), Descriptor.of(b"y", "m")}) == 2


def test_int8_and_float16_tables_in_one_bundle(hub, model):
    tables = {"q": make_table(dtype="int8"), "h": make_table(dtype="float16")}
    one = Bundle.pack(model, name="ctr", sparse=tables, hub=hub)
    later = {name: change_table(t, seed=1) for name, t in tables.items()}
    two = Bundle.pack(model, name="ctr", sparse=later, parent=one, hub=hub)
    assert (two.sparse["q"].scale == later["q"]["scale"]).all()
    assert two.sparse["h"].values.dtype == np.float16
    two.verify(deep=True)
