"""Compression with limits: a small body must not expand without bound."""

from __future__ import annotations

import zlib

from cloudedge.errors import InputError
from cloudedge.serving.formats._body_cost import BodyLimits, TooLarge

__all__ = ["GZIP", "ZLIB", "deflate", "inflate", "most_inflated"]

GZIP, ZLIB = 31, 15  # zlib's window bits for the two wrappers
_PIECE = 64 * 1024
_ANY_RATIO = 1 << 20
"""Bytes that any body may become: a small one full of zeros is harmless."""


def most_inflated(size: int, limits: BodyLimits) -> int:
    """Return the most bytes that a compressed body of `size` bytes may become."""
    return min(limits.max_inflated_bytes, max(_ANY_RATIO, size * limits.max_inflate_ratio))


def inflate(body: bytes, limits: BodyLimits, wrapper: int = GZIP) -> bytes:
    """Decompress one whole body.

    A body that becomes more than a piece is decompressed twice: once to learn its size, and then into memory of that
    size.

    Raises:
        TooLarge: The body holds more than the limits allow.
        InputError: The body is not compressed data, or ends early.
    """
    most = most_inflated(len(body), limits)
    stream = zlib.decompressobj(wrapper)
    try:
        plain = stream.decompress(body, _PIECE)
        size = len(plain)
        while not stream.eof and size <= most and (piece := stream.decompress(stream.unconsumed_tail, _PIECE)):
            size += len(piece)
    except zlib.error as error:
        raise InputError(f"the compressed body cannot be read: {error}") from error
    if size > most:
        raise _too_large(len(body), most, limits)
    if not stream.eof or stream.unused_data:
        raise InputError("the compressed body ends early, or has something behind its end")
    return plain if size == len(plain) else zlib.decompress(body, wrapper, size)


def _too_large(size: int, most: int, limits: BodyLimits) -> TooLarge:
    option = "--max-inflated-mb" if most == limits.max_inflated_bytes else "--max-inflate-ratio"
    return TooLarge(
        f"the compressed body of {size} bytes holds more than {most} bytes, the limit of `{option}`",
        hint="Send it without compression.",
        limit=most,
    )


def deflate(body: bytes, wrapper: int = GZIP) -> bytes:
    """Compress, for speed more than for size."""
    stream = zlib.compressobj(1, wbits=wrapper)
    return stream.compress(body) + stream.flush()
