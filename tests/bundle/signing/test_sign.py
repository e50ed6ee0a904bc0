"""Signing bundles and finding out who did."""

import json
from datetime import timedelta

import pytest

from cloudedge.bundle import Bundle, SeenVersions, check_signature, new_key_pair, sign_bundle
from cloudedge.clock import ManualClock
from cloudedge.errors import InputError, IntegrityError, SignatureInvalid
from cloudedge.hub import LocalHub, collect, copy, current, referrers_tag, signature_tag
from tests.models import make_model

pytestmark = pytest.mark.rules


@pytest.fixture
def bundle(hub, tmp_path):
    return Bundle.pack(make_model(tmp_path / "model"), name="ctr", hub=hub)


@pytest.fixture
def keys(tmp_path):
    return {name: new_key_pair(tmp_path, name, None) for name in ("ann", "bob")}


def test_only_the_signers_key_verifies(bundle, keys):
    with pytest.raises(SignatureInvalid, match="it is not signed"):
        check_signature(bundle, keys["ann"][1])
    sign_bundle(bundle, keys["ann"][0])
    check_signature(bundle, keys["ann"][1])
    with pytest.raises(SignatureInvalid, match="none of its 1 signatures"):
        check_signature(bundle, keys["bob"][1])


def test_two_people_sign_and_signing_again_changes_nothing(bundle, keys, hub):
    for name in ("ann", "bob"):
        sign_bundle(bundle, keys[name][0])
    before = hub.tags("ctr")
    for private, public in keys.values():
        sign_bundle(bundle, private)
        check_signature(bundle, public)
    assert hub.tags("ctr") == before


def test_a_signature_travels_and_does_not_fit_another_bundle(bundle, keys, hub, far, tmp_path):
    sign_bundle(bundle, keys["ann"][0])
    copy(hub, far, "ctr", bundle.digest, tags=["1"], by="me", at="t")
    check_signature(Bundle.open("ctr:1", hub=far), keys["ann"][1])
    other = Bundle.pack(make_model(tmp_path / "other", seed=1), name="ctr", hub=hub)
    stolen = current(hub.tags("ctr"), signature_tag(bundle.digest)).target
    hub.move_tag("ctr", signature_tag(other.digest), stolen, by="mallory", at="t")
    with pytest.raises(SignatureInvalid, match="none of its 1 signatures"):
        check_signature(other, keys["ann"][1])


def test_a_signed_version_is_not_another_one(hub, keys, tmp_path):
    private, public = keys["ann"]
    two = Bundle.pack(make_model(tmp_path / "two", seed=2), name="ctr", version=2, hub=hub)
    sign_bundle(two, private)
    hub.move_tag("ctr", "6", two.manifest.descriptor, by="mallory", at="t")
    hub.move_tag("ctr", "prod", two.manifest.descriptor, by="ann", at="t")
    for tag in ("2", "prod", ""):
        check_signature(Bundle.open(f"ctr:{tag}" if tag else "ctr:2", hub=hub), public, tag=tag)
    with pytest.raises(SignatureInvalid, match="ctr:6 is a bundle that was signed as ctr:2"):
        check_signature(Bundle.open("ctr:6", hub=hub), public, tag="6")


def test_a_signed_name_is_not_another_one(hub, far, keys, tmp_path):
    private, public = keys["ann"]
    other = Bundle.pack(make_model(tmp_path / "other"), name="other", version=7, hub=hub)
    sign_bundle(other, private)
    evil = Bundle(hub, "ctr", other.manifest)
    hub.move_tag("ctr", "7", other.manifest.descriptor, by="mallory", at="t")
    signature = current(hub.tags("other"), signature_tag(other.digest)).target
    hub.move_tag("ctr", signature_tag(other.digest), signature, by="mallory", at="t")
    with pytest.raises(SignatureInvalid, match="was signed as other:7"):
        check_signature(evil, public)


