"""A client of the admin API, for whoever moves releases."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

import requests

from cloudedge.admin import order_header
from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import (
    CloudEdgeError,
    Conflict,
    DeadlineExceeded,
    InputError,
    NotFound,
    Rejected,
    Unavailable,
)
from cloudedge.serving.control._desired import Desired
from cloudedge.serving.control._routing import Shadow, Variant

__all__ = ["AdminClient"]

_KINDS: dict[int, type[CloudEdgeError]] = {400: InputError, 401: Rejected, 403: Rejected, 404: NotFound, 409: Conflict}
_ATTEMPTS = 3
_FIRST_WAIT_S = 0.1
_POLL_S = 0.05


class AdminClient:
    """Talks to one replica's admin API. Every operation can be repeated, so what got no answer is asked again.

    Args:
        address: ``host:port``, or a URL.
        token: What the replica wants, if it wants one; or what returns it, asked each time.
        timeout_s: For each attempt.
        clock: Time and randomness.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | Callable[[], str] | None = None,
        timeout_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self.url = (address if "://" in address else f"http://{address}").rstrip("/")
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._session = requests.Session()
        self._session.trust_env = False
        self._token = token

    def versions(self) -> dict[str, Any]:
        """Return what is loaded, who answers, each version's ``memory_bytes``, and ``memory_free_bytes`` if known."""
        return self._do("GET", "/versions")

    def version(self, pin: str) -> dict[str, Any]:
        """Return one version.

        Raises:
            NotFound: it is not there.
        """
        return self._do("GET", f"/versions/{quote(pin, safe='')}")

    def load(self, bundle: str, *, name: str = "", tables: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Begin to load a bundle; returns its pin and state. `tables` says what cube.conf calls each table."""
        more = ({"name": name} if name else {}) | ({"tables": dict(tables)} if tables else {})
        return self._do("POST", "/versions", {"bundle": bundle, **more})

    def wait_loaded(self, pin: str, *, within_s: float = 600.0) -> dict[str, Any]:
        """Wait until a version can answer.

        Raises:
            InputError: it could not be loaded; says why.
            DeadlineExceeded: it takes longer.
        """
        end = time.monotonic() + within_s
        while True:
            found = self.version(pin)
            if found["state"] == "ready":
                return found
            if found["state"] == "failed":
                raise InputError(f"{self.url} could not load version {pin}: {found['error']}", pin=pin)
            if time.monotonic() > end:
                raise DeadlineExceeded(f"version {pin} on {self.url} is {found['state']} after {within_s} s", pin=pin)
            self._clock.sleep(_POLL_S)

    def probe(self, pin: str) -> dict[str, Any]:
        """Let a version answer its probes; ``passed`` says how it went."""
        return self._do("POST", f"/versions/{quote(pin, safe='')}/probe", {})

    def predict(self, pin: str, inputs: dict[str, Any], outputs: Sequence[str] = ()) -> dict[str, Any]:
        """Ask one version, whoever is active."""
        return self._do("POST", f"/versions/{quote(pin, safe='')}/predict", {"inputs": inputs, "outputs": [*outputs]})

    def activate(self, pin: str) -> None:
        """Move the pointer."""
        self._do("POST", f"/versions/{quote(pin, safe='')}/activate", {})

    def deactivate(self) -> None:
        """Take the pointer away: no version answers any more."""
        self._do("DELETE", "/active")

    def set_weights(self, variants: Sequence[Variant]) -> None:
        """Share the traffic; none: everything to the active version."""
        self._do("PUT", "/weights", {"variants": [vars(variant) for variant in variants]})

    def set_shadow(self, shadow: Shadow | None) -> None:
        """Mirror requests to a version; None: stop."""
        self._do("PUT", "/shadow", {} if shadow is None else vars(shadow))

    def unload(self, pin: str) -> None:
        """Unload a version once its last request is done."""
        self._do("DELETE", f"/versions/{quote(pin, safe='')}")

    def drain(self, within_s: float = 10.0) -> None:
        """Let the replica finish and stop."""
        self._do("POST", "/drain", {"within_s": within_s}, attempts=1)

    def desired(self) -> dict[str, Any]:
        """Say how far a replica is that follows a document: ``order``, ``tried``, ``reached``; ``failures`` by pin."""
        return self._do("GET", "/desired")

    def set_desired(self, desired: Desired) -> dict[str, Any]:
        """Give a replica the document to follow.

        Raises:
            Conflict: it follows a newer one.
        """
        return self._do("PUT", "/desired", desired.model_dump(mode="json"))

    def is_ready(self) -> bool:
        """Tell whether the active version answers its probes."""
        try:
            return self._session.get(f"{self.url}/ready", timeout=self._timeout_s).ok
        except requests.RequestException:
            return False

    def stats(self) -> dict[str, Any]:
        """Return the counters since each version was loaded.

        ``latency_buckets`` lists ``[upper_ms, count]``, the last with None for no bound: the difference of two moments
        is the histogram of what came between, which percentiles cannot tell.
        """
        return self._do("GET", "/stats")

    def _do(
        self, method: str, path: str, body: dict[str, Any] | None = None, attempts: int = _ATTEMPTS
    ) -> dict[str, Any]:
        for attempt in range(attempts):
            if attempt:
                self._clock.sleep(_FIRST_WAIT_S * 2**attempt * (0.5 + self._clock.random()))
            try:
                headers = order_header() | self._authorization()
                answer = self._session.request(
                    method, self.url + path, json=body, headers=headers, timeout=self._timeout_s
                )
            except requests.RequestException as error:
                why = f"does not answer: {type(error).__name__}"
                failure: CloudEdgeError = Unavailable(f"{method} {self.url}{path} {why}")
                failure.__cause__ = error
                continue
            if answer.ok:
                found: dict[str, Any] = answer.json()
                return found
            failure = self._failure(method, path, answer)
            if not failure.retry_helps:
                break
        raise failure

    def _authorization(self) -> dict[str, str]:
        token = self._token() if callable(self._token) else self._token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _failure(self, method: str, path: str, answer: requests.Response) -> CloudEdgeError:
        try:
            content = answer.json()
            message, hint = str(content.get("error", "")), str(content.get("hint", ""))
        except (ValueError, AttributeError):
            message, hint = answer.text[:200], ""
        kind = _KINDS.get(answer.status_code, Unavailable)
        return kind(f"{method} {self.url}{path}: {answer.status_code}: {message}", hint=hint)

    def close(self) -> None:
        """Close its connections."""
        self._session.close()

    def __enter__(self) -> AdminClient:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
