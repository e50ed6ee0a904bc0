"""Addresses of servers, ``host:port``; an IPv6 address stands in brackets."""

from __future__ import annotations

from cloudedge.errors import ConfigError

__all__ = ["join_address", "parse_address"]


def parse_address(text: str, *, default_host: str = "", any_port: bool = False) -> tuple[str, int]:
    """Split ``host:port``.

    Args:
        text: The address.
        default_host: The host of ``:port``, which is refused if left out.
        any_port: Accept port 0, which stands for a free one.

    Raises:
        ConfigError: it is none.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or default_host
    is_port = bool(colon) and port.isascii() and port.isdecimal() and int(port) < 1 << 16
    if not host or not is_port or not (int(port) or any_port):
        hint = "Write HOST:PORT, or :PORT for loopback." if default_host else "Write host:port, such as 127.0.0.1:8027."
        raise ConfigError(f"{text!r} is not an address", hint=hint)
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Write what `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
