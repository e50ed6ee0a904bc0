"""Atomic writes of small JSON and text files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cloudedge.io import storage_errors, write_atomically

__all__ = ["write_json", "write_text"]


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; see `write_text`."""
    write_text(path, json.dumps(value, indent=1))


def write_text(path: Path, text: str) -> None:
    """Write a file atomically; it survives a power cut.

    Raises:
        StorageError: the disk is full, or the folder may not be written.
    """
    with storage_errors("writing", path):
        write_atomically(path, text)
