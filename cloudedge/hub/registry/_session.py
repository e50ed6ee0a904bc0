"""One session with a registry: connections, authentication, retries, redirects, paging.

Other modules decide which requests make up a push or a pull, and `_errors` what a refusal means. Rules:

- credentials go to the registry and to the token server it names, never to where it redirects;
- only requests that the caller marks as safe to repeat (`repeat`) are repeated;
- every body is read up to a limit, and only `cloudedge.errors` are raised.
"""

from __future__ import annotations

import ipaddress
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
import requests.adapters
import requests.utils
from requests.structures import CaseInsensitiveDict

from cloudedge.errors import InputError, Rejected, Unavailable
from cloudedge.hub.core import CHUNK, parse_json
from cloudedge.hub.registry._auth import Authenticator
from cloudedge.hub.registry._errors import TransientFailure, refusal, translate_network_errors
from cloudedge.io import Backoff, retry

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping

    from cloudedge.clock import Clock
    from cloudedge.hub.registry._auth import RegistrySettings

__all__ = ["RegistrySession", "Reply", "is_loopback"]

ATTEMPTS = 5
"""Tries of a request that is safe to repeat."""
LONGEST_WAIT_S = 30.0
BACKOFF = Backoff(0.5, LONGEST_WAIT_S, longest_asked_s=LONGEST_WAIT_S)
"""A registry that asks for a longer pause than this gets an error now rather than a request later."""

_MOST_REDIRECTS = 5
_ERROR_LIMIT = 64 * 1024
_PAGE_LIMIT = 32 * 1024 * 1024  # some registries list every tag on one page
_MOST_PAGES = 10_000
_POOL_SIZE = 16  # one per transfer thread, and a few for listing


_T = TypeVar("_T")


