"""Uploads that fail half-way: no part is sent twice, nothing wrong is kept."""

from __future__ import annotations

import hashlib
import threading
import time
import tracemalloc

import pytest

from cloudedge.errors import IntegrityError, Unavailable
from cloudedge.hub.objects import _multipart
from cloudedge.hub.objects._multipart import PART, part_size, upload_parts
from tests.hub.objects.samples import MIB, blob_of, content, noise, quick, reader


@pytest.mark.parts
@pytest.mark.parametrize("fault", ["busy", "drop", "lose"])
def test_every_step_of_an_upload_survives_a_failure(bos, open_bos, fault):
    store, data, settled = quick(open_bos), noise(17 * MIB), []
    for method in ("HEAD", "GET", "POST", "PUT"):
        bos.fail(fault, 1, method=method)
    store.upload("blob", blob_of(data), reader(data), settled.append)
    bos.fail(fault, 1, method="POST")
    assert content(store, "blob") == data
    assert sum(settled) == 17 * MIB
    assert bos.uploads == {}


@pytest.mark.parts
def test_a_completion_whose_answer_is_lost_counts(bos, open_bos):
    store, data = quick(open_bos), noise(9 * MIB)

    def read(start):
        yield data[start:]
        bos.fail("lose", 1, method="POST")  # the next one completes

    store.upload("blob", blob_of(data), read, lambda _: None)
    assert content(store, "blob") == data
    assert "NoSuchUpload" in bos.refused


@pytest.mark.parts
def test_two_that_upload_the_same_blob_both_succeed(bos, open_bos):
    data, settled = noise(20 * MIB), [[], []]
    threads = [
        threading.Thread(target=open_bos().upload, args=("blob", blob_of(data), reader(data), one.append))
        for one in settled
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(one) for one in settled] == [20 * MIB] * 2
    assert content(open_bos(), "blob") == data


@pytest.mark.parts
def test_an_upload_that_someone_aborted_can_be_repeated(bos, open_bos):
    store, data = quick(open_bos), noise(17 * MIB)

    def read(start):
        yield data[start : 9 * MIB]
        bos.uploads.clear()
        yield data[9 * MIB :]

    with pytest.raises(Unavailable, match="aborted"):
        store.upload("blob", blob_of(data), read, lambda _: None)
    store.upload("blob", blob_of(data), reader(data), lambda _: None)
    assert content(store, "blob") == data


@pytest.mark.parts
def test_wrong_content_leaves_no_parts_behind(bos, open_bos):
    data = noise(17 * MIB)
    with pytest.raises(IntegrityError):
        open_bos().upload("blob", blob_of(data), reader(data[:-1] + b"?"), lambda _: None)
    assert (bos.objects, bos.uploads) == ({}, {})


@pytest.mark.parts
def test_parts_in_many_pages_are_all_found(bos, open_bos):
    bos.page_size, store, data = 1, open_bos(), noise(33 * MIB)

    def breaks(start):
        yield data[start : 25 * MIB]
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - it is ours
        store.upload("blob", blob_of(data), breaks, lambda _: None)
    before = bos.received["part"]
    store.upload("blob", blob_of(data), reader(data), lambda _: None)
    assert bos.received["part"] - before == 9 * MIB


class SlowStore:
    """Takes parts more slowly than they are read, and has some of them already."""

    def __init__(self, found):
        self._found = found
        self.in_flight = self.most = 0
        self.completed = None

    def found(self):
        return self._found

    def send(self, part, body):
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        time.sleep(0.25)
        self.in_flight -= 1
        return hashlib.md5(body.read(100)).hexdigest()

    def complete(self, etags):
        self.completed = sorted(etags)


@pytest.mark.rules
@pytest.mark.parametrize("there", [range(0), range(1, 9), range(1, 9, 2), range(3, 9, 3)])
def test_a_slow_store_does_not_fill_our_memory(there):
    piece, parts = noise(256 * 1024), 8
    blob = blob_of(piece * 32 * parts)
    store = SlowStore({n: (PART, hashlib.md5(piece * 32).hexdigest()) for n in there})
    tracemalloc.start()
    try:
        upload_parts(store, blob, lambda _: iter([piece] * 32 * parts), lambda _: None, "here")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24.5 * MIB
    assert store.most <= 2
    assert store.completed == list(range(1, parts + 1))


@pytest.fixture
def small_buffer(monkeypatch):
    """Parts that do not fit the buffer, as those of blobs over 100 GiB do not."""
    monkeypatch.setattr(_multipart, "_BUFFER", PART)


@pytest.mark.parts
@pytest.mark.usefixtures("small_buffer")
@pytest.mark.parametrize("server", ["rclone", "seaweedfs", "bos"])
def test_parts_that_do_not_fit_the_buffer_are_read_twice(request, server):
    store, data, starts = request.getfixturevalue(f"open_{server}")(), noise(20 * MIB), []

    def read(start):
        starts.append(start)
        yield from reader(data)(start)

    store.upload("blob", blob_of(data), read, lambda _: None)
    assert content(store, "blob") == data
    assert set(starts) == {0, 8 * MIB, 16 * MIB}


@pytest.mark.parts
@pytest.mark.usefixtures("small_buffer")
def test_a_source_that_changes_between_the_two_readings_is_refused(bos, open_bos):
    data, opened = noise(20 * MIB), []

    def shrinks(start):
        opened.append(start)
        yield data[start : len(data) if len(opened) == 1 else start + 100]

    with pytest.raises(IntegrityError, match="shrank"):
        quick(open_bos).upload("blob", blob_of(data), shrinks, lambda _: None)
    opened.clear()

    def changes(start):
        opened.append(start)
        yield data[start:] if len(opened) == 1 else bytes(len(data) - start)

    with pytest.raises(Unavailable, match="BadDigest"):
        quick(open_bos).upload("blob", blob_of(data), changes, lambda _: None)
    assert bos.objects == {}


@pytest.mark.rules
@pytest.mark.parametrize(
    ("size", "part"),
    [(PART + 1, PART), (9000 * PART, PART), (9000 * PART + 1, PART + 1), (5 << 40, 610839794)],
)
def test_parts_are_few_enough_for_any_store(size, part):
    assert part_size(size) == part
    assert -(-size // part) <= 9000
