"""A server of a tiny model as a process: ``python -m tests.serving.client.tiny_server SCHEME``. Writes its URL."""

from __future__ import annotations

import signal
import sys

from tests.serving.client.test_client import serving
from tests.serving.protocols.engine import TinyEngine

if __name__ == "__main__":
    with serving(TinyEngine(), sys.argv[1]) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGTERM})
