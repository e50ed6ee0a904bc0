"""Calls in parallel: bounded, in order, all ended when the function returns or raises; and addresses."""

import threading

import pytest

from cloudedge.errors import ConfigError
from cloudedge.io import in_threads, join_address, map_in_threads, parse_address

pytestmark = pytest.mark.rules


def test_results_come_in_order_and_no_more_run_than_allowed():
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(3, timeout=30)

    def double(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if number < 3:
            together.wait()
        with lock:
            running -= 1
        return 2 * number

    assert map_in_threads(double, range(20), 3) == [2 * number for number in range(20)]
    assert most == 3


@pytest.mark.parametrize("finish", [False, True])
def test_the_first_error_wins_and_everything_begun_has_ended(finish):
    began, ended, failed = [], [], threading.Event()

    def call(number):
        began.append(number)
        if number == 1:
            failed.set()
            raise KeyError(number)
        failed.wait(30)
        ended.append(number)

    with pytest.raises(KeyError, match="1"):
        in_threads([lambda number=number: call(number) for number in range(50)], 2, finish=finish)
    assert sorted(began) == sorted([*ended, 1])
    if finish:
        assert len(began) == 50


def test_what_was_not_begun_when_one_failed_is_left_out():
    failed, began = threading.Event(), []

    def call(number):
        began.append(number)
        if number == 0:
            raise KeyError(number)
        failed.wait(30)

    waits = threading.Timer(3.0, failed.set)  # the call that was begun lasts until the others were taken back
    waits.start()
    with pytest.raises(KeyError):
        map_in_threads(call, range(50), 1)
    waits.join()
    assert began[:1] == [0]
    assert len(began) <= 2


def test_one_call_needs_no_thread_and_none_is_fine():
    assert map_in_threads(lambda _: threading.current_thread(), [1], 8) == [threading.current_thread()]
    assert map_in_threads(str, [], 8) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "host.example", "::1", "fe80::1%eth0"])
def test_an_address_is_read_as_it_is_written(host):
    assert parse_address(join_address(host, 8027)) == (host, 8027)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:٣", "[]:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(text)


def test_an_address_to_listen_on_may_leave_things_open():
    assert parse_address(":0", default_host="127.0.0.1", any_port=True) == ("127.0.0.1", 0)
