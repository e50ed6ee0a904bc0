"""The admin protocol of every server: JSON over HTTP on a port of its own, behind a token.

A server is an `AdminHttp`, a client an `AdminHttpClient`. `states` names the states of a version at a server. To add a
field to an answer, add it where the server's own ``_admin_api`` builds that answer.
"""

from __future__ import annotations

from cloudedge.admin import _states as states
from cloudedge.admin._client import AdminHttpClient
from cloudedge.admin._fields import with_free_memory, with_key_counts, with_pin
from cloudedge.admin._orders import order_header, ordered, piece_header
from cloudedge.admin._server import AdminHttp, Reply
from cloudedge.admin._wire_errors import error_fields, read_error, status_of
from cloudedge.http1 import is_loopback

__all__ = [
    "AdminHttp",
    "AdminHttpClient",
    "Reply",
    "error_fields",
    "is_loopback",
    "order_header",
    "ordered",
    "piece_header",
    "read_error",
    "states",
    "status_of",
    "with_free_memory",
    "with_key_counts",
    "with_pin",
]
