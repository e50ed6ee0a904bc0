"""Authentication of requests: none, Baidu's bce-auth-v1, or a custom header.

The public product's API is not published, so the scheme is a setting.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from urllib.parse import parse_qsl, quote, urlsplit

from cloudedge.clock import Clock, rfc3339
from cloudedge.config import CloudConfig, reveal
from cloudedge.errors import ConfigError

__all__ = ["Signer", "authorization", "open_signer"]

Signer = Callable[[str, str, Mapping[str, str]], Mapping[str, str]]
"""Maps method, whole URL and headers to the headers to add; called again for every try, since signatures age."""

_EXPIRES_S = 1800


def open_signer(settings: CloudConfig, clock: Clock) -> Signer:
    """Return the configured signer; secrets are read when a request is signed, not before.

    Raises:
        ConfigError: a setting that the signer needs is missing.
    """
    if settings.signer == "none":
        return lambda _method, _url, _headers: {}
    if settings.signer == "header":
        if settings.auth_value is None:
            raise ConfigError("the signer 'header' needs auth_value", hint="Set it to `env:NAME` or `file:PATH`.")
        name, value = settings.auth_header, settings.auth_value
        return lambda _method, _url, _headers: {name: reveal(value)}
    if not settings.access_key or settings.secret_key is None:
        raise ConfigError("the signer 'bce-auth-v1' needs access_key and secret_key")
    keys, token = (settings.access_key, settings.secret_key), settings.session_token

    def sign(method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        now = clock.now()
        added = {"x-bce-date": rfc3339(now)}
        if token is not None:
            added["x-bce-security-token"] = reveal(token)
        parts = urlsplit(url)
        everything = {**headers, **added, "host": parts.netloc.rpartition("@")[2]}
        # Sign only headers that pass proxies unchanged; Content-Length and others may not.
        signed = sorted({name.lower() for name in everything if name.lower().startswith("x-bce-")} | {"host"})
        query = parse_qsl(parts.query, keep_blank_values=True)
        added["Authorization"] = authorization(
            (keys[0], reveal(keys[1])), method, parts.path, query, everything, signed=signed, at=now
        )
        return added

    return sign


def authorization(
    keys: tuple[str, str],
    method: str,
    path: str,
    query: Iterable[tuple[str, str]],
    headers: Mapping[str, str],
    *,
    signed: Iterable[str],
    at: datetime,
    expires_s: int = _EXPIRES_S,
) -> str:
    """Return the Authorization header of bce-auth-v1.

    Args:
        keys: The access key, which the header names, and the secret key, which signs.
        method: GET, PUT...
        path: The path as sent, already percent-encoded.
        query: Names and values, not encoded.
        headers: The headers, at least those to sign.
        signed: The names of the headers to sign.
        at: The current time.
        expires_s: The lifetime of the signature.
    """
    prefix = f"bce-auth-v1/{keys[0]}/{rfc3339(at)}/{expires_s}"
    key = _hmac(keys[1], prefix)
    names = sorted(name.lower() for name in signed)
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    canonical = "\n".join(
        (
            method.upper(),
            quote(path, safe="/%~-_."),
            "&".join(sorted(f"{_enc(k)}={_enc(v)}" for k, v in query if k.lower() != "authorization")),
            "\n".join(sorted(f"{_enc(name)}:{_enc(lower[name])}" for name in names if lower.get(name))),
        )
    )
    return f"{prefix}/{';'.join(names)}/{_hmac(key, canonical)}"


def _enc(text: str) -> str:
    return quote(text, safe="~-_.")


def _hmac(key: str, message: str) -> str:
    return hmac.new(key.encode(), message.encode(), hashlib.sha256).hexdigest()
