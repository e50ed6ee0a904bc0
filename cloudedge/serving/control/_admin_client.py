"""The client of a serving replica's admin API: loads, probes, activates and unloads versions, and shares traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

from cloudedge.admin import AdminHttpClient, states, with_free_memory, with_key_counts
from cloudedge.clock import Clock
from cloudedge.errors import DeadlineExceeded, InputError
from cloudedge.serving.control._desired import Desired
from cloudedge.serving.control._routing import Shadow, Variant

__all__ = ["AdminClient"]

_ATTEMPTS = 3
_POLL_S = 0.05


class AdminClient:
    """Talks to one replica's admin API. Every operation can be repeated, so a call that got no answer is made again.

    Args:
        address: ``host:port``, or a URL.
        token: What the replica wants, if it wants one; or a function that returns it, called for each request.
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
        self._http = AdminHttpClient(address, token=token, timeout_s=timeout_s, attempts=_ATTEMPTS, clock=clock)
        self.url = self._http.url

    def versions(self) -> dict[str, Any]:
        """Return the versions with their ``memory_bytes``, the routing, and ``free_memory_bytes`` if known."""
        return with_free_memory(self._do("GET", "/versions"))

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
        state = ""

        def look() -> dict[str, Any] | None:
            nonlocal state
            found = self.version(pin)
            state = found["state"]
            if state == states.FAILED:
                raise InputError(f"{self.url} could not load version {pin}: {found['error']}", pin=pin)
            return found if state == states.READY else None

        def late() -> DeadlineExceeded:
            return DeadlineExceeded(f"version {pin} on {self.url} is {state} after {within_s} s", pin=pin)

        return self._http.poll(look, within_s=within_s, late=late, longest_pause_s=_POLL_S)

    def probe(self, pin: str) -> dict[str, Any]:
        """Let a version answer its probes; ``passed`` says how it went."""
        return self._do("POST", f"/versions/{quote(pin, safe='')}/probe", {})

    def predict(self, pin: str, inputs: dict[str, Any], outputs: Sequence[str] = ()) -> dict[str, Any]:
        """Ask one version, active or not."""
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
        return self._http.is_ok("/ready")

    def stats(self) -> dict[str, Any]:
        """Return the counters since each version was loaded.

        ``latency_buckets`` lists ``[upper_ms, count]``, the last with None for no bound: the difference of two moments
        is the histogram of what came between, which percentiles cannot tell.
        """
        found = self._do("GET", "/stats")
        return {**found, "versions": {pin: with_key_counts(each) for pin, each in found["versions"].items()}}

    def _do(
        self, method: str, path: str, body: dict[str, Any] | None = None, attempts: int | None = None
    ) -> dict[str, Any]:
        return self._http.call(method, path, body, attempts=attempts)

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> AdminClient:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