def test_a_signature_expires_and_is_renewed(bundle, keys):
    (private, public), clock = keys["ann"], ManualClock()
    sign_bundle(bundle, keys["bob"][0], clock=clock)
    sign_bundle(bundle, private, expires=timedelta(days=30), clock=clock)
    check_signature(bundle, public, clock=clock)
    clock.sleep(30 * 86400 - 1)
    check_signature(bundle, public, clock=clock)
    clock.sleep(2)
    with pytest.raises(SignatureInvalid, match="expired at") as caught:
        check_signature(bundle, public, clock=clock)
    assert caught.value.facts["expired"]
    sign_bundle(bundle, private, expires=timedelta(days=1), clock=clock)
    check_signature(bundle, public, clock=clock)
    clock.sleep(86400)
    with pytest.raises(SignatureInvalid, match="expired at"):
        check_signature(bundle, public, clock=clock)
    sign_bundle(bundle, private, clock=clock)  # for good
    clock.sleep(10**9)
    check_signature(bundle, public, clock=clock)
    check_signature(bundle, keys["bob"][1], clock=clock)
    with pytest.raises(InputError, match="cannot expire"):
        sign_bundle(bundle, private, expires=timedelta(0))


def referrers(hub, digest):
    index = hub.read_manifest("ctr", current(hub.tags("ctr"), referrers_tag(digest)).target.digest)
    return [hub.read_manifest("ctr", entry.digest) for entry in index.manifests]


def test_every_signature_is_a_sigstore_bundle_too_and_travels(bundle, keys, hub, far):
    for name in ("ann", "bob", "ann"):
        sign_bundle(bundle, keys[name][0])
    assert len(referrers(hub, bundle.digest)) == 2
    sign_bundle(bundle, keys["ann"][0], expires=timedelta(days=1))
    found = referrers(hub, bundle.digest)
    assert len(found) == 2
    for manifest in found:
        assert json.loads(manifest.raw)["subject"]["digest"] == bundle.digest
    bundle.push(far)
    assert {each.digest for each in referrers(far, bundle.digest)} == {each.digest for each in found}
    for manifest in found:
        for blob in manifest.blobs:
            assert far.has_blob("ctr", blob)


def test_pushing_adds_to_the_referrers_that_are_there(bundle, keys, hub, far):
    sign_bundle(bundle, keys["ann"][0])
    bundle.push(far)
    there = Bundle.open("ctr:1", hub=LocalHub(far.url))
    sign_bundle(there, keys["bob"][0])
    bundle.push(far)
    assert len(referrers(far, bundle.digest)) == 2


def test_sigstore_bundles_go_with_their_bundle(bundle, keys, hub):
    sign_bundle(bundle, keys["ann"][0])
    clock = ManualClock()
    collect(hub, now=clock.now(), retention=timedelta(0), dry_run=False)
    assert len(referrers(hub, bundle.digest)) == 1
    hub.move_tag("ctr", "1", None, by="ann", at="2020-01-01T00:00:00Z")
    collect(hub, now=clock.now(), retention=timedelta(0), dry_run=False)
    assert list(hub.stored()) == []


def test_the_highest_version_is_remembered_by_name_and_key(keys, tmp_path):
    def seen(name):
        return SeenVersions(tmp_path / "seen", keys[name][1])

    assert seen("ann").newer_than("ctr", "1") == ""
    for version in ("6", "2", "no-version", "10"):
        seen("ann").remember("ctr", version)
    assert seen("ann").newer_than("ctr", "6") == "10"
    assert seen("ann").newer_than("ctr", "10") == ""
    assert seen("ann").newer_than("ctr", "11") == ""
    assert seen("ann").newer_than("ctr", "") == ""
    assert seen("ann").newer_than("other", "1") == ""
    assert seen("bob").newer_than("ctr", "1") == ""
    (file,) = (tmp_path / "seen").glob("*.json")
    for damage in ("{", "[]", '{"ctr": 7}', '{"ctr": "x"}'):
        file.write_text(damage)
        with pytest.raises(IntegrityError, match="is damaged"):
            seen("ann").newer_than("ctr", "1")


def test_a_payload_that_does_not_end_is_not_read_to_its_end(bundle, keys, hub, monkeypatch):
    """The manifest says how long it is; a hub that sends more is believed no further."""
    sign_bundle(bundle, keys["ann"][0])
    sent = []

    def endless(name, blob):
        for _ in range(1000):
            sent.append(blob.size)
            yield b"x" * blob.size

    monkeypatch.setattr(type(hub), "read_blob", lambda self, name, blob: endless(name, blob))
    with pytest.raises(IntegrityError):
        check_signature(bundle, keys["ann"][1])
    assert len(sent) < 10
