"""Signatures as cosign writes and reads them, and the keys that make them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from cloudedge.bundle import Bundle, sign_bundle
from cloudedge.bundle.signing import _cosign as cosign
from cloudedge.bundle.signing._keys import load_private, load_public, new_key_pair
from cloudedge.errors import Conflict, InputError, NotFound, SignatureInvalid, StorageError
from cloudedge.hub import LocalHub, referrers_tag
from cloudedge.hub._copy import signature_tag
from cloudedge.hub.core._oci import Descriptor, Digest, Manifest, digest_of
from cloudedge.hub.core._tags import current
from cloudedge.hub.registry._registry_hub import RegistryHub
from tests.hub.registry.servers import push, reader, registry, tool
from tests.models import make_model

DIGEST = Digest("sha256:" + "ab" * 32)
OTHER = Digest("sha256:" + "cd" * 32)


@pytest.fixture(scope="module")
def key():
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def payload():
    return cosign.payload("r.example/models/ctr", DIGEST)


def stored(blobs):
    return {digest_of(blob): blob for blob in blobs}


@pytest.mark.rules
def test_the_payload_is_cosigns_to_the_byte(payload):
    """What cosign 2.6 signs, but for the order of keys, which here is the same."""
    assert payload == (
        b'{"critical":{"identity":{"docker-reference":"r.example/models/ctr"},'
        b'"image":{"docker-manifest-digest":"' + DIGEST.encode() + b'"},'
        b'"type":"cosign container image signature"},"optional":null}'
    )


@pytest.mark.rules
def test_the_tag():
    assert signature_tag(DIGEST) == "sha256-" + "ab" * 32 + ".sig"


@pytest.mark.rules
def test_the_manifest(payload):
    manifest, (config, body, again) = cosign.signature_manifest([(payload, b"one"), (payload, b"two")])
    assert body == again == payload
    assert manifest.config == Descriptor.of(config, "application/vnd.oci.image.config.v1+json")
    assert [(layer.media_type, layer.digest, layer.size, dict(layer.annotations)) for layer in manifest.layers] == [
        (
            "application/vnd.dev.cosign.simplesigning.v1+json",
            digest_of(payload),
            len(payload),
            {"dev.cosignproject.cosign/signature": encoded},
        )
        for encoded in ("b25l", "dHdv")
    ]
    assert json.loads(config) == {
        "architecture": "",
        "created": "0001-01-01T00:00:00Z",
        "history": [{"created": "0001-01-01T00:00:00Z"}] * 2,
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": [digest_of(payload)] * 2},
        "config": {},
    }
    assert [blob.digest for blob in manifest.blobs] == [digest_of(config), digest_of(payload)]
    with pytest.raises(InputError, match="at least one"):
        cosign.signature_manifest([])


@pytest.mark.rules
def test_round_trip(key, payload):
    second = ec.generate_private_key(ec.SECP256R1())
    signatures = [cosign.sign(key, payload), cosign.sign(second, payload)]
    manifest, blobs = cosign.signature_manifest([(payload, signature) for signature in signatures])
    fetched = []

    def fetch(blob):
        fetched.append(blob)
        return stored(blobs)[blob.digest]

    found = cosign.read_signatures(Manifest.parse(manifest.raw), fetch)
    assert found == [(payload, signature) for signature in signatures]
    assert len(fetched) == 1
    cosign.check(key.public_key(), *found[0], DIGEST)
    cosign.check(second.public_key(), *found[1], DIGEST)
    with pytest.raises(SignatureInvalid, match="not made with this key"):
        cosign.check(key.public_key(), *found[1], DIGEST)


@pytest.mark.rules
def test_other_layers_are_passed_over(payload):
    layers = [
        Descriptor.of(payload, cosign.PAYLOAD_TYPE),
        Descriptor.of(payload, "application/x", {cosign.SIGNATURE_ANNOTATION: "b25l"}),
    ]
    manifest = Manifest.build(artifact_type="", config=Descriptor.of(b"{}", "x"), layers=layers, annotations={})
    assert cosign.read_signatures(manifest, lambda blob: pytest.fail("not asked for")) == []


@pytest.mark.rules
@pytest.mark.parametrize(("encoded", "size"), [("not base64!", 10), ("b25", 10), ("b25l", cosign.PAYLOAD_LIMIT + 1)])
def test_signature_manifests_that_are_refused(encoded, size):
    layer = Descriptor(cosign.PAYLOAD_TYPE, DIGEST, size, {cosign.SIGNATURE_ANNOTATION: encoded})
    manifest = Manifest.build(artifact_type="", config=Descriptor.of(b"{}", "x"), layers=[layer], annotations={})
    with pytest.raises(SignatureInvalid, match="signature manifest sha256:"):
        cosign.read_signatures(manifest, lambda blob: b"")


WRONG_PAYLOADS = {
    "another manifest": cosign.payload("x", OTHER),
    "another claim": cosign.payload("x", DIGEST).replace(b"cosign container image", b"some other"),
    "no claim": b"{}",
    "no JSON": b"hello",
    "a list": b"[]",
    "critical is no object": b'{"critical": 3}',
    "image is no object": b'{"critical": {"type": "cosign container image signature", "image": []}}',
    "the digest is a number": cosign.payload("x", DIGEST).replace(b'"' + DIGEST.encode() + b'"', b"3"),
}


@pytest.mark.rules
@pytest.mark.parametrize("case", WRONG_PAYLOADS)
def test_a_good_signature_over_the_wrong_words(key, case):
    wrong = WRONG_PAYLOADS[case]
    with pytest.raises(SignatureInvalid):
        cosign.check(key.public_key(), wrong, cosign.sign(key, wrong), DIGEST)


@pytest.mark.rules
@pytest.mark.parametrize("at", [0, 10, -1])
@pytest.mark.parametrize("what", ["payload", "signature"])
def test_one_flipped_bit(key, payload, what, at):
    parts = {"payload": bytearray(payload), "signature": bytearray(cosign.sign(key, payload))}
    parts[what][at] ^= 1
    with pytest.raises(SignatureInvalid, match="not made with this key"):
        cosign.check(key.public_key(), bytes(parts["payload"]), bytes(parts["signature"]), DIGEST)


@pytest.mark.rules
@pytest.mark.parametrize("signature", [b"", b"\x30", b"x" * 1000])
def test_no_signature_at_all(key, payload, signature):
    with pytest.raises(SignatureInvalid):
        cosign.check(key.public_key(), payload, signature, DIGEST)


@pytest.mark.rules
@pytest.mark.parametrize("passphrase", [None, b"open sesame", "pässe".encode()])
def test_a_key_pair(tmp_path, payload, passphrase):
    private, public = new_key_pair(tmp_path, "team", passphrase)
    assert (private, public) == (tmp_path / "team.key", tmp_path / "team.pub")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    wanted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" if passphrase else b"-----BEGIN PRIVATE KEY-----"
    assert private.read_bytes().startswith(wanted)
    assert public.read_bytes().startswith(b"-----BEGIN PUBLIC KEY-----")
    signature = cosign.sign(load_private(private, passphrase), payload)
    cosign.check(load_public(public), payload, signature, DIGEST)


@pytest.mark.rules
def test_the_private_key_is_never_readable_by_others(tmp_path):
    before = os.umask(0)
    try:
        private, _ = new_key_pair(tmp_path, "team", None)
    finally:
        os.umask(before)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


@pytest.mark.rules
@pytest.mark.parametrize("existing", ["team.key", "team.pub"])
def test_keys_are_never_overwritten(tmp_path, existing):
    (tmp_path / existing).write_text("precious")
    with pytest.raises(Conflict, match="never overwritten"):
        new_key_pair(tmp_path, "team", None)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {existing: "precious"}


@pytest.mark.rules
@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "/abs"])
def test_names_that_are_no_file_names(tmp_path, name):
    with pytest.raises(InputError, match="not a key name"):
        new_key_pair(tmp_path, name, None)


@pytest.mark.rules
def test_what_cannot_be_made(tmp_path):
    with pytest.raises(InputError, match="passphrase is empty"):
        new_key_pair(tmp_path, "team", b"")
    with pytest.raises(StorageError, match="cannot write"):
        new_key_pair(tmp_path / "absent", "team", None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rules
def test_passphrases(tmp_path):
    locked, _ = new_key_pair(tmp_path, "locked", b"open sesame")
    plain, public = new_key_pair(tmp_path, "plain", None)
    with pytest.raises(InputError, match="is encrypted: a passphrase is needed"):
        load_private(locked)
    with pytest.raises(InputError, match="passphrase is wrong") as caught:
        load_private(locked, b"hush")
    assert "hush" not in str(caught.value)
    with pytest.raises(InputError, match="is not encrypted"):
        load_private(plain, b"hush")
    with pytest.raises(InputError, match="not a private key"):
        load_private(public)
    with pytest.raises(InputError, match="not a public key"):
        load_public(plain)


def pem(key, private):
    if private:
        none = serialization.NoEncryption()
        return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, spki)


@pytest.mark.rules
@pytest.mark.parametrize("private", [True, False])
def test_key_files_that_are_refused(tmp_path, private):
    load = load_private if private else load_public
    path = tmp_path / "key"
    with pytest.raises(NotFound, match=r"the key file .* does not exist"):
        load(path)
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path)
    others = [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)]
    for other in others:
        path.write_bytes(pem(other, private))
        with pytest.raises(InputError, match="does not hold an ECDSA P-256 key"):
            load(path)
    for junk in (b"", b"hello", b"x" * 100_000):
        path.write_bytes(junk)
        with pytest.raises(InputError):
            load(path)


@pytest.mark.rules
def test_cosigns_own_private_keys_are_named(tmp_path):
    path = tmp_path / "cosign.key"
    path.write_text(
        "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n"
    )
    with pytest.raises(InputError, match="cosign's own private key format") as caught:
        load_private(path)
    assert "import-key-pair" in caught.value.hint


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with registry(tmp_path_factory.mktemp("registry")) as host:
        yield RegistryHub(f"oci://{host}/models")


class Cosign:
    """The real one, kept away from the network and from the user's home."""

    def __init__(self, home, hub, name="cosign"):
        self._program, self._home = tool(name), home
        self._where = hub.url.removeprefix("oci://")
        # Given these it does not fetch sigstore's own roots, which a key pair needs nothing of.
        nothing = ("SIGSTORE_CT_LOG_PUBLIC_KEY_FILE", "SIGSTORE_ROOT_FILE", "SIGSTORE_REKOR_PUBLIC_KEY")
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(home), "COSIGN_PASSWORD": ""}
        self._environment |= dict.fromkeys(nothing, os.devnull)

    def run(self, *words):
        return subprocess.run(
            [self._program, *map(str, words)],
            env=self._environment,
            cwd=self._home,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def verify(self, public, name, digest, *more):
        flags = ("--insecure-ignore-tlog=true", "--allow-http-registry", "--key", public, *more)
        return self.run("verify", *flags, f"{self._where}/{name}@{digest}")

    def sign(self, private, name, digest):
        flags = ("--tlog-upload=false", "--allow-http-registry", "--yes", "--key", private)
        return self.run("sign", *flags, f"{self._where}/{name}@{digest}")


def sign_here(hub, name, private, manifest):
    """Sign as cloudedge does and store it where cosign looks."""
    payload = cosign.payload(f"{hub.url.removeprefix('oci://')}/{name}", manifest.digest)
    signed, blobs = cosign.signature_manifest([(payload, cosign.sign(private, payload))])
    for blob, data in zip((signed.config, signed.layers[0]), blobs, strict=True):
        hub.write_blob(name, blob, reader(data), lambda n: None)
    hub.write_manifest(name, signed)
    tag = signature_tag(manifest.digest)
    hub.move_tag(name, tag, signed.descriptor, by="u", at="2026-01-01T00:00:00Z")


@pytest.mark.parts
def test_cosign_verifies_what_we_signed(hub, tmp_path):
    outside = Cosign(tmp_path, hub)
    private, public = new_key_pair(tmp_path, "team", b"open sesame")
    _, stranger = new_key_pair(tmp_path, "stranger", None)
    manifest = push(hub, "ours", b"weights")
    assert outside.verify(public, "ours", manifest.digest).returncode != 0  # not signed yet
    sign_here(hub, "ours", load_private(private, b"open sesame"), manifest)
    good = outside.verify(public, "ours", manifest.digest)
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)[0]["critical"]["image"]["docker-manifest-digest"] == manifest.digest
    assert outside.verify(stranger, "ours", manifest.digest).returncode != 0


