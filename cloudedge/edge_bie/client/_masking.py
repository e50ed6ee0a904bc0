"""Masking of keys and passwords in everything that is printed, logged or compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from cloudedge.hub import canonical_json

__all__ = ["MASK", "body_digest", "is_secret", "masked"]

MASK = "***"
_SECRET_KEYS = frozenset(
    {"ak", "sk", "password", "token", "secretkey", "secret_key", "accesskey", "access_key", "authorization", "key.pem"}
)
"""`ak` and `sk` come back in clear from every read of a config with a bucket."""


def is_secret(key: str) -> bool:
    """Return True if the value of this key must not be shown."""
    return key.lower() in _SECRET_KEYS


def masked(value: Any, *, everything: bool = False) -> Any:
    """Return a copy of a JSON value with every secret replaced.

    Args:
        value: A JSON value.
        everything: Mask all values below ``data``, too, as in a secret.
    """
    if isinstance(value, Mapping):
        return {
            key: MASK
            if (is_secret(str(key)) and inner)
            else dict.fromkeys(inner, MASK)
            if everything and key == "data" and isinstance(inner, Mapping)
            else masked(inner, everything=everything)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [masked(inner, everything=everything) for inner in value]
    return value


def body_digest(body: Any, *, everything: bool = False) -> str:
    """Return the SHA-256 of a body without its secrets, for the audit log."""
    return hashlib.sha256(canonical_json(masked(body, everything=everything))).hexdigest()
