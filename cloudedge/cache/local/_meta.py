"""Addresses of metadata engines, separated from their passwords: addresses are stored, printed and seen by `ps`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from cloudedge.io import write_atomically

__all__ = ["PASSWORD_VARIABLE", "Meta", "has_password"]

PASSWORD_VARIABLE = "CLOUDEDGE_DATASET_META_PASSWORD"  # noqa: S105 - its name
"""The variable with the metadata engine's password, for users who want it in no file."""

_FILE = "meta-password"
_WITH_PASSWORD = re.compile(r"([a-z0-9+]+)://([^:@/]*):(.+)@([^@]*)")
_FILES = ("sqlite3", "badger", "memkv")
"""Engines that are local files and have no passwords."""
_NOT_PERCENT_ENCODED = ("mysql",)
"""Engines whose addresses are not percent-encoded."""


@dataclass(frozen=True)
class Meta:
    """A metadata engine.

    Args:
        address: The address without a password: ``redis://user@host:6379/1``, ``sqlite3://FILE``.
        password: Empty if the engine needs none.
    """

    address: str
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Meta:
        """Separate an address from the password in it, if any."""
        found = _WITH_PASSWORD.fullmatch(url)
        if not found or found[1] in _FILES:
            return cls(url)
        scheme, user, password, rest = found.groups()
        return cls(f"{scheme}://{user}@{rest}", password if scheme in _NOT_PERCENT_ENCODED else unquote(password))

    def with_password(self, folder: Path) -> Meta:
        """Return the engine with its password: its own, that of the environment, or the one saved in a folder."""
        scheme, _, rest = self.address.partition("://")
        if self.password or scheme in _FILES:
            return self
        password = os.environ.get(PASSWORD_VARIABLE, "")
        if not password:
            with suppress(FileNotFoundError):
                password = (folder / _FILE).read_text(encoding="utf-8")
        # JuiceFS inserts the password before an @, which must exist.
        return Meta(self.address if "@" in rest or not password else f"{scheme}://@{rest}", password)

    def save_password(self, folder: Path) -> None:
        """Save the password, if any, in a file that only its owner may read."""
        if not self.password:
            return
        write_atomically(folder / _FILE, self.password, mode=0o600)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that pass the password to JuiceFS."""
        return {"META_PASSWORD": self.password} if self.password else {}


def has_password(url: str) -> bool:
    """Return whether an address carries a password."""
    return _WITH_PASSWORD.fullmatch(url) is not None
