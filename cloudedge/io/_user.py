"""The user this process acts for, as histories and locks name it."""

from __future__ import annotations

import os

__all__ = ["who"]


def who() -> str:
    """Return user@host."""
    import getpass  # noqa: PLC0415 - few processes need it
    import socket  # noqa: PLC0415 - as above

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
