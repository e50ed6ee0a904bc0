"""HTTP calls to a BIE control plane: signed, numbered, bounded, and repeated only where that does no harm.

A GET, PUT or DELETE with a bad answer or none is sent again, a few times, within a deadline. A POST is sent once; its
caller checks whether the object exists before trying again. Redirects are not followed, since they would take the
signature and the body along.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from functools import partial
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final
from urllib.parse import quote, urlencode

import requests

from cloudedge.clock import Clock
from cloudedge.config import CloudConfig
from cloudedge.edge_bie.client._auth import open_signer
from cloudedge.edge_bie.client._errors import refusal
from cloudedge.errors import CloudEdgeError, ConfigError, DeadlineExceeded, Rejected, Unavailable
from cloudedge.io import Backoff, retry

__all__ = ["REQUEST_ID", "Transport", "new_request_id"]

REQUEST_ID: Final = "x-bce-request-id"
_TRIES: Final = 5
_BACKOFF = Backoff(0.4, 5.0)
_ANSWER_LIMIT: Final = 64 << 20
_OK: Final = 200
_POOL_SIZE: Final = 64
_CHUNK: Final = 1 << 16


def new_request_id() -> str:
    """Return a name for a call, for the control plane's log and ours."""
    return str(uuid.uuid4())


class Transport:
    """Sends calls to one control plane; threads may share it."""

    def __init__(self, settings: CloudConfig, clock: Clock) -> None:
        filled = settings.prefix.replace("{namespace}", settings.namespace).strip("/")
        self.url = settings.url.rstrip("/")
        self._base = "/".join(part for part in (self.url, filled, settings.version) if part)
        self._clock = clock
        self._sign = open_signer(settings, clock)
        self._headers = {
            name: text.replace("{namespace}", settings.namespace) for name, text in settings.headers.items()
        }
        self._timeout_s = settings.timeout.total_seconds()
        self._deadline_s = settings.deadline.total_seconds()
        self._verify: bool | str = settings.ca_file or True
        self._session = requests.Session()
        self._session.headers.clear()
        self._session.headers["User-Agent"] = "cloudedge"
        # One session for all threads: its pool is thread-safe, and nothing here needs a cookie.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=_POOL_SIZE)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def close(self) -> None:
        """Close every connection."""
        self._session.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
        request_id: str = "",
    ) -> Any:
        """Make a call and read its JSON.

        Args:
            method: GET, PUT...
            path: Below the API's version, without a leading slash: ``configs/x``.
            what: The attempted action, for errors.
            query: The query parameters.
            body: A JSON value.
            request_id: The call's name; a new one by default.

        Raises:
            CloudEdgeError: the meaning of the refusal or the timeout; its `request_id` names the call.
        """
        named = request_id or new_request_id()
        url = f"{self._base}/{quote(path, safe='/')}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()

        def late(error: Exception) -> DeadlineExceeded:
            last, hint = (error.message, error.hint) if isinstance(error, CloudEdgeError) else (str(error), "")
            message = f"{what}: no good answer within {self._deadline_s:.0f} s; the last one: {last}"
            return DeadlineExceeded(message, hint=hint, request_id=named)

        return retry(
            partial(self._once, method, url, data, what, named),
            attempts=1 if method == "POST" else _TRIES,
            backoff=_BACKOFF,
            clock=self._clock,
            may_repeat=lambda error: isinstance(error, Unavailable),
            deadline=self._clock.monotonic() + self._deadline_s,
            late=late,
        )

    def _once(self, method: str, url: str, data: bytes | None, what: str, request_id: str) -> Any:
        headers = {**self._headers, REQUEST_ID: request_id, "Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        headers |= self._sign(method, url, headers)
        try:
            with self._session.request(
                method,
                url,
                data=data,
                headers=headers,
                auth=_without_netrc,
                timeout=self._timeout_s,
                allow_redirects=False,
                stream=True,
                verify=self._verify,
            ) as response:
                content = self._read(response, what, request_id)
                status = response.status_code
        except requests.RequestException as error:
            raise _connection_error(error, what, self.url, request_id) from error
        if status != _OK:
            raise refusal(what, status, content, request_id)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Unavailable(
                f"{what}: {self.url} did not answer with JSON (request {request_id})",
                hint="Check that the address is a BIE control plane and not a proxy.",
                request_id=request_id,
            ) from error

    def _read(self, response: requests.Response, what: str, request_id: str) -> bytes:
        content, until = bytearray(), self._clock.monotonic() + self._timeout_s
        for chunk in response.iter_content(_CHUNK):
            content += chunk
            if len(content) > _ANSWER_LIMIT:
                raise Rejected(f"{what}: the answer is over {_ANSWER_LIMIT} bytes", request_id=request_id)
            if self._clock.monotonic() > until:  # a trickle of bytes, each in time
                raise Unavailable(f"{what}: the answer took more than {self._timeout_s:.0f} s", request_id=request_id)
        return bytes(content)


def _without_netrc(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keep requests from using credentials of ``~/.netrc``."""
    return request


def _connection_error(error: requests.RequestException, what: str, url: str, request_id: str) -> CloudEdgeError:
    if isinstance(error, requests.exceptions.SSLError):
        return Rejected(
            f"{what}: the certificate of {url} is not trusted: {error}",
            hint="Check its name and this machine's clock, and set `ca_file` for a certificate authority of your own.",
            request_id=request_id,
        )
    if isinstance(error, (requests.exceptions.InvalidURL, requests.exceptions.InvalidHeader)):
        return ConfigError(f"{what}: {error}", request_id=request_id)
    return Unavailable(
        f"{what}: {url} did not answer: {error} (request {request_id})",
        hint="Check the address and the network, then run the command again.",
        request_id=request_id,
    )
