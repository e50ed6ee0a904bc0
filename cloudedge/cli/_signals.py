"""Signal handling of servers: the first signal asks them to finish, the second ends them at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["STOP", "on_signals", "stop_at_once"]

STOP = (signal.SIGTERM, signal.SIGINT)


def on_signals(stop: Callable[[], None], *numbers: signal.Signals) -> None:
    """Call a function, in its own thread, when a signal comes.

    A handler interrupts the main thread anywhere, even where it holds the very lock that `stop` needs, and would then
    wait for itself for ever. A handler can safely use only a re-entrant queue.
    """
    signalled: SimpleQueue[None] = SimpleQueue()

    def wait() -> None:
        signalled.get()
        stop()

    threading.Thread(target=wait, name="stop", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda *_: signalled.put(None))


def stop_at_once() -> None:
    """Make a further signal end the process at once."""
    for number in STOP:
        signal.signal(number, lambda *_: os._exit(1))
