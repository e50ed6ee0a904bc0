"""Atomic writes of small JSON and text files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cloudedge.hub import storage_errors

__all__ = ["write_json", "write_text"]


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; see `write_text`."""
    write_text(path, json.dumps(value, indent=1))


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: write another one, then rename it.

    Raises:
        StorageError: the disk is full, or the folder may not be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with storage_errors("writing", path):
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)  # a partial file takes up room
            raise
