"""The admin protocol of every server: JSON over HTTP on a port of its own, behind a token."""

from __future__ import annotations

from cloudedge.admin._server import AdminHttp, Reply, is_loopback, order_header, ordered, piece_header

__all__ = ["AdminHttp", "Reply", "is_loopback", "order_header", "ordered", "piece_header"]
