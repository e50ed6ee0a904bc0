"""The current user's name, for histories and locks."""

from __future__ import annotations

import getpass
import os
import socket

__all__ = ["who"]


def who() -> str:
    """Return ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
