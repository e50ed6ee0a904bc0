"""Signatures as sigstore bundles, which cosign 3 requires: one JSON document each, stored as an OCI 1.1 referrer.

A sigstore bundle holds a DSSE envelope around an in-toto statement whose subject is the signed digest, and the hint of
the key: SHA-256 of the public key in DER, base64. The manifest around it names the signed manifest as its `subject`;
registries without the referrers API find it through an index under the tag ``sha256-<hex>``. This module opens no file
and no connection; docs/decisions/signatures.md has what cosign 3 writes and accepts.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cloudedge.bundle.signing._cosign import sign
from cloudedge.hub import IMAGE_INDEX, IMAGE_MANIFEST, Descriptor, Digest, Manifest, canonical_json, parse_json

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["BUNDLE_LIMIT", "BUNDLE_TYPE", "hint_in", "index_with", "key_hint", "referrer", "sigstore_bundle"]

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
BUNDLE_LIMIT = 64 * 1024
"""The largest sigstore bundle to fetch, in bytes; those made with a key have about 700."""

_EMPTY, _EMPTY_TYPE = b"{}", "application/vnd.oci.empty.v1+json"
_PREDICATE = "https://sigstore.dev/cosign/sign/v1"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"


def key_hint(key: ec.EllipticCurvePublicKey) -> str:
    """Return the hint by which a sigstore bundle names its key."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


def sigstore_bundle(private_key: ec.EllipticCurvePrivateKey, digest: Digest, expires: str = "") -> bytes:
    """Sign a digest and return the sigstore bundle.

    Args:
        private_key: The key.
        digest: The digest of the signed manifest.
        expires: The time after which the signature no longer counts; cosign shows it and does not compare it.
    """
    statement = canonical_json(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"digest": {"sha256": digest.removeprefix("sha256:")}, "annotations": {}}],
            "predicateType": _PREDICATE,
            "predicate": {"expires": expires} if expires else {},
        }
    )
    signature = sign(private_key, _pre_authenticated(statement))
    return canonical_json(
        {
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {"publicKey": {"hint": key_hint(private_key.public_key())}},
            "dsseEnvelope": {
                "payload": base64.b64encode(statement).decode(),
                "payloadType": _PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(signature).decode()}],
            },
        }
    )


def referrer(subject: Descriptor, bundle: bytes, *, created: str) -> tuple[Manifest, list[tuple[bytes, str]]]:
    """Return the manifest that refers to a signed one, and its blobs with their media types."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": IMAGE_MANIFEST,
        "artifactType": BUNDLE_TYPE,
        "config": {**Descriptor.of(_EMPTY, _EMPTY_TYPE).to_json(), "artifactType": BUNDLE_TYPE},
        "layers": [Descriptor.of(bundle, BUNDLE_TYPE).to_json()],
        "subject": Descriptor(subject.media_type, subject.digest, subject.size).to_json(),
        "annotations": {
            "dev.sigstore.bundle.content": "dsse-envelope",
            "dev.sigstore.bundle.predicateType": _PREDICATE,
            "org.opencontainers.image.created": created,
        },
    }
    return Manifest.parse(canonical_json(manifest)), [(_EMPTY, _EMPTY_TYPE), (bundle, BUNDLE_TYPE)]


def index_with(index: Manifest | None, added: Manifest, dropped: Container[Digest] = ()) -> Manifest:
    """Return the index of referrers with one more; entries of other tools stay as they are."""
    value: dict[str, Any] = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": []}
    if index is not None:
        value = parse_json(index.raw, "index of referrers")
    entries = [entry for entry in value.get("manifests") or () if entry.get("digest") not in dropped]
    value["manifests"] = [*entries, {**added.descriptor.to_json(), "artifactType": BUNDLE_TYPE}]
    return Manifest.parse(canonical_json(value))


def hint_in(bundle: bytes) -> str:
    """Return the hint of the key that a sigstore bundle names; empty if it was made without one."""
    found: Any = parse_json(bundle, "sigstore bundle")
    for step in ("verificationMaterial", "publicKey", "hint"):
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def _pre_authenticated(payload: bytes) -> bytes:
    """Return the bytes that a DSSE signature is made over."""
    kind = _PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
