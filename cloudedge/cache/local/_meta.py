"""Where a volume's metadata is, and its password apart: the address is kept, printed and seen by `ps`."""

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
"""The password of the metadata engine, for those who want it in no file."""

_FILE = "meta-password"
_WITH_PASSWORD = re.compile(r"([a-z0-9+]+)://([^:@/]*):(.+)@([^@]*)")
_FILES = ("sqlite3", "badger", "memkv")
"""Engines that are files of this machine and know no passwords."""
_READ_AS_WRITTEN = ("mysql",)
"""Engines whose addresses are not percent-encoded."""


@dataclass(frozen=True)
class Meta:
    """A metadata engine.

    Args:
        address: Without a password: ``redis://user@host:6379/1``, ``sqlite3://FILE``.
        password: Empty if it needs none.
    """

    address: str
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Meta:
        """Part an address from the password in it; one without stays as it is."""
        found = _WITH_PASSWORD.fullmatch(url)
        if not found or found[1] in _FILES:
            return cls(url)
        scheme, user, password, rest = found.groups()
        return cls(f"{scheme}://{user}@{rest}", password if scheme in _READ_AS_WRITTEN else unquote(password))

    def known(self, folder: Path) -> Meta:
        """Return it with its password: its own, that of the environment, or the one that was kept in a folder."""
        scheme, _, rest = self.address.partition("://")
        if self.password or scheme in _FILES:
            return self
        password = os.environ.get(PASSWORD_VARIABLE, "")
        if not password:
            with suppress(FileNotFoundError):
                password = (folder / _FILE).read_text(encoding="utf-8")
        # JuiceFS puts the password before an @, which has to be there.
        return Meta(self.address if "@" in rest or not password else f"{scheme}://@{rest}", password)

    def keep(self, folder: Path) -> None:
        """Write the password down where only its owner may read it; nothing if there is none."""
        if not self.password:
            return
        write_atomically(folder / _FILE, self.password, mode=0o600)

    @property
    def environment(self) -> dict[str, str]:
        """What JuiceFS is told by its environment."""
        return {"META_PASSWORD": self.password} if self.password else {}


def has_password(url: str) -> bool:
    """Tell whether an address carries a password."""
    return _WITH_PASSWORD.fullmatch(url) is not None
