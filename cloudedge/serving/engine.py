"""What the wire formats and the runtime know of each other.

The runtime implements `Engine`; every protocol (Pipeline, GeneralModelService, plain JSON; over HTTP, gRPC or
baidu_std) holds one version for the whole of a request: its bytes are read with that version's signature, become a
`Call`, and the `Answer` of `Held.predict`, or the error, becomes bytes again.
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

__all__ = ["Answer", "Call", "Engine", "Held", "HttpAnswer", "HttpCall", "ModelFailed", "NoneActive", "answer_headers"]


class NoneActive(Unavailable):
    """Nobody answers here at the moment: before the first version is activated, or while the active one is away."""


class ModelFailed(Unavailable):
    """The engine itself failed on inputs that are as the signature says; what it said is for the operator."""


@dataclass(frozen=True)
class Call:
    """One prediction that somebody asked for."""

    feed: Mapping[str, NDArray[Any]]
    """Arrays by alias, batch dimension first."""
    fetch: Sequence[str] = ()
    """Aliases wanted; empty: all, in the signature's order."""
    pin: str | None = None
    """The version an admin caller wants; None: the one the pointer and its weights choose."""
    tag: str | None = None
    """The variant a caller wants; None: by weight. Both are settled where a version is held."""
    deadline: float | None = None
    """On the monotonic clock; what is not begun by then is refused."""
    log_id: int = 0


@dataclass(frozen=True)
class Answer:
    """What a version answered."""

    outputs: Mapping[str, NDArray[Any]]
    """Arrays by alias, in the order asked for."""
    pin: str
    """The version, dense and sparse alike, that produced it."""
    tag: str = ""
    """The variant it belongs to, if there are variants."""
    defaulted: float = 0.0
    """Share of looked-up rows that are declared defaults because a shard was away; 0 unless allowed."""


class Held(Protocol):
    """The version that one request was given to; it is not unloaded before it is let go."""

    @property
    def signature(self) -> Signature:
        """Its feeds and fetches."""
        ...

    async def predict(self, call: Call) -> Answer:
        """Answer one call.

        Raises:
            InputError: a feed is missing, unknown, or of the wrong dtype or shape; names the variable.
            Overloaded: the queue is full; nothing was done.
            DeadlineExceeded: the deadline passed before it was begun.
            Unavailable: rows could not be had, and no default is declared.
            ModelFailed: the engine failed.
        """
        ...


class Engine(Protocol):
    """Gives requests to whatever version the pointer says."""

    def hold(self, tag: str | None = None) -> AbstractContextManager[Held]:
        """Choose a version for one request, and keep it until the block is left.

        Args:
            tag: The variant a caller wants; None: by weight.

        Raises:
            NoneActive: no version is.
            NotFound: the variant is not known here.
        """
        ...


def answer_headers(pin: str, tag: str, defaulted: float) -> dict[str, str]:
    """Say in headers whose answer it is, and whether rows in it are declared defaults."""
    headers = {"X-Cloudedge-Pin": pin} if pin else {}
    if tag:
        headers["X-Cloudedge-Tag"] = tag
    if defaulted:
        headers["X-Cloudedge-Defaulted"] = f"{defaulted:.4g}"
    return headers
