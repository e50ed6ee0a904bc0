"""From a configured hub, a URL or a path to a `Hub`; each backend is imported only when it is used."""

from __future__ import annotations

import getpass
import os
import socket

from cloudedge.config import HubConfig
from cloudedge.errors import ConfigError
from cloudedge.hub._local import LocalHub
from cloudedge.hub._protocol import Hub

__all__ = ["open_hub", "who"]


def open_hub(where: HubConfig | str | os.PathLike[str]) -> Hub:
    """Open a hub. Nothing is read or made until it is used.

    Raises:
        ConfigError: the URL's scheme is not one cloudedge speaks, or an extra is not installed.
    """
    config = where if isinstance(where, HubConfig) else HubConfig.model_validate(os.fspath(where))
    scheme, separator, rest = config.url.partition("://")
    if not separator or scheme == "file":
        return LocalHub(rest or config.url)
    raise ConfigError(scheme)


def who() -> str:
    """Return user@host, for histories."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
