"""Signatures in cosign's simple-signing format: the signed payload, its storage and its verification.

A signature is an OCI manifest of its own, tagged ``sha256-<hex>.sig`` after the manifest it signs. It has one
layer per signature; a layer holds the signed payload and carries the signature as an annotation. ``cosign verify``
reads what this module writes, and this module reads what ``cosign sign`` writes; docs/decisions/signatures.md
has the details. This module opens no file and no connection, and leaves the choice of trusted keys to its caller.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from cloudedge.errors import InputError, SignatureInvalid
from cloudedge.hub import Descriptor, Digest, Manifest, canonical_json, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXPIRES", "check", "payload", "read_signatures", "sign", "signature_manifest"]

PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE_ANNOTATION = "dev.cosignproject.cosign/signature"
EXPIRES = "io.cloudedge.expires"
"""The annotation with the time after which a signature no longer counts, RFC 3339."""
PAYLOAD_LIMIT = 64 * 1024
"""The largest payload to fetch, in bytes; real payloads have about 250."""

_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_CLAIM_TYPE = "cosign container image signature"
_NO_TIMESTAMP = "0001-01-01T00:00:00Z"  # cosign's creation time unless it is asked to record one


def payload(name: str, digest: Digest, expires: str = "") -> bytes:
    """Return the bytes to sign: `digest`, claimed for the repository `name`, until `expires` if that is given."""
    return canonical_json(
        {
            "critical": {
                "identity": {"docker-reference": name},
                "image": {"docker-manifest-digest": digest},
                "type": _CLAIM_TYPE,
            },
            "optional": {EXPIRES: expires} if expires else None,
        }
    )


def sign(private_key: ec.EllipticCurvePrivateKey, payload: bytes) -> bytes:
    """Sign a payload: ECDSA over its SHA-256, in DER."""
    return private_key.sign(payload, ec.ECDSA(SHA256()))


def signature_manifest(signed: list[tuple[bytes, bytes]]) -> tuple[Manifest, list[bytes]]:
    """Return the manifest that holds (payload, signature) pairs, and its blobs, config first.

    Raises:
        InputError: there are no pairs, or more than a manifest can hold.
    """
    if not signed:
        raise InputError("a signature manifest needs at least one signature")
    layers = [
        Descriptor.of(payload, PAYLOAD_TYPE, {SIGNATURE_ANNOTATION: base64.b64encode(signature).decode()})
        for payload, signature in signed
    ]
    # cosign stores signatures as an image, so the config is an image's config that lists the layers' digests only.
    config = canonical_json(
        {
            "architecture": "",
            "config": {},
            "created": _NO_TIMESTAMP,
            "history": [{"created": _NO_TIMESTAMP} for _ in layers],
            "os": "",
            "rootfs": {"diff_ids": [layer.digest for layer in layers], "type": "layers"},
        }
    )
    manifest = Manifest.build(
        artifact_type="", config=Descriptor.of(config, _CONFIG_TYPE), layers=layers, annotations={}
    )
    return manifest, [config, *(payload for payload, _ in signed)]


def read_signatures(manifest: Manifest, fetch_blob: Callable[[Descriptor], bytes]) -> list[tuple[bytes, bytes]]:
    """Return every (payload, signature) of a signature manifest; layers of other kinds are skipped.

    Args:
        manifest: The manifest under `signature_tag`.
        fetch_blob: Returns a blob's bytes; called once per payload, for at most `PAYLOAD_LIMIT` bytes.

    Raises:
        SignatureInvalid: a signature is not base64, or its payload is over the limit.
    """
    found: list[tuple[bytes, bytes]] = []
    payloads: dict[Digest, bytes] = {}
    for layer in manifest.layers:
        encoded = layer.annotations.get(SIGNATURE_ANNOTATION)
        if layer.media_type != PAYLOAD_TYPE or encoded is None:
            continue
        if layer.size > PAYLOAD_LIMIT:
            raise SignatureInvalid(
                f"the signature manifest {manifest.digest} names a payload of {layer.size} bytes, "
                f"over the limit of {PAYLOAD_LIMIT}",
                hint="Find out who wrote it, then sign the bundle again with `cloudedge bundle sign REF --key KEY`.",
                digest=manifest.digest,
            )
        try:
            signature = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise SignatureInvalid(
                f"the signature manifest {manifest.digest} holds a signature that is not base64",
                hint="Sign the bundle again with `cloudedge bundle sign REF --key KEY`.",
                digest=manifest.digest,
            ) from error
        if layer.digest not in payloads:
            payloads[layer.digest] = fetch_blob(layer)
        found.append((payloads[layer.digest], signature))
    return found


def check(public_key: ec.EllipticCurvePublicKey, payload: bytes, signature: bytes, digest: Digest) -> str:
    """Check that `signature` was made over `payload` with the key, and that the payload claims `digest`.

    The repository name inside the payload is not compared, as in cosign: a bundle copied to another hub keeps its
    signature. The bundle's own name and version are in its manifest, which the digest covers.

    Returns:
        The time after which the signature no longer counts; empty if it has none.

    Raises:
        SignatureInvalid: the key, the bytes, the claim or the manifest differ.
    """
    try:
        public_key.verify(signature, payload, ec.ECDSA(SHA256()))
    except InvalidSignature as error:
        raise SignatureInvalid(
            f"the signature of {digest} was not made with this key, or not over these bytes",
            hint="Check with the signer's public key, or have the bundle signed again.",
            digest=digest,
        ) from error
    # Only bytes that were signed with the private key get this far.
    claimed, expires = _claim(payload)
    if claimed != digest:
        raise SignatureInvalid(
            f"the signature was made for {claimed}, not for {digest}",
            hint="The signature was copied from another bundle. Have this bundle signed.",
            digest=digest,
            found=claimed,
        )
    return expires


def _claim(payload: bytes) -> tuple[str, str]:
    """Return the digest that a payload claims, and the time until which."""
    try:
        value: Any = parse_json(payload, "signed payload")
        critical, optional = value["critical"], value.get("optional") or {}
        expires = str(optional.get(EXPIRES, ""))
        kind, claimed = critical["type"], critical["image"]["docker-manifest-digest"]
    except (InputError, AttributeError, KeyError, TypeError) as error:
        raise SignatureInvalid(
            "the signed payload is not a simple-signing claim",
            hint="Sign the bundle again with `cloudedge bundle sign REF --key KEY`.",
        ) from error
    if kind != _CLAIM_TYPE:
        raise SignatureInvalid(f"the signed payload claims {kind!r}, not {_CLAIM_TYPE!r}")
    return str(claimed), expires
