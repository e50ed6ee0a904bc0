"""The intake of a server: a body is decompressed and measured, its memory is charged, and only then is it parsed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from cloudedge.errors import Overloaded
from cloudedge.http1 import HeldBytes
from cloudedge.serving.formats import BodyLimits, inflate, most_inflated
from cloudedge.serving.protocols._offload import offload

__all__ = ["Intake"]

_T = TypeVar("_T")
_SMALL = 4096
"""Bytes of a body that cannot become much: it is parsed at once."""
_LIKELY_RATIO = 64
"""Likely growth of a compressed body."""


class Intake:
    """Parses the bodies of one server within its limits; used on the thread of its event loop.

    Args:
        limits: The limits of what a body may become.
        held: Counts the bytes of requests until they are answered; parsed requests count too.
    """

    def __init__(self, limits: BodyLimits | None = None, held: HeldBytes | None = None) -> None:
        self.limits = limits or BodyLimits()
        self._held = held or HeldBytes(sys.maxsize)

    async def parse(
        self, body: bytes, cost: Callable[[bytes, int], int], read: Callable[[bytes], _T], wrapper: int | None = None
    ) -> tuple[_T, int]:
        """Parse a body, on another thread if it is large.

        Args:
            body: The body, as received.
            cost: Estimates the memory of a body once it is parsed, and refuses more than a limit.
            read: Parses the body.
            wrapper: The compression of the body; None for none.

        Returns:
            The parsed body, and the charge to `give` back once it is answered.

        Raises:
            TooLarge: The body would become more than a limit.
            Overloaded: The requests under way take too much memory.
            InputError: The body cannot be decompressed. Otherwise as `read`.
        """
        size = len(body)
        if wrapper is None and size <= _SMALL:
            return read(body), 0
        likely = size if wrapper is None else min(size * _LIKELY_RATIO, most_inflated(size, self.limits))
        plain, estimate = await offload(likely, self._measure, body, cost, wrapper)
        charge = len(plain) + estimate
        if not self._held.take(charge):
            self._held.give(charge)
            raise Overloaded("the requests under way take too much memory, the limit of `--max-held-mb`; try again")
        try:
            return await offload(len(plain), read, plain), charge
        except BaseException:
            self._held.give(charge)
            raise

    def give(self, charge: int) -> None:
        """Give back the charge of a request that is answered."""
        self._held.give(charge)

    def _measure(self, body: bytes, cost: Callable[[bytes, int], int], wrapper: int | None) -> tuple[bytes, int]:
        plain = body if wrapper is None else inflate(body, self.limits, wrapper)
        return plain, cost(plain, self.limits.max_parsed_bytes)
