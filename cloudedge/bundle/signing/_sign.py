"""Sign a bundle and verify its signatures; a signature is kept beside its bundle and travels with it.

Each signature is written twice: in cosign's simple-signing format, which cloudedge and cosign 2 read, and as a sigstore
bundle, which cosign 3 reads.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256

from cloudedge.bundle import media_types as media
from cloudedge.bundle.contents import Outline
from cloudedge.bundle.packing import Bundle
from cloudedge.bundle.signing._cosign import check, payload, read_signatures, sign, signature_manifest
from cloudedge.bundle.signing._keys import load_private, load_public
from cloudedge.bundle.signing._sigstore import (
    BUNDLE_LIMIT,
    BUNDLE_TYPE,
    hint_in,
    index_with,
    key_hint,
    referrer,
    sigstore_bundle,
)
from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.errors import InputError, SignatureInvalid
from cloudedge.hub import Descriptor, Digest, Manifest, current, is_version, referrers_tag, signature_tag, verified
from cloudedge.io import who

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

__all__ = ["check_signature", "check_words", "sign_bundle", "sign_words"]


def sign_bundle(
    bundle: Bundle,
    key: Path,
    passphrase: bytes | None = None,
    *,
    expires: timedelta | None = None,
    clock: Clock | None = None,
) -> None:
    """Sign a bundle. Other signatures stay; signing twice with one key changes nothing.

    Args:
        bundle: The bundle.
        key: The private key.
        passphrase: Of an encrypted key.
        expires: The time for which the signature counts, from now on; it replaces an earlier one of the same key.
            None: for good.
        clock: Time, for the tags' history and the expiry.

    Raises:
        NotFound: the key file does not exist.
        InputError: the key cannot be used, or the time is not positive.
    """
    if expires is not None and expires <= timedelta():
        raise InputError(f"a signature cannot expire after {expires}")
    private = load_private(key, passphrase)
    now = (clock or SystemClock()).now()
    at, until = rfc3339(now), rfc3339(now + expires) if expires is not None else ""
    mine, others = [], []
    for signed, signature in _fetch_signatures(bundle):
        try:
            ends = check(private.public_key(), signed, signature, bundle.digest)
        except SignatureInvalid:
            others.append((signed, signature))
        else:
            mine.append(((signed, signature), ends))
    is_new = expires is not None or not any(_counts(ends, now) for _, ends in mine)
    with bundle.hub.writing():
        if is_new:
            claim = payload(bundle.name, bundle.digest, until)
            manifest, blobs = signature_manifest([*others, (claim, sign(private, claim))])
            kinds = [blob.media_type for blob in (manifest.config, *manifest.layers) if blob is not None]
            _store(bundle, manifest, list(zip(blobs, kinds, strict=True)))
            _tag(bundle, signature_tag(bundle.digest), manifest, at)
        _write_sigstore(bundle, private, until, at, is_new=is_new)


def _write_sigstore(bundle: Bundle, private: EllipticCurvePrivateKey, until: str, at: str, *, is_new: bool) -> None:
    """Write the signature as a sigstore bundle, unless the key's own is there already."""
    tag = referrers_tag(bundle.digest)
    entry = current(bundle.hub.tags(bundle.name), tag)
    index = bundle.hub.read_manifest(bundle.name, entry.target.digest) if entry is not None else None
    mine = _referrers_by(bundle, index, private.public_key())
    if mine and not is_new:
        return
    manifest, blobs = referrer(bundle.manifest.descriptor, sigstore_bundle(private, bundle.digest, until), created=at)
    _store(bundle, manifest, blobs)
    every = index_with(index, manifest, dropped=mine)
    bundle.hub.write_manifest(bundle.name, every)
    _tag(bundle, tag, every, at)


def _referrers_by(bundle: Bundle, index: Manifest | None, key: EllipticCurvePublicKey) -> set[Digest]:
    """Return the referrers whose sigstore bundle names a key."""
    found = set()
    for entry in index.manifests if index is not None else ():
        manifest = bundle.hub.read_manifest(bundle.name, entry.digest)
        for layer in manifest.layers:
            if layer.media_type == BUNDLE_TYPE and layer.size <= BUNDLE_LIMIT:
                content = b"".join(verified(bundle.hub.read_blob(bundle.name, layer), layer, bundle.hub.url))
                if hint_in(content) == key_hint(key):
                    found.add(entry.digest)
    return found


def _store(bundle: Bundle, manifest: Manifest, blobs: list[tuple[bytes, str]]) -> None:
    for data, kind in blobs:
        bundle.hub.write_bytes(data, kind)
    bundle.hub.write_manifest(bundle.name, manifest)


def _tag(bundle: Bundle, tag: str, manifest: Manifest, at: str) -> None:
    bundle.hub.move_tag(bundle.name, tag, manifest.descriptor, by=who(), at=at)


def _counts(ends: str, now: datetime) -> bool:
    """Tell whether a signature still counts; an end that cannot be read is one that has passed."""
    try:
        return not ends or now < datetime.fromisoformat(ends.replace("Z", "+00:00"))
    except (ValueError, TypeError):
        return False


def check_signature(bundle: Outline, key: Path, *, tag: str = "", clock: Clock | None = None) -> None:
    """Check that the private half of `key` signed this bundle, under this name, and that the signature still counts.

    Args:
        bundle: The bundle, under the name it was asked for.
        key: The public key.
        tag: The tag or version it was asked for; a version must be the one that was signed.
        clock: Time, for the expiry.

    Raises:
        SignatureInvalid: no signature was made with it; or the bundle was signed as another one; or the signature has
            expired, which the fact `expired` then tells.
        NotFound: the key file does not exist.
    """
    public = load_public(key)
    found = _fetch_signatures(bundle)
    ends = []
    for signed, signature in found:
        try:
            ends.append(check(public, signed, signature, bundle.digest))
        except SignatureInvalid:
            continue
    if not ends:
        count = f"none of its {len(found)} signatures was" if found else "it is not signed, let alone"
        raise SignatureInvalid(
            f"{bundle.name}:{bundle.version} {bundle.digest}: {count} made with {key}",
            hint="Find out who packed it before you use it. "
            "Its owner signs it with `cloudedge bundle sign REF --key KEY`.",
            digest=bundle.digest,
        )
    _check_claimed_name(bundle, tag)
    now = (clock or SystemClock()).now()
    if not any(_counts(end, now) for end in ends):
        raise SignatureInvalid(
            f"{bundle.name}:{bundle.version} {bundle.digest}: its signature by {key} expired at {max(ends)}",
            hint="Its owner signs it again with `cloudedge bundle sign REF --key KEY --expires 30d`.",
            digest=bundle.digest,
            expired=max(ends),
        )


def _check_claimed_name(bundle: Outline, tag: str) -> None:
    """Compare what was asked for with the name and version that were signed: a hub can point any tag at any bundle."""
    title = bundle.manifest.annotations.get(media.TITLE, bundle.name)
    wanted = tag if is_version(tag) else bundle.version
    if (title, bundle.version) != (bundle.name, wanted):
        raise SignatureInvalid(
            f"{bundle.name}:{tag or wanted} is a bundle that was signed as {title}:{bundle.version or '(no version)'} "
            f"({bundle.digest})",
            hint="Find out who moved the tag: `cloudedge hub history` shows that. "
            "Name the bundle by its digest if you want exactly this one.",
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
