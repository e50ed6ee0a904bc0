"""The client and shards that fail: dead, hung, slow, wrong, or refusing."""

from __future__ import annotations

import pickle
import threading
import time

import pytest

from cloudedge.cube.client._errors import ShardUnavailable
from cloudedge.errors import Rejected
from tests.cube import plain_wire as plain
from tests.cube.fake_server import Call, Dead, upstream
from tests.cube.memory_versions import table, value

pytestmark = pytest.mark.parts

# Shards that fail


def test_a_dead_shard_is_named_with_what_was_tried(start, client):
    replicas = [Dead(), Dead()]
    with pytest.raises(ShardUnavailable) as caught:
        client(start(table(2, 0)), replicas, retry=3).seek([0, 1])
    assert caught.value.shard == 1
    assert {replica for replica, _, _ in caught.value.attempts} == {one.address for one in replicas}
    assert len(caught.value.attempts) == 4
    assert "Connection refused" in caught.value.message
    assert caught.value.retry_helps
    assert pickle.loads(pickle.dumps(caught.value)).shard == 1


def test_a_declared_default_is_counted(start, client):
    one = client(start(table(2, 0)), Dead(), on_missing_shard="default", default=-1.0)
    result = one.seek([0, 1, 2, 3, 5])
    assert result.values[:, 0].tolist() == [0.0, -1.0, 2.0, -1.0, -1.0]
    assert result.defaulted.tolist() == [False, True, False, True, True]
    assert (result.defaulted_share, result.failed_shards, result.version) == (0.6, (1,), "100")
    assert not result.found[1]


def test_a_default_needs_a_width(client):
    with pytest.raises(ShardUnavailable, match="width"):
        client(Dead(), on_missing_shard="default").seek([1])
    result = client(Dead(), on_missing_shard="default", value_bytes=8).seek([1])
    assert result.values.tolist() == [[0.0, 0.0]]
    assert (result.defaulted_share, result.version) == (1.0, None)


def test_a_hung_server_costs_the_timeout_and_no_more(fake, client):
    server = fake(lambda call: None)
    started = time.monotonic()
    with pytest.raises(ShardUnavailable, match="no answer within 300 ms"):
        client(server, timeout_ms=300).seek([1])
    assert 0.25 < time.monotonic() - started < 3


@pytest.mark.parametrize("code", [1011, 2003, 2004, 10404])
def test_errors_of_one_replica_are_retried_on_the_other(fake, client, code):
    bad = fake(lambda call: call.error(code))
    good = fake(upstream({1: value(1.0)}))
    one = client([bad, good])
    for _ in range(4):
        assert one.seek([1]).found.all()
    assert bad.calls


def test_an_error_about_the_request_is_not_retried(fake, client):
    bad = fake(lambda call: call.error(1003, b"too many keys"))
    with pytest.raises(Rejected, match="too many keys"):
        client([bad, bad], retry=3).seek([1])
    assert len(bad.calls) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"PRPC\xff\xff\xff\xff\x00\x00\x00\x00",
        plain.frame(b"\xff\xff"),
        plain.frame(plain.text(1, b"")),
    ],
)
def test_nonsense_is_retried_on_the_other_replica(fake, client, answer):
    bad = fake(lambda call: answer)
    good = fake(upstream({1: value(1.0)}))
    one = client([bad, good])
    for _ in range(4):
        assert one.seek([1]).found.all()


@pytest.mark.parametrize(
    "answer",
    [
        lambda call: plain.write_response(call.correlation, [value(1.0)], b"1"),  # one value for two keys
        lambda call: plain.write_response(call.correlation, [value(1.0)] * 3, b"1"),  # three
        lambda call: plain.write_response(call.correlation, [value(1.0)] * 2, None),  # no version
        lambda call: plain.write_response(call.correlation + 1, [value(1.0)] * 2, b"1"),  # to another question
        lambda call: plain.frame(
            plain.text(2, plain.number(1, 0)) + plain.number(4, call.correlation), plain.text(1, plain.number(1, 0)) * 2
        ),  # without values
    ],
)
def test_answers_that_do_not_fit_the_question(fake, client, answer):
    with pytest.raises(ShardUnavailable, match="answered"):
        client(fake(answer)).seek([1, 2])


def test_an_old_connection_that_died_costs_no_attempt(start, client):
    server = start({1: (1.0,)})
    one = client(server, retry=0)
    assert one.seek([1]).found.all()
    server.close()
    again = start({1: (2.0,)}, port=server.port)
    assert again.port == server.port
    assert one.seek([1]).values.tolist() == [[2.0]]


def test_connections_are_used_again(fake, client):
    server = fake(upstream({1: value(1.0)}))
    one = client(server)
    for _ in range(50):
        one.seek([1])
    assert server.connections == 1


