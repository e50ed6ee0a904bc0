"""The highest version of each bundle that was taken with a key, remembered on this machine.

A hub, or an attacker in its place, can offer an old bundle whose signature is still good. A machine that takes bundles
with a key therefore remembers the highest version, as TUF's clients do: one file for each key, written before the
version is used and read before the next one is.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from cloudedge.bundle.signing._keys import load_public
from cloudedge.errors import IntegrityError
from cloudedge.hub import is_version, version_key
from cloudedge.io import FileLock, storage_errors, write_atomically

__all__ = ["SeenVersions"]


class SeenVersions:
    """The memory of one key.

    Args:
        folder: The folder with a file for each key; made by the first write.
        key: The public key file; the same key in another file has the same memory.
    """

    def __init__(self, folder: Path, key: Path) -> None:
        self._folder = folder
        self._key = key

    @property
    def _file(self) -> Path:
        public = load_public(self._key)
        der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return self._folder / f"{hashlib.sha256(der).hexdigest()}.json"

    def newer_than(self, name: str, version: str) -> str:
        """Return the highest version that was taken under a name, if it is newer than `version`; else nothing.

        Raises:
            IntegrityError: the memory is damaged.
        """
        highest = self._read(self._file).get(name, "")
        if not highest or not is_version(version):
            return ""
        return highest if version_key(highest) > version_key(version) else ""

    def remember(self, name: str, version: str) -> None:
        """Write a version down, unless a higher one is there; returns when the device has it.

        Raises:
            StorageError: it cannot be written.
            IntegrityError: the memory is damaged.
        """
        if not is_version(version):
            return
        file = self._file
        with storage_errors("remembering the highest version", file):
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock.take(file.with_suffix(".lock"), wait_s=60):
                known = self._read(file)
                if name in known and version_key(known[name]) >= version_key(version):
                    return
                write_atomically(file, json.dumps({**known, name: version}, indent=1, sort_keys=True))

    def _read(self, file: Path) -> dict[str, str]:
        try:
            found = json.loads(file.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            found = error
        if not isinstance(found, dict) or not all(isinstance(v, str) and is_version(v) for v in found.values()):
            raise IntegrityError(
                f"{file} is damaged: it should hold the highest version of each bundle",
                hint="Restore it from a backup, or remove it to trust the hub once about which version is the newest.",
                path=str(file),
            )
        return found
