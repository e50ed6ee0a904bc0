"""Small JSON files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cloudedge.hub import storage_errors

__all__ = ["write_json"]


def write_json(path: Path, value: Any) -> None:
    """Write a file by writing another one and renaming it.

    Raises:
        StorageError: there is no room, or no right.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with storage_errors("writing", path):
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
