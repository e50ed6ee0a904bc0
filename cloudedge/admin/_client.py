"""The client of every admin API: one call, or a wait for a state, with bounds.

A call has a time-out, and its answer a greatest size. Waits run on an injected clock. Errors arrive as the class that
the server named, from an explicit list (`_wire_errors`). Calls carry the token, and the number of the order that
`ordered` set. Proxies and credentials of the environment are ignored: the token goes to the server and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cloudedge.admin._orders import order_header, piece_header
from cloudedge.admin._tokens import find_token
from cloudedge.admin._wire_errors import read_error
from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import CloudEdgeError, Rejected, Unavailable
from cloudedge.io import Backoff, read_body, retry

if TYPE_CHECKING:
    import requests

__all__ = ["AdminHttpClient"]

_MAX_ANSWER = 16 << 20
_BACKOFF = Backoff(0.2, 5.0, 0.5, 1.5)
_FIRST_POLL_S, _POLL_GROWTH = 0.002, 1.5
_DENIED = (401, 403)
_SHOWN = 200
_Found = TypeVar("_Found")


class AdminHttpClient:
    """Calls one server's admin API.

    Args:
        address: ``host:port``, or a URL.
        what: The server's name in messages; the URL if left out.
        token: The server's token, or a function that returns it, called for each request. Without one, the token that
            a server of the same user on loopback keeps in a file.
        timeout_s: For each attempt.
        attempts: The number of attempts of a call that got no answer, or an answer after which a retry helps.
        keep_alive: Keep connections between calls; a client that keeps them has to be closed.
        clock: Time and randomness, for waits.
    """

    def __init__(
        self,
        address: str,
        *,
        what: str = "",
        token: str | Callable[[], str] | None = None,
        timeout_s: float = 10.0,
        attempts: int = 1,
        keep_alive: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.url = (address if "://" in address else f"http://{address}").rstrip("/")
        self.clock = clock or SystemClock()
        self._what = what
        self._token = token
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._keep_alive = keep_alive
        self._session: requests.Session | None = None

    @property
    def token(self) -> str:
        """The current token: the given one, or the one that a server of the same user on loopback keeps; or empty."""
        return (self._token() if callable(self._token) else self._token) or find_token(self.url)

    def call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        piece: bytes | None = None,
        offset: int = 0,
        attempts: int | None = None,
    ) -> dict[str, Any]:
        """Make a call and return the JSON object of its answer.

        Args:
            method: The HTTP method.
            path: The quoted path.
            body: Sent as JSON.
            piece: Part of a file, sent instead of a JSON body.
            offset: The position of the piece in its file.
            attempts: For this call, instead of the client's.

        Raises:
            Unavailable: the server does not answer, or not as an admin API does.
            Rejected: the server does not accept the token.
            CloudEdgeError: the server refused, with the class that it named.
        """
        return retry(
            partial(self._once, method, path, body, piece, offset),
            attempts=self._attempts if attempts is None else attempts,
            backoff=_BACKOFF,
            clock=self.clock,
            may_repeat=lambda error: isinstance(error, CloudEdgeError) and error.retry_helps,
        )

    def is_ok(self, path: str) -> bool:
        """Tell whether a path that needs no token answers with a status of success."""
        import requests  # noqa: PLC0415 - slow to import

        try:
            with self._send("GET", path, None, None, {}) as answer:
                read_body(answer, _MAX_ANSWER)
                return answer.ok
        except (requests.RequestException, OSError):
            return False

    def poll(
        self,
        look: Callable[[], _Found | None],
        *,
        within_s: float,
        late: Callable[[], CloudEdgeError],
        longest_pause_s: float = 0.25,
    ) -> _Found:
        """Call `look` repeatedly, on the client's clock, until it returns something; the pauses grow.

        Args:
            look: Returns the awaited value, or None to wait on; raises to end the wait.
            within_s: The time to wait.
            late: Makes the error to raise once that time is over.
            longest_pause_s: Between two looks.
        """
        end = self.clock.monotonic() + within_s
        pause = _FIRST_POLL_S
        while True:
            found = look()
            if found is not None:
                return found
            if self.clock.monotonic() > end:
                raise late()
            self.clock.sleep(pause)
            pause = min(longest_pause_s, pause * _POLL_GROWTH)

    def close(self) -> None:
        """Close the connections that are kept."""
        if self._session is not None:
            self._session.close()

    def _once(
        self, method: str, path: str, body: dict[str, Any] | None, piece: bytes | None, offset: int
    ) -> dict[str, Any]:
        import requests  # noqa: PLC0415 - slow to import

        what = self._what or f"{method} {self.url}{path}"
        token = self.token
        headers = order_header() | ({"Authorization": f"Bearer {token}"} if token else {})
        headers |= {} if piece is None else piece_header(offset)
        try:
            with self._send(method, path, body, piece, headers) as answer:
                content = read_body(answer, _MAX_ANSWER)
        except (requests.RequestException, OSError) as error:
            raise Unavailable(
                f"{what} does not answer: {type(error).__name__}",
                hint="Start the server again, or take it out of the configuration; then run the same command again.",
                **({"silent": True} if isinstance(error, requests.Timeout) else {}),
            ) from error
        if answer.status_code in _DENIED:
            raise Rejected(f"{what} does not accept the token", hint="Give the token that the server was started with.")
        try:
            found = json.loads(content or b"{}")
        except (ValueError, RecursionError) as error:
            found = str(error)
        if isinstance(found, dict) and answer.ok:
            return found
        if answer.ok:
            raise Unavailable(f"{what} does not answer as an admin API does: {found if isinstance(found, str) else ''}")
        if not isinstance(found, dict):  # not from an admin API: a proxy, or another program on its port
            found = {"error": content[:_SHOWN].decode(errors="replace")}
        raise read_error(found, what, status=answer.status_code)

    def _send(
        self, method: str, path: str, body: dict[str, Any] | None, piece: bytes | None, headers: dict[str, str]
    ) -> requests.Response:
        import requests  # noqa: PLC0415 - slow to import

        session = self._session
        if session is None:
            session = requests.Session()
            session.trust_env = False
            if self._keep_alive:
                self._session = session
        try:
            return session.request(
                method,
                self.url + path,
                json=body,
                data=piece,
                headers=headers,
                timeout=self._timeout_s,
                stream=True,
            )
        finally:
            if not self._keep_alive:
                session.close()  # the answer keeps its own connection until it is read
