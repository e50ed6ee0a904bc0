"""One session with an API server: where it is, who we are, requests and which of them are repeated.

The official client reads kubeconfigs and in-cluster settings, refreshes credentials and makes the connections; this
module sends the requests. Three rules:

- only what is safe to repeat is repeated: the caller says so with `repeat`. A request that certainly did not reach the
  server, or that it turned away for being busy, is repeated in any case;
- every answer is read up to a limit, every request has a time limit;
- nothing but `cloudedge.errors` leaves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import kubernetes.client
import kubernetes.config
import urllib3
import urllib3.exceptions
import yaml

from cloudedge.clock import Clock
from cloudedge.errors import ConfigError, InputError, Unavailable
from cloudedge.io import Backoff, retry
from cloudedge.kube._errors import Passing, Status, refusal, translated
from cloudedge.kube._websocket import open_websocket

__all__ = ["ATTEMPTS", "LONGEST_WAIT_S", "Query", "Session", "configured"]

ATTEMPTS = 5
"""How often a request that is safe to repeat is sent before giving up."""
LONGEST_WAIT_S = 30.0
"""A server that asks for a longer pause than this gets an error now rather than a request later."""

_BACKOFF = Backoff(0.25, 8.0, longest_asked_s=LONGEST_WAIT_S)
_ERROR_LIMIT = 1 << 20
_ANSWER_LIMIT = 256 << 20  # a list of everything in a large namespace
_POOL = 32  # connections kept: followed logs and watches hold one each
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Query = Mapping[str, str | Sequence[str]]
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    what: str
    query: Query | None = None
    body: Any = None
    content_type: str = "application/json"


class Session:
    """Requests to one API server; shared by threads.

    Args:
        configuration: The official client's: address, credentials, certificates.
        clock: Time and jitter.
        timeout_s: For one request.
    """

    def __init__(self, configuration: Any, clock: Clock, *, timeout_s: float) -> None:
        configuration.connection_pool_maxsize = _POOL
        configuration.retries = False
        if not configuration.verify_ssl:
            # The kubeconfig says so in writing; repeating it with every request helps nobody.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self.host: str = urlsplit(configuration.host).netloc
        self.clock = clock
        self.timeout_s = timeout_s
        self._configuration = configuration
        self._base = configuration.host.rstrip("/")
        self._client = kubernetes.client.ApiClient(configuration)
        self._pool = self._client.rest_client.pool_manager

    def call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Query | None = None,
        body: Any = None,
        content_type: str = "application/json",
        repeat: bool = True,
        attempts: int = ATTEMPTS,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request and return what the JSON of its answer says.

        Args:
            method: GET, POST, PATCH, DELETE.
            path: Below the server's address.
            what: The attempt in words, for errors: "applying Service train/ctr".
            query: Parameters.
            body: To be sent as JSON, which is YAML too.
            content_type: Of the body.
            repeat: Whether sending it twice does no harm.
            attempts: How often at most.
            timeout_s: For each of them, if it is less than the session's.

        Raises:
            CloudEdgeError: whichever class the table of `_refusals` names.
        """

        def attempt() -> Any:
            request = _Request(method, path, what, query, body, content_type)
            with self._open(request, min(self.timeout_s, timeout_s or self.timeout_s)) as response:
                return self._json(response, what)

        return self._persist(attempt, repeat=repeat, attempts=attempts)

    @contextmanager
    def stream(self, path: str, *, what: str, query: Query, quiet_s: float) -> Iterator[Iterator[bytes]]:
        """Get something that goes on: yields the lines of the answer, without their ends.

        Nothing is repeated here: who reads knows where to go on.

        Args:
            path: Below the server's address.
            what: The attempt in words.
            query: Parameters.
            quiet_s: After how much silence the connection counts as broken.

        Raises:
            Passing: from the call or from the lines: it may go on elsewhere or later.
            CloudEdgeError: it will not.
        """
        with self._open(_Request("GET", path, what, query), quiet_s) as response:
            yield self._lines(response, what)

    def websocket(self, path: str, *, what: str, query: Query) -> Any:
        """Open a connection that carries several streams, for port-forwarding and commands in pods.

        Raises:
            CloudEdgeError: the server says no.
        """
        url = self._base.replace("http", "ws", 1) + path + "?" + _encoded(query)
        return open_websocket(self._configuration, url, self._headers(), what=what, timeout_s=self.timeout_s)

    def close(self) -> None:
        """Close every connection."""
        for key in list(self._pool.pools.keys()):
            pool = self._pool.pools.get(key)
            if pool is not None:
                pool.close()  # forgetting it would leave its connections to the garbage collector
        self._pool.clear()
        self._client.close()

    def pause(self, tries: int, at_least_s: float | None = None) -> float:
        """Return how long to wait after so many failures: longer each time up to a point, never in step."""
        return _BACKOFF.pause_s(tries, self.clock, at_least_s=at_least_s)

    @contextmanager
    def _open(self, request: _Request, quiet_s: float) -> Iterator[urllib3.BaseHTTPResponse]:
        what, query, body = request.what, request.query, request.body
        headers = {"Accept": "application/json", "User-Agent": "cloudedge", **self._headers()}
        if body is not None:
            headers["Content-Type"] = request.content_type
        with translated(what, self.host):
            response: urllib3.BaseHTTPResponse = self._pool.request(
                request.method,
                self._base + request.path + (f"?{_encoded(query)}" if query else ""),
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=min(self.timeout_s, quiet_s), read=quiet_s),
            )
        try:
            if not 200 <= response.status < 300:  # noqa: PLR2004
                with translated(what, self.host):
                    said = response.read(_ERROR_LIMIT)
                raise refusal(what, Status.read(response.status, said), retry_after=response.headers.get("Retry-After"))
            yield response
        finally:
            response.close()  # one that was read to its end gave its connection back already

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        try:
            for setting in self._client.configuration.auth_settings().values():
                if setting["in"] == "header" and setting["value"]:
                    headers[setting["key"]] = setting["value"]
        except Exception as error:
            # A credential plugin is any program; its failure is whatever it likes.
            raise Unavailable(
                f"credentials for {self.host} cannot be refreshed: {type(error).__name__}",
                hint="Log in to the cluster again.",
            ) from error
        return headers

    def _json(self, response: urllib3.BaseHTTPResponse, what: str) -> Any:
        data = bytearray()
        with translated(what, self.host):
            for chunk in response.stream(1 << 16):
                data += chunk
                if len(data) > _ANSWER_LIMIT:
                    raise InputError(f"{what}: the answer is over the limit of {_ANSWER_LIMIT} bytes")
        try:
            return json.loads(data)
        except ValueError:
            raise Unavailable(
                f"{what}: {self.host} answered something that is not JSON", hint="Is this address an API server's?"
            ) from None

    def _lines(self, response: urllib3.BaseHTTPResponse, what: str) -> Iterator[bytes]:
        rest = b""
        with translated(what, self.host):
            # `read_chunked` hands out what arrived; `stream` would wait for a buffer to fill.
            chunks = response.read_chunked() if getattr(response, "chunked", False) else response.stream(1 << 16)
            for chunk in chunks:
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
                if len(rest) > _ANSWER_LIMIT:
                    raise InputError(f"{what}: a line is over the limit of {_ANSWER_LIMIT} bytes")
        if rest:
            yield rest

    def _persist(self, attempt: Callable[[], _T], *, repeat: bool, attempts: int) -> _T:
        """Own the retries of a single call; a watch and a log own those of going on where they broke."""
        try:
            return retry(
                attempt,
                attempts=attempts,
                backoff=_BACKOFF,
                clock=self.clock,
                may_repeat=lambda error: isinstance(error, Passing) and (repeat or not error.acted),
                at_least_s=lambda error: getattr(error, "after_s", None),
            )
        except Passing as passing:
            raise passing.error from passing.__cause__