class Reply(NamedTuple):
    """An answer with its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


@dataclass(frozen=True)
class _Request:
    method: str
    url: str
    what: str
    scope: str
    headers: Mapping[str, str] | None = None
    data: bytes | memoryview | None = None
    extra_wait_s: float = 0.0


class RegistrySession:
    """Requests to one registry; shared by threads."""

    def __init__(self, netloc: str, settings: RegistrySettings, clock: Clock, *, insecure: bool) -> None:
        self.host = netloc
        self.clock = clock
        self._secure = not (insecure or is_loopback(netloc))
        self._base = f"{'https' if self._secure else 'http'}://{netloc}/v2/"
        self._timeout_s = settings.timeout_s
        self._auth = Authenticator(netloc, settings, self._fetch_token, clock)
        self._session = requests.Session()
        self._session.headers.update({"User-Agent": "cloudedge", "Accept-Encoding": "identity"})
        self._verify = str(settings.ca_file) if settings.ca_file else True
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=_POOL_SIZE)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def url(self, path: str) -> str:
        """Return the address of a path below ``/v2/``."""
        return self._base + path

    def call(
        self,
        method: str,
        url: str,
        *,
        what: str,
        scope: str,
        accept: Container[int],
        headers: Mapping[str, str] | None = None,
        data: bytes | memoryview | None = None,
        limit: int = _ERROR_LIMIT,
        repeat: bool = True,
        extra_wait_s: float = 0.0,
    ) -> Reply:
        """Send a request and read its answer.

        Args:
            method: GET, HEAD, ...
            url: The absolute URL; credentials are sent only to the registry's own.
            what: The action, for error messages: "reading tag live of ctr".
            scope: The token scope it needs.
            accept: The accepted statuses; any other becomes an error.
            headers: More headers.
            data: The body.
            limit: The largest answer in bytes.
            repeat: True if sending it twice does no harm.
            extra_wait_s: Extra time for the registry's silence.

        Raises:
            CloudEdgeError: the class that the table names for the refusal; `InputError` if the answer is over `limit`.
        """

        def attempt() -> Reply:
            with self._open(_Request(method, url, what, scope, headers, data, extra_wait_s)) as response:
                self._refuse(response, what, accept)
                return Reply(response.status_code, response.headers, self._read(response, what, limit), response.url)

        return self._persist(attempt, repeat=repeat)

    @contextmanager
    def stream(
        self,
        url: str,
        *,
        what: str,
        scope: str,
        accept: Container[int],
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[Reply, Iterator[bytes]]]:
        """Get a large answer: yields it without its body, and the body in chunks.

        Raises:
            CloudEdgeError: as `call`; and `Unavailable` from the chunks when the connection breaks.
        """

        def attempt() -> requests.Response:
            response = self._open(_Request("GET", url, what, scope, headers))
            try:
                self._refuse(response, what, accept)
            except BaseException:
                response.close()
                raise
            return response

        def body() -> Iterator[bytes]:
            try:
                yield from self._chunks(response, what)
            except TransientFailure as passing:
                # Bytes already yielded cannot be taken back; the caller may continue from there.
                raise passing.error from passing.__cause__

        with self._persist(attempt, repeat=True) as response:
            yield Reply(response.status_code, response.headers, b"", response.url), body()

    def pages(self, path: str, key: str, *, what: str, scope: str) -> Iterator[str]:
        """List the strings under a key of a paged JSON answer, following the registry's links."""
        url, seen = self.url(path), set[str]()
        while url not in seen and len(seen) < _MOST_PAGES:
            seen.add(url)
            reply = self.call("GET", url, what=what, scope=scope, accept=(200,), limit=_PAGE_LIMIT)
            items = _json(reply.body, what, self.host).get(key) or []
            if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
                raise Unavailable(f"{what} at {self.host}: the answer's {key} is not a list of names", hub=self.host)
            yield from items
            links = requests.utils.parse_header_links(reply.headers.get("Link", ""))
            following = next((link["url"] for link in links if link.get("rel") == "next"), None)
            if following is None:
                return
            url = urljoin(reply.url, following)
        raise Unavailable(f"{what} at {self.host}: the pages do not end", hub=self.host)

    def _open(self, request: _Request) -> requests.Response:
        """Send a request; log in once if asked to, and follow redirects."""
        url, what, scope = request.url, request.what, request.scope
        authorization = self._auth.header(scope)
        asked = False
        for _ in range(_MOST_REDIRECTS + 2):
            own = _origin(url) == _origin(self._base)
            headers = CaseInsensitiveDict(request.headers or {})
            if own and authorization:
                headers["Authorization"] = authorization
            with translate_network_errors(what, self.host):
                response = self._session.request(
                    request.method,
                    url,
                    headers=headers,
                    # urllib3 takes any buffer; its stubs list only some.
                    data=request.data,  # type: ignore[arg-type]
                    auth=_without_netrc,
                    verify=self._verify,
                    stream=True,
                    allow_redirects=False,
                    timeout=(self._timeout_s, self._timeout_s + request.extra_wait_s),
                )
            with ExitStack() as unused:
                unused.callback(response.close)
                challenge = response.headers.get("WWW-Authenticate")
                if response.status_code == 401 and challenge and own and not asked:  # noqa: PLR2004
                    asked = True
                    answer = self._auth.answer(challenge, scope, authorization)
                    if answer is not None:
                        authorization = answer
                        continue
                elif _is_redirect(request.method, response):
                    url = self._redirected(response, what)
                    continue
                unused.pop_all()
                return response
        raise Unavailable(f"{what} at {self.host}: redirected more than {_MOST_REDIRECTS} times", hub=self.host)

    def _redirected(self, response: requests.Response, what: str) -> str:
        url = urljoin(response.url, response.headers["Location"])
        if self._secure and urlsplit(url).scheme != "https":
            raise Rejected(
                f"{what} at {self.host}: redirected from https to {urlsplit(url).scheme or 'nowhere'}",
                hint="Have the registry redirect to https.",
                hub=self.host,
            )
        return url

    def _fetch_token(self, url: str, authorization: str | None) -> dict[str, Any]:
        where = urlsplit(url).netloc
        what = f"fetching a token from {where}"
        if self._secure and not url.startswith("https://"):
            raise Rejected(
                f"the registry {self.host} asks to send the password unencrypted to {where}",
                hint="Have the registry name an https address for its token server.",
                hub=self.host,
            )

        def attempt() -> bytes:
            with translate_network_errors(what, self.host):
                response = self._session.get(
                    url,
                    headers={"Authorization": authorization} if authorization else {},
                    auth=_without_netrc,
                    verify=self._verify,
                    stream=True,
                    allow_redirects=False,
                    timeout=self._timeout_s,
                )
            with response:
                self._refuse(response, what, (200,))
                return self._read(response, what, _ERROR_LIMIT)

        return _json(self._persist(attempt, repeat=True), what, self.host)

    def _chunks(self, response: requests.Response, what: str) -> Iterator[bytes]:
        with translate_network_errors(what, self.host):
            yield from response.raw.stream(CHUNK, decode_content=False)

    def _read(self, response: requests.Response, what: str, limit: int) -> bytes:
        body = bytearray()
        for chunk in self._chunks(response, what):
            body += chunk
            if len(body) > limit:
                raise InputError(f"{what} at {self.host}: the answer is over the limit of {limit} bytes", hub=self.host)
        return bytes(body)

    def _refuse(self, response: requests.Response, what: str, accept: Container[int]) -> None:
        """Raise the table's error unless the status is accepted."""
        if response.status_code in accept:
            return
        with translate_network_errors(what, self.host):
            body = response.raw.read(_ERROR_LIMIT, decode_content=False)
        raise refusal(
            what,
            self.host,
            status=response.status_code,
            headers=response.headers,
            body=body,
            now=self.clock.now(),
        )

    def _persist(self, attempt: Callable[[], _T], *, repeat: bool) -> _T:
        """Own the retries of a single call; uploads and downloads own those of going on where they broke."""
        try:
            return retry(
                attempt,
                attempts=ATTEMPTS if repeat else 1,
                backoff=BACKOFF,
                clock=self.clock,
                may_repeat=lambda error: isinstance(error, TransientFailure),
                at_least_s=lambda error: getattr(error, "after_s", None),
            )
        except TransientFailure as failure:
            raise failure.error from failure.__cause__


def is_loopback(netloc: str) -> bool:
    """Return True if ``host[:port]`` is this machine."""
    host = urlsplit(f"//{netloc}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _without_netrc(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keep requests from using credentials of ``~/.netrc``."""
    return request


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _is_redirect(method: str, response: requests.Response) -> bool:
    anyhow = (307, 308)  # these keep method and body; older statuses only apply to reads
    statuses = (301, 302, 303, *anyhow) if method in ("GET", "HEAD") else anyhow
    return response.status_code in statuses and "Location" in response.headers


def _json(body: bytes, what: str, host: str) -> dict[str, Any]:
    try:
        return parse_json(body, "the answer")
    except InputError as error:
        raise Unavailable(
            f"{what} at {host}: {error.message}", hint="Check that the address belongs to a registry.", hub=host
        ) from error
