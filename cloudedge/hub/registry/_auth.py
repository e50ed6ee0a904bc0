"""Registry authentication: settings, stored credentials, challenges, and the tokens that answer them.

This module opens no connection: the session passes in a function that fetches a token. Secrets stay out of `repr`,
logs and errors.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from cloudedge.errors import ConfigError, InputError, Rejected
from cloudedge.hub.core import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudedge.clock import Clock

__all__ = [
    "Authenticator",
    "Challenge",
    "Credentials",
    "RegistrySettings",
    "find_credentials",
    "parse_challenges",
]


@dataclass(frozen=True)
class RegistrySettings:
    """Credentials and options for one registry."""

    username: str | None = None
    """With `password`, takes precedence over docker's stored credentials."""
    password: str | None = field(default=None, repr=False)
    insecure: bool = False
    """Speak http to another machine. Loopback always speaks http."""
    ca_file: Path | None = None
    """Certificates to trust instead of the default ones, in PEM."""
    timeout_s: float = 60.0
    """Time limit for a connection, and for each silence on it."""
    state_dir: Path | None = None
    """The directory that records upload sessions, so that a killed upload continues; None: it starts again."""


@dataclass(frozen=True)
class Credentials:
    """A user name and a password."""

    username: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The Authorization header's value."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


_HELPER = re.compile(r"[A-Za-z0-9._-]+")
_HELPER_TIMEOUT_S = 60  # it may prompt a person


def find_credentials(host: str, settings: RegistrySettings) -> Credentials | None:
    """Return the configured credentials, else docker's stored ones for the host, else None.

    Raises:
        ConfigError: docker's configuration, or the helper program it names, is unusable.
    """
    if settings.username is not None and settings.password is not None:
        return Credentials(settings.username, settings.password)
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        config = parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except (OSError, InputError) as error:
        raise ConfigError(f"cannot read docker's configuration {path}: {error}", path=path) from error
    helper = _mapping(config.get("credHelpers")).get(host)
    if helper is not None:
        return _ask_helper(str(helper), host)
    for address, entry in _mapping(config.get("auths")).items():
        if _host_of(address) == host and _mapping(entry).get("auth"):
            return _decode_auth(entry["auth"], path)
    store = config.get("credsStore")
    return _ask_helper(str(store), host) if store else None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _host_of(address: str) -> str:
    """Return the host of an entry in docker's configuration: some are bare, some are old-style URLs."""
    return (urlsplit(address).netloc if "://" in address else address.partition("/")[0]).lower()


