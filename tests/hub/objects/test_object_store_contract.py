"""What every object store has to do, whatever is behind it."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudedge.errors import Conflict, IntegrityError, NotFound
from cloudedge.hub.core._oci import Descriptor
from cloudedge.hub.core._protocol import ANY
from cloudedge.hub.objects._remote_store import RemoteStore, newest_upload
from tests.hub.objects.samples import MIB, blob_of, content, noise, reader

pytestmark = pytest.mark.parts


def test_what_is_put_can_be_read_described_listed_and_deleted(object_store):
    object_store.put("a/one", b"first")
    object_store.put("a/two", b"")
    object_store.put("b/three", b"third")
    assert content(object_store, "a/one") == b"first"
    assert content(object_store, "a/two") == b""
    info = object_store.head("a/one")
    assert (info.key, info.size) == ("a/one", 5)
    assert 0 <= info.age_s < 60
    assert sorted(i.key for i in object_store.list("")) == ["a/one", "a/two", "b/three"]
    assert {i.key: (i.size, i.version) for i in object_store.list("a/")} == {
        i.key: (i.size, i.version) for i in map(object_store.head, ["a/one", "a/two"])
    }
    object_store.delete("a/one")
    assert object_store.head("a/one") is None
    assert [i.key for i in object_store.list("a/")] == ["a/two"]


def test_a_new_content_is_a_new_version(object_store):
    object_store.put("key", b"first")
    before = object_store.head("key")
    object_store.put("key", b"other")
    assert object_store.head("key").version != before.version


def test_reading_can_begin_anywhere(object_store):
    data = noise(3 * MIB + 17)
    object_store.put("key", data)
    for start in (0, 1, MIB, len(data) - 1, len(data)):
        assert content(object_store, "key", start) == data[start:]


def test_what_is_not_there(object_store):
    assert object_store.head("none") is None
    assert list(object_store.list("none/")) == []
    object_store.delete("none")
    with pytest.raises(NotFound):
        content(object_store, "none")
    with pytest.raises(NotFound):
        content(object_store, "none", 5)


def test_a_put_can_insist_on_the_version_it_replaces(object_store):
    object_store.put("key", b"1", expected=None)
    with pytest.raises(Conflict):
        object_store.put("key", b"x", expected=None)
    first = object_store.head("key").version
    object_store.put("key", b"2", expected=first)
    with pytest.raises(Conflict):
        object_store.put("key", b"x", expected=first)
    assert content(object_store, "key") == b"2"
    object_store.put("key", b"3", expected=ANY)
    assert content(object_store, "key") == b"3"


def _increment(store):
    version, value = store.head("counter").version, int(content(store, "counter"))
    store.put("counter", str(value + 1).encode(), expected=version)


def _increment_with_conditions(store):
    try:
        _increment(store)
    except Conflict:
        time.sleep(random.random() / 10)
        _increment_with_conditions(store)


def test_no_update_is_lost_when_eight_write_at_once(open_store):
    stores = open_store(), open_store()
    stores[0].put("counter", b"0")

    def work(index):
        store = stores[index % 2]
        for _ in range(5):
            if store.compare_and_set:
                _increment_with_conditions(store)
            else:
                with store.lock("index"):
                    _increment(store)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert content(stores[0], "counter") == b"40"
    if isinstance(stores[0], RemoteStore):
        assert list(stores[0].list("locks/")) == []


def test_an_exclusive_lock_keeps_everyone_out(open_store):
    one, other = open_store(), open_store()
    with one.lock("blobs"):
        for shared in (True, False):
            with (
                pytest.raises(Conflict, match=f"pid {os.getpid()}"),
                other.lock("blobs", shared=shared, wait_s=0),
            ):
                pytest.fail("both are in")
        with other.lock("index", wait_s=0):
            pass
    with other.lock("blobs", wait_s=0):
        pass


def test_sharers_share_and_keep_others_out(open_store):
    one, other, third = open_store(), open_store(), open_store()
    exclusively = third.lock("blobs", wait_s=0)
    with one.lock("blobs", shared=True), other.lock("blobs", shared=True, wait_s=0), pytest.raises(Conflict):
        exclusively.__enter__()
    with third.lock("blobs", wait_s=0):
        pass


@pytest.mark.parametrize("shared", [True, False])
def test_who_waits_for_a_lock_gets_it(open_store, shared):
    one, other = open_store(), open_store()
    order = []

    def wait():
        with other.lock("blobs", shared=shared, wait_s=30):
            order.append("waiter")

    with one.lock("blobs"):
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.3)
        order.append("holder")
    waiter.join()
    assert order == ["holder", "waiter"]


def _hold_for_ever(open_store, held):
    with open_store().lock("index"):
        held.put("held")
        while True:
            time.sleep(1)


def test_a_killed_holder_loses_the_lock(open_brief):
    context = multiprocessing.get_context("spawn")
    held = context.Queue()
    child = context.Process(target=_hold_for_ever, args=(open_brief, held))
    child.start()
    try:
        held.get(timeout=60)
        store = open_brief()
        with pytest.raises(Conflict, match=f"pid {child.pid}"), store.lock("index", wait_s=0):
            pytest.fail("both are in")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    with store.lock("index", wait_s=60):
        pass


@pytest.mark.parametrize("size", [0, 5, 20 * MIB + 3])
def test_an_uploaded_blob_is_there_and_uploading_it_again_reads_nothing(object_store, size):
    data, settled = noise(size), []
    object_store.upload("blob", blob_of(data), reader(data), settled.append)
    assert content(object_store, "blob") == data
    assert sum(settled) == size
    settled.clear()
    object_store.upload("blob", blob_of(data), lambda _: pytest.fail("was read"), settled.append)
    assert sum(settled) == size


def _flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("size", [1000, 17 * MIB])
@pytest.mark.parametrize(
    "spoil",
    [_flipped, lambda data: data[:-1], lambda data: data + b"x"],
    ids=["flipped bit", "short", "long"],
)
def test_wrong_content_never_becomes_visible(object_store, size, spoil):
    data = noise(size)
    with pytest.raises(IntegrityError):
        object_store.upload("blob", blob_of(data), reader(spoil(data)), lambda _: None)
    assert object_store.head("blob") is None
    object_store.upload("blob", blob_of(data), reader(data), lambda _: None)
    assert content(object_store, "blob") == data


def test_an_upload_keeps_little_in_memory(object_store):
    size, step = 64 * MIB, 256 * 1024
    piece = noise(step)
    blob = blob_of(piece * (size // step))
    object_store.head("warm up")
    tracemalloc.start()
    try:
        object_store.upload("blob", blob, lambda _: iter([piece] * (size // step)), lambda _: None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 28 * MIB  # three parts of 8 MiB, and what the SDKs read at a time


def _upload_until_killed(open_store, data, pause_at, settled):
    """Upload, and stand still for ever once so much was read."""

    def read(start):
        for at in range(start, len(data), MIB):
            if at == pause_at:
                while True:
                    time.sleep(1)
            yield data[at : at + MIB]

    open_store().upload("blob", blob_of(data), read, settled.put)


@pytest.fixture
def killed_upload(open_store):
    """A 33 MiB blob of which a process settled at least two parts of 8 MiB before it was killed."""
    context = multiprocessing.get_context("spawn")
    data, settled = noise(33 * MIB), context.Queue()
    child = context.Process(target=_upload_until_killed, args=(open_store, data, 32 * MIB, settled))
    child.start()
    try:
        done = 0
        while done < 16 * MIB:
            done += settled.get(timeout=60)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    return data


def test_an_upload_that_was_killed_is_continued(open_store, killed_upload, monkeypatch):
    store, sent, settled = open_store(), [], []
    assert store.head("blob") is None
    if isinstance(store, RemoteStore):  # count what is sent
        calls = store._calls
        name, send = f"{store.url.split('/', 3)[3]}/blob", calls.send_part
        kept = sum(size for size, _ in calls.list_parts(name, newest_upload(calls, name)).values())
        monkeypatch.setattr(calls, "send_part", lambda *args: sent.append(args[2].size) or send(*args))
    store.upload("blob", blob_of(killed_upload), reader(killed_upload), settled.append)
    assert content(store, "blob") == killed_upload
    assert sum(settled) == len(killed_upload)
    if isinstance(store, RemoteStore):
        assert kept >= 16 * MIB
        # A part that was under way when the upload was killed may have arrived since.
        assert sum(sent) <= len(killed_upload) - kept


def test_uploads_that_nobody_continues_are_swept(open_store):
    store = open_store()
    data = noise(9 * MIB)
    blob = Descriptor.of(data, "m")

    def breaks(start):
        yield data[: 8 * MIB + 5]
        raise NotFound("the source went away")

    with pytest.raises(NotFound):
        store.upload("blobs/x", blob, breaks, lambda _: None)
    assert store.sweep(older_than_s=3600) == 0
    time.sleep(2.1)  # stores tell time in whole seconds
    assert store.sweep(older_than_s=0.5) == 1
    assert store.sweep(older_than_s=0) == 0
    store.upload("blobs/x", blob, lambda start: iter([data[start:]]), lambda _: None)
    assert content(store, "blobs/x") == data
