"""Signing bundles and finding out who did."""

import pytest

from cloudedge.bundle import Bundle, check_signature, new_key_pair, sign_bundle
from cloudedge.errors import IntegrityError, SignatureInvalid
from cloudedge.hub import copy, current, signature_tag
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