def _decode_auth(encoded: object, path: Path) -> Credentials:
    try:
        username, _, password = base64.b64decode(str(encoded), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise ConfigError(f"{path} holds credentials that are not base64", path=path) from None
    return Credentials(username, password)


def _ask_helper(name: str, host: str) -> Credentials | None:
    program = f"docker-credential-{name}"
    if not _HELPER.fullmatch(name):
        raise ConfigError(f"docker's configuration names an impossible credential helper: {name!r}")
    try:
        done = subprocess.run(
            [program, "get"], input=host.encode(), capture_output=True, timeout=_HELPER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"{program}, named by docker's configuration, did not run: {type(error).__name__}",
            hint="Install it, or configure the registry's user name and password.",
        ) from error
    if done.returncode:
        if b"not found" in done.stdout:  # every helper's answer for an unknown host
            return None
        raise ConfigError(f"the credential helper {program} failed for {host} with status {done.returncode}")
    try:
        answer = json.loads(done.stdout)
        credentials = Credentials(str(answer["Username"]), str(answer["Secret"]))
    except (ValueError, KeyError, TypeError):
        # Not chained: the error would quote the answer, which holds the secret.
        raise ConfigError(f"the credential helper {program} returned no credentials for {host}") from None
    if credentials.username == "<token>":
        raise ConfigError(
            f"the credential helper {program} returned an identity token for {host}, which is not supported",
            hint="Configure a user name and a password, or a robot account's token as the password.",
        )
    return credentials


_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # noqa: S105 - RFC 7230's name for a word
_SCHEME = re.compile(rf"[ \t,]*({_TOKEN})(?=[ \t,]|$)[ \t]*")
_PARAM = re.compile(rf'[ \t,]*({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))[ \t]*(?=,|$)')
_TOKEN68 = re.compile(r"[A-Za-z0-9\-._~+/]+=*[ \t]*(?=,|$)")


@dataclass(frozen=True)
class Challenge:
    """One authentication scheme that a server offers."""

    scheme: str
    params: Mapping[str, str]


def parse_challenges(header: str) -> list[Challenge]:
    """Parse a WWW-Authenticate header (RFC 7235); everything after an unreadable part is dropped."""
    found: list[Challenge] = []
    at = 0
    while at < len(header):
        if not (scheme := _SCHEME.match(header, at)):
            break
        at = scheme.end()
        params: dict[str, str] = {}
        found.append(Challenge(scheme[1].lower(), params))
        while param := _PARAM.match(header, at):
            quoted = param[2]
            params[param[1].lower()] = param[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            at = param.end()
        if not params and (token68 := _TOKEN68.match(header, at)):
            at = token68.end()
    return found


_DEFAULT_LIFE_S = 60.0  # the token specification's default
_EXPIRY_MARGIN_S = 5.0


class Authenticator:
    """Answers a registry's challenges and caches the answers, one per scope, until they expire."""

    def __init__(
        self,
        host: str,
        settings: RegistrySettings,
        fetch_token: Callable[[str, str | None], dict[str, Any]],
        clock: Clock,
    ) -> None:
        """Set up the cache.

        Args:
            host: The registry's name in docker's configuration.
            settings: The configured credentials.
            fetch_token: Fetches the JSON object of a URL, with an Authorization header if given.
            clock: For expiry.
        """
        self._host, self._settings, self._fetch, self._clock = host, settings, fetch_token, clock
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[str, float]] = {}
        self._credentials: Credentials | None = None
        self._looked_up = False

    def header(self, scope: str) -> str | None:
        """Return the cached Authorization header of a scope that has not expired, if any."""
        answer, expires = self._answers.get(scope, ("", 0.0))
        return answer if answer and self._clock.monotonic() < expires else None

    def answer(self, challenge: str, scope: str, refused: str | None) -> str | None:
        """Answer a 401: return a new Authorization header, or None if there is no better one than `refused`.

        Raises:
            Rejected: the registry requires an unsupported scheme.
            ConfigError: the stored credentials are unusable.
        """
        with self._lock:  # many threads refused at once fetch one token
            known = self.header(scope)
            if known is not None and known != refused:
                return known
            offers = {c.scheme: c for c in reversed(parse_challenges(challenge))}
            if "bearer" in offers:
                value, life_s = self._token(offers["bearer"], scope)
            elif "basic" in offers:
                credentials = self._find_once()
                if credentials is None or credentials.basic == refused:
                    return None
                value, life_s = credentials.basic, float("inf")
            else:
                raise Rejected(
                    f"the registry {self._host} requires an authentication other than Basic and Bearer",
                    hint="Check that the address belongs to a registry.",
                    hub=self._host,
                )
            self._answers[scope] = value, self._clock.monotonic() + life_s
            return value

    def _find_once(self) -> Credentials | None:
        if not self._looked_up:
            self._credentials, self._looked_up = find_credentials(self._host, self._settings), True
        return self._credentials

    def _token(self, offer: Challenge, scope: str) -> tuple[str, float]:
        realm = urlsplit(offer.params.get("realm", ""))
        if realm.scheme not in ("http", "https") or not realm.netloc:
            raise Rejected(f"the registry {self._host} names no address for a token", hub=self._host)
        query = [("service", offer.params["service"])] if "service" in offer.params else []
        query += [("scope", wanted) for wanted in (offer.params.get("scope") or scope).split()]
        url = realm._replace(query="&".join(filter(None, (realm.query, urlencode(query)))), fragment="").geturl()
        credentials = self._find_once()
        answer = self._fetch(url, credentials.basic if credentials else None)
        token, life = answer.get("token") or answer.get("access_token"), answer.get("expires_in")
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise Rejected(
                f"the token server {realm.netloc} of the registry {self._host} returned no token", hub=self._host
            )
        life_s = float(life) if isinstance(life, (int, float)) and life > 0 else _DEFAULT_LIFE_S
        return f"Bearer {token}", max(life_s - _EXPIRY_MARGIN_S, life_s / 2)
