"""TLS of the data ports: one certificate for HTTP, baidu_std and gRPC, read when the server starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from cloudedge.errors import ConfigError

__all__ = ["Tls"]


@dataclass(frozen=True)
class Tls:
    """A certificate with its chain, and its key, both PEM. Immutable; loaded once when made, as a check."""

    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        self.context()

    def context(self) -> ssl.SSLContext:
        """Return the SSL context of the server's sockets: TLS 1.2 or later.

        Raises:
            ConfigError: A file cannot be read, or the key does not belong to the certificate.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            # Without this, ssl would ask for a password at a terminal that a server does not have.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(
                f"the certificate {self.certificate} and the key {self.key} cannot be used: {error}",
                hint="Give two PEM files that belong together, the key without a password.",
            ) from error
        return context

    def pem(self) -> tuple[bytes, bytes]:
        """Return key and certificate, as gRPC takes them."""
        return self.key.read_bytes(), self.certificate.read_bytes()
