"""Small files that appear whole or not at all."""

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
    """Write a file by writing another one and renaming it.

    Raises:
        StorageError: there is no room, or no right.
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
            temporary.unlink(missing_ok=True)  # what there is of it takes up room
            raise