def configured(kubeconfig: str | os.PathLike[str] | None, context: str | None) -> tuple[Any, str]:
    """Find out where the cluster is and who we are there.

    A named kubeconfig, then ``KUBECONFIG``, then ``~/.kube/config``, then what a pod is given.

    Returns:
        The official client's configuration, and the namespace to work in.

    Raises:
        ConfigError: none of them is there, or it cannot be used.
    """
    configuration = type.__call__(kubernetes.client.Configuration)  # a plain call copies what others set as default
    named = kubeconfig or os.environ.get("KUBECONFIG")
    where = Path(kubeconfig).expanduser() if kubeconfig else named or Path.home() / ".kube" / "config"
    if not named and not Path(where).exists():
        return _in_cluster(configuration)
    try:
        kubernetes.config.load_kube_config(
            config_file=str(where), context=context, client_configuration=configuration, persist_config=False
        )
        contexts, current = kubernetes.config.list_kube_config_contexts(config_file=str(where))
    except (kubernetes.config.ConfigException, OSError, yaml.YAMLError, TypeError, KeyError) as error:
        raise ConfigError(
            f"the kubeconfig {where} cannot be used{f' with context {context}' if context else ''}: {error}",
            hint="See: kubectl config get-contexts",
            path=str(where),
        ) from error
    chosen = next((each for each in contexts if each["name"] == context), current) if context else current
    return configuration, str(chosen["context"].get("namespace") or "default")


def _in_cluster(configuration: Any) -> tuple[Any, str]:
    try:
        kubernetes.config.load_incluster_config(client_configuration=configuration)
    except kubernetes.config.ConfigException as error:
        raise ConfigError(
            "there is no cluster to talk to: no kubeconfig, and this is no pod",
            hint="Name a file with KUBECONFIG, or put one at ~/.kube/config.",
        ) from error
    try:
        return configuration, (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return configuration, "default"


def _encoded(query: Query | None) -> str:
    return urlencode(query or {}, doseq=True)
