"""Sending a bundle's recorded requests to a server.

A node does it before it leads anybody there, the control side for nodes that do not. `cloudedge serve` is asked by its
plain JSON interface, stock Paddle Serving as the Pipeline service it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import requests
from numpy.typing import NDArray

from cloudedge.bundle import ProbeRequest, Probes, Signature
from cloudedge.bundle.contents import compare_answer
from cloudedge.errors import InputError, Unavailable
from cloudedge.io import parse_literal, read_body

__all__ = ["ask_ready", "ask_recorded"]

_ANSWER_LIMIT: Final = 64 << 20
_NOT_YET: Final = frozenset({
    requests.codes.too_many_requests, requests.codes.bad_gateway, requests.codes.service_unavailable,
    requests.codes.gateway_timeout,
})  # fmt: skip
_REPR: Final = re.compile(r"\s*array\((.*?)(,\s*shape=\([\d, ]*\))?(,\s*dtype=[^()]+)?\)\s*", re.DOTALL)
"""How Paddle Serving's own operators answer: ``array([[2.46], [2.46]], dtype=float32)``."""


def ask_recorded(base: str, service: str, probes: Probes, signature: Signature, *, timeout_s: float) -> None:
    """Send every recorded request once, and compare the answers.

    Args:
        base: The server, such as ``http://127.0.0.1:18082``.
        service: Its Pipeline service.
        probes: What was recorded.
        signature: For the names that clients use.
        timeout_s: How long one answer may take.

    Raises:
        InputError: it answers otherwise than it should.
        Unavailable: it does not answer.
    """
    names = {v.name: v.alias or v.name for v in (*signature.feed, *signature.fetch)}
    for number, request in enumerate(probes.requests):
        try:
            outputs = _predict(base, service, request, names, timeout_s)
            for name in request.expect:
                found = outputs.get(names.get(name, name), outputs.get(name))
                compare_answer(request, name, found, read=_array)
        except InputError as error:
            raise InputError(f"probe {request.name or number}: {error.message}") from error


def ask_ready(base: str, *, timeout_s: float) -> None:
    """Ask who has a readiness page; who has none is ready when it answers anything.

    Raises:
        Unavailable: it is not ready, or does not answer.
    """
    status, _ = _call("GET", f"{base}/readyz", None, timeout_s)
    if status in _NOT_YET:
        raise Unavailable("it is not ready yet")


def _predict(
    base: str, service: str, request: ProbeRequest, names: Mapping[str, str], timeout_s: float
) -> Mapping[str, Any]:
    feed = {names.get(name, name): value for name, value in request.feed.items()}
    status, body = _call("POST", f"{base}/v1/predict", {"inputs": feed}, timeout_s)
    if status == requests.codes.ok and isinstance(body, dict) and isinstance(body.get("outputs"), dict):
        return dict(body["outputs"])
    if status in _NOT_YET:
        raise Unavailable(f"it says {status}")
    if status == requests.codes.bad_request:
        raise InputError(f"it refuses the request: {str(body)[:300]}")
    texts = [value if isinstance(value, str) else json.dumps(value) for value in feed.values()]
    status, body = _call("POST", f"{base}/{service}/prediction", {"key": list(feed), "value": texts}, timeout_s)
    if status != requests.codes.ok or not isinstance(body, dict):
        raise Unavailable(f"/{service}/prediction says {status}")
    if body.get("err_no"):
        raise InputError(f"it answers err_no {body['err_no']}: {str(body.get('err_msg'))[:300]}")
    return dict(zip(body.get("key") or (), body.get("value") or (), strict=False))


def _array(name: str, value: Any) -> NDArray[np.float64]:
    """Read an answer: a list, the text of one, or what Python writes for an array."""
    try:
        if not isinstance(value, str):
            return np.asarray(value, np.float64)
        shown = _REPR.fullmatch(value)
        if shown is None:
            return np.asarray(json.loads(value), np.float64)
        items = np.asarray(parse_literal(shown[1]), np.float64)
        return items.reshape(parse_literal(shown[2].partition("=")[2])) if shown[2] else items
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise InputError(f"{name} is no array of numbers") from None


def _call(method: str, url: str, value: Any, timeout_s: float) -> tuple[int, Any]:
    try:
        with requests.Session() as session:
            session.trust_env = False  # a proxy answers for servers that do not
            with session.request(method, url, json=value, timeout=(5, timeout_s), stream=True) as answer:
                body = read_body(answer, _ANSWER_LIMIT)
                status = answer.status_code
    except (requests.RequestException, OSError) as error:
        raise Unavailable(f"{url}: {type(error).__name__}") from error
    try:
        return status, json.loads(body)
    except (ValueError, RecursionError):
        return status, body[:300].decode(errors="replace")
