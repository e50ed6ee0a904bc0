"""Signatures in cosign's simple-signing form: what is signed, how it is stored, how it is checked.

A signature is an OCI manifest of its own, tagged ``sha256-<hex>.sig`` after the manifest it speaks for: one
layer per signature, each holding the signed payload, with the signature as an annotation of the layer.
``cosign verify`` reads what is written here and this module reads what ``cosign sign`` wrote; the facts are
in docs/decisions/signatures.md. Nothing here opens a file or a connection, and who may sign is not decided
here.
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

__all__ = ["check", "payload", "read_signatures", "sign", "signature_manifest"]

PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE_ANNOTATION = "dev.cosignproject.cosign/signature"
PAYLOAD_LIMIT = 64 * 1024
"""Bytes of a payload we agree to fetch; real ones have about 250."""

_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_CLAIM = "cosign container image signature"
_NEVER = "0001-01-01T00:00:00Z"  # what cosign writes for "when" unless told to record it


def payload(name: str, digest: Digest) -> bytes:
    """Return the bytes to sign: `digest`, claimed for the repository `name`."""
    return canonical_json(
        {
            "critical": {
                "identity": {"docker-reference": name},
                "image": {"docker-manifest-digest": digest},
                "type": _CLAIM,
            },
            "optional": None,
        }
    )


def sign(private_key: ec.EllipticCurvePrivateKey, payload: bytes) -> bytes:
    """Sign a payload: ECDSA over its SHA-256, in DER."""
    return private_key.sign(payload, ec.ECDSA(SHA256()))


def signature_manifest(signed: list[tuple[bytes, bytes]]) -> tuple[Manifest, list[bytes]]:
    """Return the manifest that holds some (payload, signature) pairs, and the blobs it needs, config first.

    Raises:
        InputError: there are none, or more than a manifest can hold.
    """
    if not signed:
        raise InputError("a signature manifest needs at least one signature")
    layers = [
        Descriptor.of(payload, PAYLOAD_TYPE, {SIGNATURE_ANNOTATION: base64.b64encode(signature).decode()})
        for payload, signature in signed
    ]
    # cosign stores signatures as an image, so the config is an image's: its layers by digest, and no more.
    config = canonical_json(
        {
            "architecture": "",
            "config": {},
            "created": _NEVER,
            "history": [{"created": _NEVER} for _ in layers],
            "os": "",
            "rootfs": {"diff_ids": [layer.digest for layer in layers], "type": "layers"},
        }
    )
    manifest = Manifest.build(
        artifact_type="", config=Descriptor.of(config, _CONFIG_TYPE), layers=layers, annotations={}
    )
    return manifest, [config, *(payload for payload, _ in signed)]


def read_signatures(manifest: Manifest, fetch_blob: Callable[[Descriptor], bytes]) -> list[tuple[bytes, bytes]]:
    """Return every (payload, signature) a signature manifest holds; layers of other kinds are passed over.

    Args:
        manifest: The manifest found under `signature_tag`.
        fetch_blob: Returns a blob's bytes; called once per payload, for at most `PAYLOAD_LIMIT` bytes.

    Raises:
        SignatureInvalid: a signature is not base64, or its payload is absurdly large.
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
                hint="Find out who wrote it; sign again with a key you trust.",
                digest=manifest.digest,
            )
        try:
            signature = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise SignatureInvalid(
                f"the signature manifest {manifest.digest} holds a signature that is not base64",
                hint="Sign again.",
                digest=manifest.digest,
            ) from error
        if layer.digest not in payloads:
            payloads[layer.digest] = fetch_blob(layer)
        found.append((payloads[layer.digest], signature))
    return found


def check(public_key: ec.EllipticCurvePublicKey, payload: bytes, signature: bytes, digest: Digest) -> None:
    """Check that `signature` was made over `payload` with the key, and that the payload speaks for `digest`.

    The repository name inside the payload is not compared, as cosign does not: a bundle that was copied to
    another hub keeps its signature.

    Raises:
        SignatureInvalid: another key, other bytes, another claim or another manifest.
    """
    try:
        public_key.verify(signature, payload, ec.ECDSA(SHA256()))
    except InvalidSignature as error:
        raise SignatureInvalid(
            f"the signature of {digest} was not made with this key, or not over these bytes",
            hint="Check with the public key of whoever signed it, or have it signed again.",
            digest=digest,
        ) from error
    # Only bytes that somebody with the key wrote get this far.
    claimed = _claimed_digest(payload)
    if claimed != digest:
        raise SignatureInvalid(
            f"the signature was made for {claimed}, not for {digest}",
            hint="It was copied from another bundle; have this one signed.",
            digest=digest,
            found=claimed,
        )


def _claimed_digest(payload: bytes) -> str:
    try:
        critical: Any = parse_json(payload, "signed payload")["critical"]
        kind, claimed = critical["type"], critical["image"]["docker-manifest-digest"]
    except (InputError, KeyError, TypeError) as error:
        raise SignatureInvalid(
            "the signed payload is not a simple-signing claim", hint="Sign the bundle's manifest again."
        ) from error
    if kind != _CLAIM:
        raise SignatureInvalid(f"the signed payload claims {kind!r}, not {_CLAIM!r}")
    return str(claimed)
