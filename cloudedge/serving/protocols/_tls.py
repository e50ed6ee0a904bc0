"""TLS of the data ports: one certificate for HTTP, baidu_std and gRPC, read when the server starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from cloudedge.errors import ConfigError

__all__ = ["Tls"]


@dataclass(frozen=True)
class Tls:
    """A certificate with the chain behind it, and its key, both PEM. Immutable; tried when made."""

    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        self.context()

    def context(self) -> ssl.SSLContext:
        """Return what sockets are wrapped with: TLS 1.2 or later.

        Raises:
            ConfigError: a file cannot be read, or the key is not the certificate's.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            # A password would be asked for at the terminal; nobody is there.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(
                f"the certificate {self.certificate} and the key {self.key} cannot be used: {error}",
                hint="both are PEM files, the key without a password, and they belong together",
            ) from error
        return context

    def pem(self) -> tuple[bytes, bytes]:
        """Return key and certificate, as gRPC takes them."""
        return self.key.read_bytes(), self.certificate.read_bytes()
