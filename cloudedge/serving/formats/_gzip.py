"""Compression with a size limit: a small body must not expand without bound."""

from __future__ import annotations

import zlib

from cloudedge.errors import InputError

__all__ = ["GZIP", "ZLIB", "deflate", "inflate"]

GZIP, ZLIB = 31, 15  # zlib's window bits for the two wrappers


def inflate(body: bytes, limit: int, wrapper: int = GZIP) -> bytes:
    """Decompress one whole body.

    Raises:
        InputError: The body is not compressed data, ends early, or holds more than `limit` bytes.
    """
    stream = zlib.decompressobj(wrapper)
    try:
        plain = stream.decompress(body, limit)
        more = stream.unconsumed_tail and stream.decompress(stream.unconsumed_tail, 1)
    except zlib.error as error:
        raise InputError(f"the compressed body cannot be read: {error}") from error
    if more:
        raise InputError(f"the compressed body holds more than {limit} bytes", limit=limit)
    if not stream.eof or stream.unused_data:
        raise InputError("the compressed body ends early, or has something behind its end")
    return plain


def deflate(body: bytes, wrapper: int = GZIP) -> bytes:
    """Compress, for speed more than for size."""
    stream = zlib.compressobj(1, wbits=wrapper)
    return stream.compress(body) + stream.flush()