@pytest.mark.parts
def test_we_verify_what_cosign_signed(hub, tmp_path):
    outside = Cosign(tmp_path, hub)
    private, public = new_key_pair(tmp_path, "team", None)
    imported = outside.run("import-key-pair", "--key", private, "--output-key-prefix", "theirs", "--yes")
    assert imported.returncode == 0, imported.stderr
    assert (tmp_path / "theirs.pub").read_bytes() == public.read_bytes()
    manifest = push(hub, "theirs", b"weights")
    first = ec.generate_private_key(ec.SECP256R1())
    sign_here(hub, "theirs", first, manifest)
    signed = outside.sign(tmp_path / "theirs.key", "theirs", manifest.digest)
    assert signed.returncode == 0, signed.stderr
    entry = current(hub.tags("theirs"), signature_tag(manifest.digest))
    found = cosign.read_signatures(
        hub.read_manifest("theirs", entry.target.digest),
        lambda blob: b"".join(hub.read_blob("theirs", blob)),
    )
    assert len(found) == 2  # cosign added its own to ours
    cosign.check(first.public_key(), *found[0], manifest.digest)
    cosign.check(load_public(public), *found[1], manifest.digest)
    assert found[1][0] == cosign.payload(f"{hub.url.removeprefix('oci://')}/theirs", manifest.digest)


