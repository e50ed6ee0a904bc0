"""Connections that break, servers that are busy or silent: what is repeated, and what is given up."""

from __future__ import annotations

from contextlib import closing

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import Conflict, Unavailable
from tests.hub.objects import s3_servers
from tests.hub.objects.openers import s3_opener
from tests.hub.objects.samples import MIB, blob_of, content, noise, quick, reader

pytestmark = pytest.mark.parts


@pytest.fixture(params=["rclone", "seaweedfs"])
def relay(request):
    with closing(s3_servers.Relay(request.getfixturevalue(f"{request.param}_server"))) as relay:
        yield relay


def test_a_download_goes_on_where_the_connection_broke(relay):
    store, data = quick(s3_opener(relay.endpoint)), noise(6 * MIB)
    store.put("key", data)
    relay.cut_next(MIB, 100, 2 * MIB, 0)
    assert content(store, "key") == data


def test_a_connection_that_always_breaks_is_given_up(relay):
    store = quick(s3_opener(relay.endpoint))
    store.put("key", noise(MIB))
    relay.cut_next(*[2000] * 50)
    with pytest.raises(Unavailable) as error:
        content(store, "key")
    assert error.value.hint


def test_continuing_an_upload_sends_only_what_was_missing(relay):
    store, data = s3_opener(relay.endpoint)(), noise(33 * MIB)

    def breaks(start):
        yield data[start : 25 * MIB]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk"):
        store.upload("blob", blob_of(data), breaks, lambda _: None)
    assert store.head("blob") is None
    before = relay.sent
    assert before >= 24 * MIB
    settled = []
    store.upload("blob", blob_of(data), reader(data), settled.append)
    assert 9 * MIB <= relay.sent - before < 9.1 * MIB
    assert sum(settled) == 33 * MIB
    assert content(store, "blob") == data


def test_a_server_that_is_not_there():
    store = quick(s3_opener("http://127.0.0.1:9"))
    with pytest.raises(Unavailable) as error:
        store.put("key", b"")
    assert "s3://hub" in str(error.value)
    assert error.value.hint


def test_bos_is_asked_again_when_it_is_busy_or_silent(bos, open_bos):
    store = quick(open_bos)
    for fault in ("busy", "drop", "lose"):
        bos.fail(fault, 4)
        store.put(f"a/{fault}", b"x")
        bos.fail(fault, 4)
        assert store.head(f"a/{fault}").size == 1
        bos.fail(fault, 4)
        assert content(store, f"a/{fault}") == b"x"
        bos.fail(fault, 4)
        assert [i.key for i in store.list("a/")] == [f"a/{fault}"]
        bos.fail(fault, 4)
        store.delete(f"a/{fault}")
    assert bos.objects == {}


def test_bos_is_given_up_after_five_tries(bos, open_bos):
    bos.fail("busy", 6)
    with pytest.raises(Unavailable, match="503"):
        quick(open_bos).put("key", b"x")
    assert len(bos.faults) == 1
    assert bos.objects == {}


def test_pauses_grow_have_jitter_and_an_end(bos, open_bos):
    clocks = [ManualClock(seed=seed) for seed in (1, 2)]
    for clock in clocks:
        bos.fail("busy", 4)
        open_bos(clock=clock).put("key", b"x")
    assert clocks[0].elapsed != clocks[1].elapsed
    assert all(0 < clock.elapsed < 0.4 + 0.8 + 1.6 + 3.2 for clock in clocks)


def test_a_short_body_is_noticed_and_completed(bos, open_bos):
    store, data = quick(open_bos), noise(6 * MIB)
    store.put("key", data)
    bos.fail("cut", 3, method="GET")
    assert content(store, "key") == data
    bos.fail("cut", 100, method="GET")
    store.put("short", b"ab")
    with pytest.raises(Unavailable, match="1 of 2 bytes"):
        content(store, "short")


def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed(bos, open_bos):
    store = quick(open_bos)
    store.put("key", noise(4 * MIB))
    bos.fail("cut", 1, method="GET")
    chunks = store.get("key")
    next(chunks)
    store.put("key", bytes(4 * MIB))
    with pytest.raises(Conflict, match="replaced"):
        list(chunks)


def test_listings_come_in_pages(bos, open_bos):
    bos.page_size, store = 3, open_bos()
    for n in range(10):
        store.put(f"many/{n}", b"")
    assert [i.key for i in store.list("many/")] == [f"many/{n}" for n in range(10)]
