"""The disk of an upstream server on this machine: the version that a restart loads, and leftover files.

Upstream's agent writes ``data/VERSION`` and deletes it again with everything else that is not the version it has just
fetched. Without that file a server that is started again serves the newest files under an empty version.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cloudedge.admin import is_loopback
from cloudedge.cube.formats import CubeAddress

__all__ = ["ServerDisk"]


class ServerDisk:
    """A server's working directory; out of reach unless the server runs on this machine.

    Args:
        name: The replica's name, for messages.
        shard: The shard it serves.
        cube: The server.
    """

    def __init__(self, name: str, shard: int, cube: CubeAddress) -> None:
        self._name = name
        self._cube = cube
        data = Path(cube.deploy_path) / "data"
        # A path that exists here proves nothing: another machine may be set up the same way.
        self._data = data if is_loopback(cube.host) and data.is_dir() else None
        self._fetched = data.parent / "cube_data" / str(shard)

    def keep_pointer(self, number: str) -> str:
        """Make a restart load a version; returns a warning, or nothing. By rename: the restart may be now."""
        if self._data is None:
            return (
                f"{self._name}: its agent deletes {self._cube.deploy_path}/data/VERSION, and a restarted server then "
                f"serves the newest files without a version; write {number} into that file on {self._cube.host}"
            )
        if not (self._data / number / "index.n").exists():
            return f"{self._name}: the files of {number} are gone from its disk; a restart would load others"
        pointer = self._data / "VERSION"
        unfinished = self._data / f".VERSION.{os.getpid()}"
        try:
            if not pointer.is_file() or pointer.read_text(errors="replace") != f"{number}\n":
                unfinished.write_text(f"{number}\n")
                unfinished.replace(pointer)
        except OSError as error:
            return f"{self._name}: cannot write {pointer}: {error.strerror}; a restart would load an unnamed version"
        return ""

    def forget(self, number: str) -> None:
        """Remove a version's files."""
        if self._data is not None:
            for directory in (self._data / number, self._fetched / number):
                shutil.rmtree(directory, ignore_errors=True)
