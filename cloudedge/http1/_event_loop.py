"""An asyncio event loop in a thread of its own: uvloop's where it is installed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["EventLoopThread"]

_T = TypeVar("_T")


class EventLoopThread:
    """Runs an event loop from `start` until `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_running(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self, within_s: float | None = None) -> None:
        """Stop the loop and wait for its thread, so long at most; a loop that never ran is closed."""
        if not self._thread.is_alive():
            self.loop.close()
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(within_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
