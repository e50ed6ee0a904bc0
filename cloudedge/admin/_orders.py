"""The headers of admin calls: the number of the order that a call belongs to, and the place of a piece of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cloudedge.errors import InputError

__all__ = ["OFFSET", "ORDER", "PIECE", "order_header", "ordered", "parse_number", "piece_header"]

ORDER, OFFSET = "Cloudedge-Order", "Cloudedge-Offset"
PIECE = "application/octet-stream"
_DIGITS = 19
_order: ContextVar[int | None] = ContextVar("order", default=None)


@contextmanager
def ordered(number: int) -> Iterator[None]:
    """Make the admin calls of this thread carry an order's number until the block ends."""
    token = _order.set(number)
    try:
        yield
    finally:
        _order.reset(token)


def order_header() -> dict[str, str]:
    """Return the header with the order's number; none outside of `ordered`."""
    number = _order.get()
    return {} if number is None else {ORDER: str(number)}


def piece_header(offset: int) -> dict[str, str]:
    """Return the headers that go with a piece of a file."""
    return {"Content-Type": PIECE, OFFSET: str(offset)}


def parse_number(header: str, text: str) -> int:
    """Read a header's number.

    Raises:
        InputError: the text is not one.
    """
    if not text.isdecimal() or len(text) > _DIGITS:
        raise InputError(f"{header} is a number, not {text[:_DIGITS]!r}")
    return int(text)
