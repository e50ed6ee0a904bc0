"""A session with one API server: its address, credentials, requests and retries.

The official client reads kubeconfigs and in-cluster settings, refreshes credentials and makes the connections; this
module sends the requests. Three rules:

- only requests that are safe to repeat are retried: the caller says so with `repeat`. A request that certainly did not
  reach the server, or that it turned away for being busy, is retried in any case;
- every answer is read up to a limit, every request has a time limit;
- only `cloudedge.errors` are raised.
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
from cloudedge.kube.api._errors import Passing, Status, refusal, translated
from cloudedge.kube.api._websocket import open_websocket

__all__ = ["ATTEMPTS", "LONGEST_WAIT_S", "Query", "Session", "configured"]

ATTEMPTS = 5
"""The number of attempts of a request that is safe to repeat."""
LONGEST_WAIT_S = 30.0
"""A server that asks for a longer pause than this causes an error now rather than a request later."""

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
    """Requests to one API server; threads may share it.

    Args:
        configuration: The official client's configuration: address, credentials, certificates.
        clock: Time and jitter.
        timeout_s: The time limit of one request.
    """

    def __init__(self, configuration: Any, clock: Clock, *, timeout_s: float) -> None:
        configuration.connection_pool_maxsize = _POOL
        configuration.retries = False
        if not configuration.verify_ssl:
            # The kubeconfig sets it explicitly; a warning with every request adds nothing.
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
        """Send a request and return the JSON of its answer.

        Args:
            method: GET, POST, PATCH, DELETE.
            path: The path below the server's address.
            what: The attempt in words, for errors: "applying Service train/ctr".
            query: Parameters.
            body: Sent as JSON, which is YAML too.
            content_type: The type of the body.
            repeat: Whether sending it twice does no harm.
            attempts: How often to send it at most.
            timeout_s: The time limit of each attempt, if less than the session's.

        Raises:
            CloudEdgeError: the class that the table of `_errors` names.
        """

        def attempt() -> Any:
            request = _Request(method, path, what, query, body, content_type)
            with self._open(request, min(self.timeout_s, timeout_s or self.timeout_s)) as response:
                return self._json(response, what)

        return self._persist(attempt, repeat=repeat, attempts=attempts)

    @contextmanager
    def stream(self, path: str, *, what: str, query: Query, quiet_s: float) -> Iterator[Iterator[bytes]]:
        """Open an endless answer and yield its lines, without their ends.

        Nothing is retried here: the reader knows where to go on.

        Args:
            path: The path below the server's address.
            what: The attempt in words.
            query: Parameters.
            quiet_s: The silence after which the connection counts as broken.

        Raises:
            Passing: from the call or from the lines: a retry may succeed.
            CloudEdgeError: a retry will not succeed.
        """
        with self._open(_Request("GET", path, what, query), quiet_s) as response:
            yield self._lines(response, what)

    def websocket(self, path: str, *, what: str, query: Query) -> Any:
        """Open a connection that carries several streams, for port-forwarding and commands in pods.

        Raises:
            CloudEdgeError: the server refuses it.
        """
        url = self._base.replace("http", "ws", 1) + path + "?" + _encoded(query)
        return open_websocket(self._configuration, url, self._headers(), what=what, timeout_s=self.timeout_s)

    def close(self) -> None:
        """Close every connection."""
        for key in list(self._pool.pools.keys()):
            pool = self._pool.pools.get(key)
            if pool is not None:
                pool.close()  # clearing alone would leave its connections to the garbage collector
        self._pool.clear()
        self._client.close()

    def pause(self, tries: int, at_least_s: float | None = None) -> float:
        """Return the pause after this many failures: longer each time up to a limit, with jitter."""
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
                    reason = response.read(_ERROR_LIMIT)
                retry_after = response.headers.get("Retry-After")
                raise refusal(what, Status.read(response.status, reason), retry_after=retry_after)
            yield response
        finally:
            response.close()  # a response read to its end returned its connection already

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        try:
            for setting in self._client.configuration.auth_settings().values():
                if setting["in"] == "header" and setting["value"]:
                    headers[setting["key"]] = setting["value"]
        except Exception as error:
            # A credential plugin is any program and may raise anything.
            raise Unavailable(
                f"cannot refresh the credentials for {self.host}: {type(error).__name__}",
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
                f"{what}: {self.host} answered with something other than JSON",
                hint="Check that this address is an API server's.",
            ) from None

    def _lines(self, response: urllib3.BaseHTTPResponse, what: str) -> Iterator[bytes]:
        rest = b""
        with translated(what, self.host):
            # `read_chunked` yields data as it arrives; `stream` would wait for a full buffer.
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
    """Find the cluster's address and credentials.

    The first of these counts: the named kubeconfig, ``KUBECONFIG``, ``~/.kube/config``, the pod's service account.

    Returns:
        The official client's configuration, and the namespace to work in.

    Raises:
        ConfigError: none of them exists, or it cannot be used.
    """
    configuration = type.__call__(kubernetes.client.Configuration)  # a plain call copies defaults set elsewhere
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
            f"cannot use the kubeconfig {where}{f' with context {context}' if context else ''}: {error}",
            hint="Run `kubectl config get-contexts` to list the contexts.",
            path=str(where),
        ) from error
    chosen = next((each for each in contexts if each["name"] == context), current) if context else current
    return configuration, str(chosen["context"].get("namespace") or "default")


def _in_cluster(configuration: Any) -> tuple[Any, str]:
    try:
        kubernetes.config.load_incluster_config(client_configuration=configuration)
    except kubernetes.config.ConfigException as error:
        raise ConfigError(
            "no cluster is configured: there is no kubeconfig, and this is not a pod",
            hint="Name a file with KUBECONFIG, or put one at ~/.kube/config.",
        ) from error
    try:
        return configuration, (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return configuration, "default"


def _encoded(query: Query | None) -> str:
    return urlencode(query or {}, doseq=True)
