"""Signatures of bundles: keys, cosign's format, signing and verification."""

from __future__ import annotations

from cloudedge.bundle.signing._keys import needs_passphrase, new_key_pair
from cloudedge.bundle.signing._seen_versions import SeenVersions
from cloudedge.bundle.signing._sign import check_signature, check_words, sign_bundle, sign_words

__all__ = [
    "SeenVersions",
    "check_signature",
    "check_words",
    "needs_passphrase",
    "new_key_pair",
    "sign_bundle",
    "sign_words",
]
