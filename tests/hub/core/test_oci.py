"""Descriptors and manifests: read strictly, kept byte for byte."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudedge.errors import InputError, IntegrityError
from cloudedge.hub import Descriptor, Manifest, digest_of, verified

pytestmark = pytest.mark.rules

GOOD = {
    "schemaVersion": 2,
    "config": {"mediaType": "c", "digest": digest_of(b"{}"), "size": 2},
    "layers": [{"mediaType": "l", "digest": digest_of(b"x"), "size": 1, "annotations": {"a": "b"}}],
}


def manifest(**changes):
    return json.dumps(GOOD | changes).encode()


def test_bytes_are_kept_whatever_is_in_them():
    raw = b'{ "layers": [], "schemaVersion":2, "fromTheFuture": {"x": [1, 2.50]} }\n'
    parsed = Manifest.parse(raw)
    assert parsed.raw == raw
    assert parsed.digest == digest_of(raw)


def test_what_is_built_reads_back():
    built = Manifest.build(
        artifact_type="t",
        config=Descriptor.of(b"{}", "c"),
        layers=[Descriptor.of(b"x", "l", {"a": "ü"})],
        annotations={},
    )
    assert Manifest.parse(built.raw) == built
    assert [b.digest for b in built.blobs] == [digest_of(b"{}"), digest_of(b"x")]


def test_a_blob_named_twice_is_needed_once():
    layer = Descriptor.of(b"x", "l")
    built = Manifest.build(artifact_type="", config=layer, layers=[layer, layer], annotations={})
    assert len(built.blobs) == 1


LAYER = GOOD["layers"][0]
BAD = {
    "not json": b"\xff{",
    "too deep": b"[" * 100_000,
    "a list": b"[]",
    "wrong schema": manifest(schemaVersion=1),
    "layers not a list": manifest(layers={"a": 1}),
    "layer not an object": manifest(layers=[3]),
    "no media type": manifest(layers=[LAYER | {"mediaType": None}]),
    "negative size": manifest(layers=[LAYER | {"size": -1}]),
    "absurd size": manifest(layers=[LAYER | {"size": 1 << 63}]),
    "size true": manifest(layers=[LAYER | {"size": True}]),
    "size a float": manifest(layers=[LAYER | {"size": 1.5}]),
    "size a string": manifest(layers=[LAYER | {"size": "1"}]),
    "digest of another kind": manifest(layers=[LAYER | {"digest": "sha512:" + "0" * 128}]),
    "digest that is a path": manifest(layers=[LAYER | {"digest": "sha256:../../../../etc/passwd"}]),
    "upper-case digest": manifest(layers=[LAYER | {"digest": "sha256:" + "A" * 64}]),
    "annotations not strings": manifest(layers=[LAYER | {"annotations": {"a": 1}}]),
    "manifest annotations not strings": manifest(annotations={"a": []}),
    "larger than allowed": manifest(annotations={"a": "x" * (4 << 20)}),
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
def test_bad_manifests_are_refused(raw):
    with pytest.raises(InputError):
        Manifest.parse(raw)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_parser(raw):
    with suppress(InputError):
        Manifest.parse(raw)


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda c: (
            st.lists(c)
            | st.dictionaries(
                st.sampled_from(
                    ["schemaVersion", "layers", "config", "manifests", "digest", "size", "mediaType", "annotations"]
                ),
                c,
            )
        ),
    )
)
def test_no_json_crashes_the_parser(value):
    raw = json.dumps({"schemaVersion": 2, **value} if isinstance(value, dict) else value).encode()
    with suppress(InputError):
        Manifest.parse(raw)


@pytest.mark.parametrize("found", [b"", b"hell", b"hellO", b"hello!"], ids=["empty", "short", "flipped", "long"])
def test_verified_notices(found):
    with pytest.raises(IntegrityError):
        list(verified(iter([found]), Descriptor.of(b"hello", ""), "here"))


def test_verified_passes_bytes_through():
    assert b"".join(verified(iter([b"he", b"llo"]), Descriptor.of(b"hello", ""), "here")) == b"hello"
