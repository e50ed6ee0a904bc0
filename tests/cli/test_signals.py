import os
import signal
import threading

import pytest

from cloudedge.cli._signals import on_signals

pytestmark = pytest.mark.rules


def test_a_signal_that_meets_the_lock_it_wants_is_heeded_all_the_same():
    before, lock, stopped = signal.getsignal(signal.SIGUSR1), threading.Lock(), threading.Event()

    def stop():
        with lock:
            stopped.set()

    try:
        on_signals(stop, signal.SIGUSR1)
        with lock:  # as when it comes while the main thread waits for the event that it sets
            os.kill(os.getpid(), signal.SIGUSR1)
        assert stopped.wait(30)
    finally:
        signal.signal(signal.SIGUSR1, before)
