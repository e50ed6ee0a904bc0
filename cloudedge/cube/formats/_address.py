"""Addresses of servers, ``host:port``; an IPv6 address stands in brackets."""

from __future__ import annotations

from cloudedge.errors import ConfigError

__all__ = ["join_address", "parse_address"]


def parse_address(text: str) -> tuple[str, int]:
    """Split ``host:port``.

    Raises:
        ConfigError: it is none.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{text!r} is not an address", hint="write host:port, for example 127.0.0.1:8027")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Write what `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
