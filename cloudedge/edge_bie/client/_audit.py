"""The audit log: one line of JSON for every attempted write, with its author and its outcome."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cloudedge.config import CloudConfig, home
from cloudedge.io import storage_errors

__all__ = ["Audit", "AuditFile", "Write", "state_folder"]


@dataclass(frozen=True)
class Write:
    """One audited write."""

    who: str
    at: str
    request_id: str
    verb: str
    """``create``, ``update``, ``delete``, ``repin`` (an app that a config's update left behind) or ``refresh``."""
    object: str
    """Kind and name: ``config/paddle-yolov3-model``."""
    old_version: str
    new_version: str
    body_sha256: str
    """The digest of the body with its secrets masked."""
    outcome: str
    """``done``, or the reason of the failure."""


Audit = Callable[[Write], None]


def state_folder(settings: CloudConfig) -> Path:
    """Return the folder of this machine's records about a control plane."""
    name = f"{settings.url.partition('://')[2]}/{settings.prefix}/{settings.namespace}"
    return home() / "bie" / re.sub(r"[^a-zA-Z0-9.]+", "-", name).strip("-")


class AuditFile:
    """Appends lines to a file; each is on disk before the next write begins."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of(cls, settings: CloudConfig) -> AuditFile:
        """Open the audit log that all writers to a control plane on this machine share."""
        return cls(state_folder(settings) / "audit.jsonl")

    def __call__(self, write: Write) -> None:
        """Append a line."""
        line = json.dumps(asdict(write), ensure_ascii=False) + "\n"
        with storage_errors("writing the audit", self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # One write of one line in append mode: lines of two processes never mix.
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode())
                os.fsync(fd)
            finally:
                os.close(fd)
