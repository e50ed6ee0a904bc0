"""Bundles made to write outside of their folder: no command takes one in, and none writes it anywhere."""

import zipfile

import pytest

from cloudedge.bundle import Bundle, Outline, export_zip, unpack
from cloudedge.bundle import media_types as media
from cloudedge.errors import InputError
from cloudedge.hub import Descriptor, LocalHub, canonical_json, copy, digest_of, parse_json
from tests.faults import proves_fault
from tests.models import make_model, make_table

pytestmark = pytest.mark.rules

NAMES = ["../../x", "/abs", "..", "a/../../b", "a\\b", "", "a\0b", "x" * 2000]


@pytest.fixture
def packed(hub, tmp_path):
    return Bundle.pack(make_model(tmp_path / "model"), name="ctr", sparse={"dict": make_table()}, hub=hub)


def rename(bundle, annotation, name):
    """Push the bundle's manifest with another name in it, as an attacker does who knows the format."""
    value = parse_json(bundle.manifest.raw, "manifest")
    layer = next(layer for layer in value["layers"] if annotation in layer.get("annotations", {}))
    layer["annotations"][annotation] = name
    raw = canonical_json(value)
    bundle.hub.store.put(f"blobs/sha256/{digest_of(raw)[7:]}", raw)
    descriptor = Descriptor(bundle.manifest.media_type, digest_of(raw), len(raw))
    bundle.hub.move_tag("ctr", "evil", descriptor, by="mallory", at="2026-01-01T00:00:00Z")
    return descriptor


@proves_fault(
    area="bundles and hubs",
    fault="a manifest names a table or a file outside its folder",
    happens="every command refuses it, and nothing is written",
    cure="find out who packed it",
)
@pytest.mark.parametrize("annotation", [media.FILE_PATH, media.TABLE_NAME])
@pytest.mark.parametrize("name", NAMES)
def test_no_command_takes_it_in(packed, hub, tmp_path, annotation, name):
    evil = rename(packed, annotation, name)
    other = LocalHub(tmp_path / "other")
    with pytest.raises(InputError):
        Bundle.open("ctr:evil", hub=hub)
    with pytest.raises(InputError):
        Bundle.pull("ctr:evil", hub, hub=other)
    with pytest.raises(InputError):
        copy(hub, other, "ctr", evil.digest, tags=["evil"], by="u", at="2026-01-01T00:00:00Z")
    assert other.names() == []


@pytest.mark.parametrize("annotation", [media.FILE_PATH, media.TABLE_NAME])
def test_nothing_is_written_even_if_parsing_let_it_through(packed, tmp_path, monkeypatch, annotation):
    monkeypatch.setattr("cloudedge.hub.core._oci._check_names", lambda annotations, what: None)
    monkeypatch.setattr("cloudedge.bundle.contents._outline.check_member_path", lambda path: path)
    rename(packed, annotation, "../../../x")
    evil = Bundle.open("ctr:evil", hub=packed.hub)
    before = {path for path in tmp_path.rglob("*") if "hub" not in path.parts}
    with pytest.raises(InputError, match="inside its folder"):
        unpack(evil, tmp_path / "a" / "b" / "out")
    with pytest.raises(InputError, match="inside its folder"):
        export_zip(evil, tmp_path / "out.zip")
    left = {path for path in tmp_path.rglob("*") if "hub" not in path.parts} - before
    assert left <= {tmp_path / "a", tmp_path / "a" / "b"}


def test_a_table_without_a_name(packed):
    value = parse_json(packed.manifest.raw, "manifest")
    for layer in value["layers"]:
        layer.get("annotations", {}).pop(media.TABLE_NAME, None)
    manifest = type(packed.manifest).parse(canonical_json(value))
    with pytest.raises(InputError, match="a table without a name"):
        Outline(packed.hub, "ctr", manifest)


def test_plain_names_are_still_packed(packed, tmp_path):
    with zipfile.ZipFile(export_zip(packed, tmp_path / "ctr.zip")) as archive:
        assert ".bundle/tables/dict.safetensors" in archive.namelist()
