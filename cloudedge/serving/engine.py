"""The interface between the wire protocols and the runtime.

The runtime implements `Engine`. Every protocol (Pipeline, GeneralModelService, plain JSON; over HTTP, gRPC or
baidu_std) holds one version for the whole of a request. It parses the request with that version's signature into a
`Call`, and encodes the `Answer` of `RequestVersion.predict`, or the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from cloudedge.bundle import Signature
from cloudedge.errors import Unavailable
from cloudedge.http1 import HttpAnswer, HttpCall

__all__ = [
    "Answer",
    "Call",
    "Engine",
    "HttpAnswer",
    "HttpCall",
    "ModelFailed",
    "NoneActive",
    "RequestVersion",
    "answer_headers",
]


class NoneActive(Unavailable):
    """No version is active: before the first activation, or while the active one is not loaded."""


class ModelFailed(Unavailable):
    """The engine failed on inputs that fit the signature; its message is for the operator."""


@dataclass(frozen=True)
class Call:
    """One requested prediction."""

    feed: Mapping[str, NDArray[Any]]
    """Arrays by alias, batch dimension first."""
    fetch: Sequence[str] = ()
    """Requested aliases; empty: all, in the signature's order."""
    pin: str | None = None
    """The version an admin caller requests; None: the routing chooses."""
    tag: str | None = None
    """The variant a caller requests; None: by weight. `Engine.hold` has applied pin and tag already."""
    deadline: float | None = None
    """On the monotonic clock; a call that has not begun by then is refused."""
    log_id: int = 0


@dataclass(frozen=True)
class Answer:
    """The answer of a version to one call."""

    outputs: Mapping[str, NDArray[Any]]
    """Arrays by alias, in the requested order."""
    pin: str
    """The version, dense and sparse alike, that computed it."""
    tag: str = ""
    """The variant of that version, if there are variants."""
    defaulted: float = 0.0
    """Share of looked-up rows that are declared defaults because a shard was unreachable; 0 unless allowed."""


class RequestVersion(Protocol):
    """The version that answers one request; it stays loaded until the request releases it."""

    @property
    def signature(self) -> Signature:
        """The version's feeds and fetches."""
        ...

    async def predict(self, call: Call) -> Answer:
        """Answer one call.

        Raises:
            InputError: A feed is missing, unknown, or of the wrong dtype or shape; names the variable.
            Overloaded: The queue is full; nothing was done.
            DeadlineExceeded: The deadline passed before the call began.
            Unavailable: Rows were not available, and no default is declared.
            ModelFailed: The engine failed.
        """
        ...


class Engine(Protocol):
    """Chooses the version that answers a request."""

    def hold(self, tag: str | None = None) -> AbstractContextManager[RequestVersion]:
        """Choose a version for one request and keep it loaded until the block ends.

        Args:
            tag: The variant the caller requests; None: by weight.

        Raises:
            NoneActive: No version is active.
            NotFound: There is no such variant.
        """
        ...


def answer_headers(pin: str, tag: str, defaulted: float) -> dict[str, str]:
    """Return the headers that name the pin and the tag of an answer and its share of declared defaults."""
    headers = {"X-Cloudedge-Pin": pin} if pin else {}
    if tag:
        headers["X-Cloudedge-Tag"] = tag
    if defaulted:
        headers["X-Cloudedge-Defaulted"] = f"{defaulted:.4g}"
    return headers
