"""Ending servers: the first signal asks them to finish, the second one means now."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["STOP", "on_signals", "stop_at_once"]

STOP = (signal.SIGTERM, signal.SIGINT)


def on_signals(stop: Callable[[], None], *numbers: signal.Signals) -> None:
    """Call something when a signal comes, in a thread of its own.

    A handler interrupts the main thread anywhere, also where that holds the very lock that `stop` wants, and would then
    wait for itself for ever. Only a queue that may be re-entered can be told from there.
    """
    asked: SimpleQueue[None] = SimpleQueue()

    def wait() -> None:
        asked.get()
        stop()

    threading.Thread(target=wait, name="stop", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda *_: asked.put(None))


def stop_at_once() -> None:
    """Have a further signal end the process there and then."""
    for number in STOP:
        signal.signal(number, lambda *_: os._exit(1))
