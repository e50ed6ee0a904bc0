"""HTTP/1.1 on this side of the wire: two servers, and the proxy that switches a service between versions.

- `Connections`: asyncio and httptools, thousands of connections on one thread; for serving and the lab. It needs
  ``pip install 'cloudedge[serve]'``, and is imported when it is first used.
- `ThreadedServer`: a thread per connection, standard library only; for admin APIs and files.
- `switching_proxy`: one standalone file of the standard library, copied into containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge._lazy import lazy_names

if TYPE_CHECKING:
    from cloudedge.http1 import switching_proxy
    from cloudedge.http1._connection import Connection, Foreign, Handler, OtherProtocol
    from cloudedge.http1._connections import Connections
    from cloudedge.http1._event_loop import EventLoopThread
    from cloudedge.http1._limits import ConnectionLimits, HeldBytes
    from cloudedge.http1._messages import FileAnswer, FilePart, HangUp, HttpAnswer, HttpCall
    from cloudedge.http1._threads import ThreadedHandler, ThreadedServer, is_loopback

__all__ = [
    "Connection",
    "ConnectionLimits",
    "Connections",
    "EventLoopThread",
    "FileAnswer",
    "FilePart",
    "Foreign",
    "Handler",
    "HangUp",
    "HeldBytes",
    "HttpAnswer",
    "HttpCall",
    "OtherProtocol",
    "ThreadedHandler",
    "ThreadedServer",
    "is_loopback",
    "switching_proxy",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_connection": ("Connection", "Foreign", "Handler", "OtherProtocol"),
        "_connections": ("Connections",),
        "_event_loop": ("EventLoopThread",),
        "_limits": ("ConnectionLimits", "HeldBytes"),
        "_messages": ("FileAnswer", "FilePart", "HangUp", "HttpAnswer", "HttpCall"),
        "_threads": ("ThreadedHandler", "ThreadedServer", "is_loopback"),
        "switching_proxy": (),
    },
)
