"""An event loop in a thread, for servers that blocking clients talk to."""

import asyncio
import threading
from contextlib import contextmanager


@contextmanager
def loop_in_thread():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    try:
        yield call
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
