"""A client for everything the runtime serves, and for genuine Paddle Serving servers.

    with Client("http://127.0.0.1:9393") as client:
        answer = client.predict({"x": numpy.zeros((1, 13), "float32")})
        answer["price"], answer.pin

The URL chooses the protocol:

    http://host:port                    plain JSON, POST /v1/predict
    pipeline+http://host:port/service   Pipeline service
    general+http://host:port            GeneralModelService, protobuf bodies
    pipeline+grpc://host:port[/service] Pipeline service over gRPC
    grpc://host:port                    GeneralModelService over gRPC
    brpc://host:port                    GeneralModelService over baidu_std, as upstream's Client

https and grpcs in their place use TLS and verify the certificate.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import CloudEdgeError, ConfigError, DeadlineExceeded, InputError, Overloaded, Unavailable
from cloudedge.io import Backoff, EndpointPolicy, EndpointPool
from cloudedge.serving.client._transport import Question, Reply, Transport

__all__ = ["Client", "EndpointState", "Prediction"]


BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 2.0


@dataclass(frozen=True)
class Prediction:
    """The answer of a model, with its version."""

    outputs: Mapping[str, NDArray[Any]]
    pin: str
    """The version it was computed with; empty if the server does not send it, as upstream's do not."""
    tag: str
    """The variant that answered."""
    endpoint: str
    """The server that answered."""
    defaulted: float = 0.0
    """Share of looked-up rows that were declared defaults because a shard was unreachable."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.outputs[name]


@dataclass(frozen=True)
class EndpointState:
    """One server of a client: whether it is asked, and what became of the tries so far."""

    url: str
    resting: bool
    """It was silent or could not be reached: others are asked until its rest is over and a probe has succeeded."""
    answered: int
    cut: int
    """Tries that were given up because another server could take over."""
    rests: int
    probes: int
    """Copies of answered calls, sent to learn whether it is back."""


@dataclass
class _Endpoint:
    url: str
    transport: Transport


@dataclass
class _Variant:
    tag: str
    weight: float
    endpoints: list[_Endpoint]
    pool: EndpointPool


class Client:
    """Asks for predictions; retries where that is safe, on another server if there is one.

    A prediction changes nothing, so the client retries whenever no answer came or the server could not give one, with
    growing, random pauses, `retries` times and never past the deadline. A wrong call is not repeated.

    With several servers, one that hangs costs next to nothing: a try that takes much longer than usual is given up, and
    the next server asked, for a tenth of the calls at most. The silent server rests, and comes back once a copy of a
    call is answered there. `EndpointPolicy` has the limits.

    Safe to use from several threads, which share its connections.

    Args:
        urls: Servers that answer alike; asked in turn.
        token: Sent as `authorization: Bearer ...`; over TLS or to this machine only, unless `insecure_token`.
        timeout_s: Time-out of a whole call, all tries together.
        retries: Further tries after the first.
        clock: Source of time and randomness.
        insecure_token: Send the token to other machines without TLS too.
        policy: When a try is given up, and for how long a server rests.
    """

    def __init__(
        self, *urls: str, token: str | None = None, timeout_s: float = 20.0, retries: int = 3,
        clock: Clock | None = None, insecure_token: bool = False, policy: EndpointPolicy | None = None,
    ) -> None:  # fmt: skip
        self._token = token
        self._insecure_token = insecure_token
        self._timeout_s = timeout_s
        self._retries = retries
        self._clock = clock or SystemClock()
        self._policy = policy or EndpointPolicy()
        self._variants: list[_Variant] = []
        if urls:
            self.add_variant("", urls, 1)

    def add_variant(self, tag: str, cluster: Sequence[str], weight: float) -> None:
        """Send a share of the calls to other servers, as upstream's client does for A/B tests.

        Raises:
            ConfigError: The weight is not above 0, the tag is taken, or a URL cannot be used.
        """
        if not weight > 0 or not cluster:
            raise ConfigError(f"variant {tag!r} needs servers and a weight above 0, not {weight!r}")
        if any(variant.tag == tag for variant in self._variants):
            raise ConfigError(f"there is a variant {tag!r} already")
        endpoints = [_Endpoint(url, self._open(url)) for url in cluster]
        self._variants.append(_Variant(tag, weight, endpoints, EndpointPool(len(endpoints), self._policy)))

    def predict(
        self, inputs: Mapping[str, ArrayLike], outputs: Sequence[str] = (), *,
        timeout_s: float | None = None, tag: str | None = None, log_id: int = 0,
    ) -> Prediction:  # fmt: skip
        """Ask for one prediction.

        Args:
            inputs: Arrays or array-likes, batch dimension first; by the names clients use.
            outputs: Requested names; empty: all.
            timeout_s: Time-out of this call instead of the client's.
            tag: The variant: one of this client's, or of the server's if this client has none. None: by weight.
            log_id: Passed on to the server.

        Raises:
            InputError: An input or a name is wrong.
            NotFound: The service or the variant does not exist.
            Rejected: The server refused.
            Unavailable: No server could answer, after all tries.
            DeadlineExceeded: The time-out passed.
        """
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        variant, server_tag = self._variant(tag)
        now = self._clock.monotonic()
        deadline = now + (self._timeout_s if timeout_s is None else timeout_s)
        tried: list[int] = []
        failure: Unavailable | None = None
        while now < deadline and len(tried) <= self._retries:
            number, patience_s = variant.pool.begin(now, tried)
            tried.append(number)
            if len(tried) > self._retries or (patience_s is not None and patience_s >= deadline - now):
                patience_s = None
            question = Question(arrays, outputs, patience_s or deadline - now, server_tag, log_id)
            endpoint = variant.endpoints[number]
            try:
                reply = endpoint.transport.ask(question)
            except Unavailable as error:
                failure, begun, now = error, now, self._clock.monotonic()
                self._report(variant, number, begun, now, error, was_cut=patience_s is not None)
                if isinstance(error, DeadlineExceeded):
                    if patience_s is None:
                        raise
                    continue
                self._pause(len(tried), variant, deadline)
                now = self._clock.monotonic()
                continue
            begun, now = now, self._clock.monotonic()
            variant.pool.answered(number, begun, now)
            self._probe(variant, question, now)
            return _prediction(reply, variant, endpoint)
        if failure is not None and now < deadline:
            raise failure
        raise DeadlineExceeded(f"no answer in time from {', '.join(e.url for e in variant.endpoints)}") from failure

    def endpoint_states(self) -> list[EndpointState]:
        """Return the state of every server, in the order they were given."""
        now = self._clock.monotonic()
        return [
            EndpointState(endpoint.url, variant.pool.is_resting(number, now), **vars(variant.pool.counts(number)))
            for variant in self._variants
            for number, endpoint in enumerate(variant.endpoints)
        ]

    def close(self) -> None:
        """Close all connections."""
        for variant in self._variants:
            for endpoint in variant.endpoints:
                endpoint.transport.close()

    def __enter__(self) -> Client:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _variant(self, tag: str | None) -> tuple[_Variant, str | None]:
        if not self._variants:
            raise ConfigError("the client knows no server", hint="Give `Client` a URL, or call `add_variant`.")
        if tag is not None:
            for variant in self._variants:
                if variant.tag == tag:
                    return variant, None
            if self._variants[0].tag:
                raise InputError(f"there is no variant {tag!r}; there are {[v.tag for v in self._variants]}")
            return self._variants[0], tag
        chosen = self._clock.random() * sum(variant.weight for variant in self._variants)
        for variant in self._variants:
            chosen -= variant.weight
            if chosen < 0:
                return variant, None
        return self._variants[-1], None

    def _report(
        self, variant: _Variant, number: int, begun: float, now: float, error: Unavailable, *, was_cut: bool
    ) -> None:
        """Tell the pool how a try without an answer ended."""
        if isinstance(error, Overloaded):
            variant.pool.refused(number, now)
            return
        if isinstance(error, DeadlineExceeded):
            if not variant.pool.silent(number, begun, now, was_cut=was_cut):
                return
        else:
            variant.pool.failed(number, now)
        variant.endpoints[number].transport.forget()

    def _probe(self, variant: _Variant, question: Question, now: float) -> None:
        """Send a copy of an answered call to a server whose rest is over, beside the calls."""
        due = variant.pool.due_probe(now)
        if due is not None:
            number, timeout_s = due
            copy = replace(question, timeout_s=timeout_s)
            threading.Thread(target=self._ask_probe, args=(variant, number, copy), daemon=True).start()

    def _ask_probe(self, variant: _Variant, number: int, question: Question) -> None:
        begun = self._clock.monotonic()
        transport = variant.endpoints[number].transport
        try:
            transport.ask(question)
            is_there = True
        except CloudEdgeError as error:
            is_there = isinstance(error, Overloaded) or not isinstance(error, Unavailable)
        except Exception:  # noqa: BLE001 - the client was closed meanwhile, in the words of each library
            is_there = False
        if not is_there:
            transport.forget()
        variant.pool.probed(number, begun, self._clock.monotonic(), answered=is_there)

    def _pause(self, tries: int, variant: _Variant, deadline: float) -> None:
        """Wait before the next try, unless there is a server that does not rest."""
        now = self._clock.monotonic()
        if tries > self._retries or variant.pool.is_any_ready(now):
            return
        pause_s = Backoff(BACKOFF_S, LONGEST_BACKOFF_S, 0.0, 1.0).pause_s(tries, self._clock)
        self._clock.sleep(min(pause_s, max(0.0, deadline - now)))

    def _open(self, url: str) -> Transport:
        parts = urlsplit(url)
        kind, _, scheme = parts.scheme.rpartition("+")
        secure = scheme in ("https", "grpcs")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None or (port is None and not scheme.startswith("http")) or parts.query or parts.username:
            raise ConfigError(
                f"{url!r} is not the address of a server", hint="Write `http://host:port` or `grpc://host:port`."
            )
        token = self._token
        if token is not None and not (secure or self._insecure_token or host in ("127.0.0.1", "::1", "localhost")):
            raise ConfigError(
                f"the token would travel in clear to {host}",
                hint="Use `https://` or `grpcs://`, or set `insecure_token=True`.",
            )
        return _transport(parts, kind, scheme, token)


def _transport(parts: SplitResult, kind: str, scheme: str, token: str | None) -> Transport:
    if scheme in ("http", "https") and kind in ("", "pipeline", "general"):
        from cloudedge.serving.client import _transport_http as http  # noqa: PLC0415 - each protocol has libraries of its own

        base = f"{scheme}://{parts.netloc}"
        if kind == "pipeline":
            return http.PipelineHttp(base, parts.path, token)
        return http.GeneralHttp(base, parts.path, token) if kind else http.PlainHttp(base, parts.path, token)
    from cloudedge.serving.client import _transport_rpc as rpc  # noqa: PLC0415

    if scheme in ("grpc", "grpcs") and kind in ("", "general"):
        return rpc.GeneralGrpc(parts.netloc, secure=scheme == "grpcs", token=token)
    if scheme in ("grpc", "grpcs") and kind == "pipeline":
        return rpc.PipelineGrpc(parts.netloc, secure=scheme == "grpcs", token=token, service=parts.path.strip("/"))
    if scheme == "brpc" and not kind:
        return rpc.BaiduStd(str(parts.hostname), parts.port or 0)
    raise ConfigError(f"{parts.scheme}:// is no known protocol", hint="See `cloudedge.serving.Client`.")


def _prediction(reply: Reply, variant: _Variant, endpoint: _Endpoint) -> Prediction:
    return Prediction(reply.outputs, reply.pin, variant.tag or reply.tag, endpoint.url, reply.defaulted)
