"""Blobs to upload and ways to look at them."""

from __future__ import annotations

import hashlib

from cloudedge.clock import ManualClock
from cloudedge.hub.core._oci import Descriptor

MIB = 1024 * 1024


def noise(size):
    return hashlib.shake_128(b"noise").digest(size)


def blob_of(data):
    return Descriptor.of(data, "application/octet-stream")


def reader(data, step=MIB):
    def read(start):
        for at in range(start, len(data), step):
            yield data[at : at + step]

    return read


def content(store, key, start=0):
    return b"".join(store.get(key, start))


def quick(open_store):
    """Open a store whose pauses take no time."""
    return open_store(clock=ManualClock())