# Slow replicas and balance


def test_a_backup_request_overtakes_a_slow_replica(fake, client):
    release = threading.Event()

    def slow(call: Call) -> bytes:
        release.wait(10)
        return call.rows({1: value(1.0)}, b"100")

    stuck = fake(slow)
    quick = fake(upstream({1: value(1.0)}))
    one = client([stuck, quick], backup_request_ms=20, timeout_ms=8000)
    started = time.monotonic()
    for _ in range(4):
        assert one.seek([1]).found.all()
    assert time.monotonic() - started < 4
    assert stuck.calls
    release.set()
    # The late answers come over connections that are used again, and are told apart.
    for _ in range(10):
        assert one.seek([1]).found.all()


def test_a_slow_replica_is_joined_after_its_share_of_the_time(fake, client):
    stuck = fake(lambda call: None)
    quick = fake(upstream({1: value(1.0)}))
    one = client([stuck, quick], timeout_ms=400, retry=1)
    for _ in range(2):
        assert one.seek([1]).found.all()
    assert stuck.calls


def test_without_backup_requests_a_slow_replica_is_waited_for(fake, client):
    """cube.conf's 0, which says never."""
    quick = fake(upstream({1: value(1.0)}))
    one = client([fake(lambda call: None), quick], timeout_ms=200, retry=1, backup_request_ms=0)
    outcomes = []
    for _ in range(2):
        try:
            outcomes.append(one.seek([1]).found.all())
        except ShardUnavailable:
            outcomes.append(False)
    assert sorted(outcomes) == [False, True]
    assert len(quick.calls) == 1


@pytest.mark.parametrize("backup_request_ms", [None, 5])
def test_a_silent_replica_rests(fake, client, backup_request_ms):
    """It was asked every second time, and every second call waited for its share of the time."""
    stuck = fake(lambda call: None)
    quick = fake(upstream({1: value(1.0)}))
    one = client([stuck, quick], timeout_ms=4000, retry=1, backup_request_ms=backup_request_ms)
    for _ in range(200):
        assert one.seek([1]).found.all()
    assert len(quick.calls) == 200
    assert 1 <= len(stuck.calls) <= 30  # not 100: the first ones, one after each rest, and where the other was late


def test_without_backup_requests_too(fake, client):
    """After the one call that its silence costs, a replica is asked only by calls that another one can answer."""
    stuck = fake(lambda call: None)
    quick = fake(upstream({1: value(1.0)}))
    one = client([stuck, quick], timeout_ms=200, retry=1, backup_request_ms=0)
    failed = 0
    begun = time.monotonic()
    while time.monotonic() - begun < 3:
        try:
            assert one.seek([1]).found.all()
        except ShardUnavailable:
            failed += 1
    assert failed == 1
    assert len(stuck.calls) >= 2  # it was asked again after its rest


def test_a_replica_that_is_back_is_asked_again(fake, client):
    silent = threading.Event()
    silent.set()
    one = fake(lambda call: None if silent.is_set() else call.rows({1: value(1.0)}, b"100"))
    other = fake(upstream({1: value(1.0)}))
    reader = client([one, other], timeout_ms=4000, retry=1, backup_request_ms=20)
    for _ in range(50):
        assert reader.seek([1]).found.all()
    silent.clear()
    before = len(one.calls)
    end = time.monotonic() + 60
    while len(one.calls) < before + 20:
        assert time.monotonic() < end
        assert reader.seek([1]).found.all()


def test_replicas_take_turns(fake, client):
    replicas = [fake(upstream({1: value(1.0)})) for _ in range(3)]
    one = client(replicas)
    for _ in range(30):
        one.seek([1])
    assert [len(replica.calls) for replica in replicas] == [10, 10, 10]


def test_the_least_loaded_replica_is_preferred(fake, client):
    release = threading.Event()
    stuck = fake(lambda call: (release.wait(10), call.rows({1: value(1.0)}, b"100"))[1])
    quick = fake(upstream({1: value(1.0)}))
    one = client([stuck, quick], load_balancer="least", timeout_ms=9000, retry=0)
    waiting = threading.Thread(target=lambda: one.seek([1]))
    waiting.start()
    try:
        while not stuck.calls:
            time.sleep(0.005)
        for _ in range(10):
            one.seek([1])
        assert len(stuck.calls) == 1
    finally:
        release.set()
        waiting.join()


def test_a_dead_replica_is_left_alone_for_a_while(fake, client):
    quick = fake(upstream({1: value(1.0)}))
    one = client([Dead(), quick], retry=1)
    for _ in range(20):
        assert one.seek([1]).found.all()