@pytest.mark.parts
def test_cosign_3_verifies_what_we_signed(hub, tmp_path):
    """It looks for sigstore bundles among the referrers and for nothing else."""
    outside = Cosign(tmp_path, hub, "cosign3")
    private, public = new_key_pair(tmp_path, "team", b"open sesame")
    _, stranger = new_key_pair(tmp_path, "stranger", None)
    bundle = Bundle.pack(make_model(tmp_path / "model"), name="third", hub=LocalHub(tmp_path / "hub"))
    bundle.push(hub)
    assert outside.verify(public, "third", bundle.digest).returncode != 0  # not signed yet
    sign_bundle(bundle, private, b"open sesame")
    bundle.push(hub)
    good = outside.verify(public, "third", bundle.digest)
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)[0]["critical"]["image"]["docker-manifest-digest"] == bundle.digest
    assert outside.verify(stranger, "third", bundle.digest).returncode != 0
    sign_bundle(bundle, private, b"open sesame", expires=timedelta(days=30))
    bundle.push(hub)
    renewed = outside.verify(public, "third", bundle.digest)
    assert renewed.returncode == 0, renewed.stderr


@pytest.mark.parts
def test_cosign_2_verifies_signatures_that_expire(hub, tmp_path):
    outside = Cosign(tmp_path, hub)
    private, public = new_key_pair(tmp_path, "team", None)
    bundle = Bundle.pack(make_model(tmp_path / "model"), name="second", hub=LocalHub(tmp_path / "hub"))
    sign_bundle(bundle, private, expires=timedelta(days=30))
    bundle.push(hub)
    # Where there is a sigstore bundle it looks at nothing else, and wants a trusted root: an empty one will do.
    root = tmp_path / "root.json"
    root.write_text('{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}')
    good = outside.verify(public, "second", bundle.digest, "--trusted-root", root)
    assert good.returncode == 0, good.stderr
    hub.move_tag("second", referrers_tag(bundle.digest), None, by="u", at="t")
    good = outside.verify(public, "second", bundle.digest)  # the signature under .sig
    assert good.returncode == 0, good.stderr
