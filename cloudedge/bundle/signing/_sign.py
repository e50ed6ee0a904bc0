"""Sign a bundle and verify its signatures; a signature is kept beside its bundle and travels with it."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256

from cloudedge.bundle.contents import Outline
from cloudedge.bundle.packing import Bundle
from cloudedge.bundle.signing._cosign import check, payload, read_signatures, sign, signature_manifest
from cloudedge.bundle.signing._keys import load_private, load_public
from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.errors import SignatureInvalid
from cloudedge.hub import Descriptor, current, signature_tag, verified
from cloudedge.io import who

__all__ = ["check_signature", "check_words", "sign_bundle", "sign_words"]


def sign_bundle(bundle: Bundle, key: Path, passphrase: bytes | None = None, *, clock: Clock | None = None) -> None:
    """Sign a bundle. Other signatures stay; signing twice with one key changes nothing.

    Raises:
        NotFound: the key file does not exist.
        InputError: the key cannot be used.
    """
    private = load_private(key, passphrase)
    existing = _fetch_signatures(bundle)
    for signed, signature in existing:
        try:
            check(private.public_key(), signed, signature, bundle.digest)
        except SignatureInvalid:
            continue
        return
    claim = payload(bundle.name, bundle.digest)
    manifest, blobs = signature_manifest([*existing, (claim, sign(private, claim))])
    hub = bundle.hub
    with hub.writing():
        for blob, data in zip((manifest.config, *manifest.layers), blobs, strict=True):
            if blob is not None:
                hub.write_bytes(data, blob.media_type)
        hub.write_manifest(bundle.name, manifest)
        at = rfc3339((clock or SystemClock()).now())
        hub.move_tag(bundle.name, signature_tag(bundle.digest), manifest.descriptor, by=who(), at=at)


def check_signature(bundle: Outline, key: Path) -> None:
    """Check that the private half of `key` signed this bundle.

    Raises:
        SignatureInvalid: no signature was made with it.
        NotFound: the key file does not exist.
    """
    public = load_public(key)
    found = _fetch_signatures(bundle)
    for signed, signature in found:
        try:
            check(public, signed, signature, bundle.digest)
        except SignatureInvalid:
            continue
        return
    count = f"none of its {len(found)} signatures was" if found else "it is not signed, let alone"
    raise SignatureInvalid(
        f"{bundle.name}:{bundle.version} {bundle.digest}: {count} made with {key}",
        hint="Find out who packed it before you use it. Its owner signs it with `cloudedge bundle sign REF --key KEY`.",
        digest=bundle.digest,
    )


def sign_words(words: bytes, key: Path, passphrase: bytes | None = None) -> bytes:
    """Sign bytes other than a bundle, such as an edge statement: ECDSA over their SHA-256, in DER.

    Raises:
        NotFound: the key file does not exist.
        InputError: the key cannot be used.
    """
    return sign(load_private(key, passphrase), words)


def check_words(words: bytes, signature: bytes, key: Path, *, what: str) -> None:
    """Check that the private half of `key` signed these bytes.

    Raises:
        SignatureInvalid: the signature was made with another key or over other bytes.
        NotFound: the key file does not exist.
    """
    try:
        load_public(key).verify(signature, words, ECDSA(SHA256()))
    except InvalidSignature as error:
        raise SignatureInvalid(
            f"the signature of {what} was not made with {key}, or not over these bytes",
            hint="Find out who wrote it before you use it.",
        ) from error


def _fetch_signatures(bundle: Outline) -> list[tuple[bytes, bytes]]:
    hub = bundle.hub
    entry = current(hub.tags(bundle.name), signature_tag(bundle.digest))
    if entry is None:
        return []

    def fetch(blob: Descriptor) -> bytes:
        return b"".join(verified(hub.read_blob(bundle.name, blob), blob, hub.url))

    return read_signatures(hub.read_manifest(bundle.name, entry.target.digest), fetch)
