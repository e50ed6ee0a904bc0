"""The workspace of a build: a hidden directory beside the output, published whole.

The workspace ``.<version>.building-<random>`` is locked while its build lives. A workspace whose lock is free belongs
to a build that was killed; the next build removes it. The version's directory is moved into place last, in one rename:
it is there if and only if the build is complete.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import final

from cloudedge.cube.formats._build_layout import META_DIRECTORY, BuildName
from cloudedge.errors import Conflict
from cloudedge.io import FileLock, LockHeld, sync_directory, write_synced

__all__ = ["Workspace"]

_MARK = ".building-"


def _alone_in(output: Path) -> FileLock:
    """Keep other builds into the same output from starting or publishing meanwhile; takes milliseconds."""
    return FileLock.take(output, folder=True, wait_s=None)


@final
class Workspace:
    """The workspace of one build; a context that leaves nothing behind unless `publish` was called.

    Attributes:
        version: The directory that becomes the version's.
        meta: The directory for its meta files.
    """

    def __init__(self, output: Path, name: BuildName) -> None:
        """Make a workspace and remove those of killed builds.

        Args:
            output: The existing directory of all versions.
            name: The build's name.
        """
        self._output = output
        self._name = name
        self._root = output / f".{name.directory}{_MARK}{secrets.token_hex(4)}"
        self.version = self._root / "version"
        self.meta = self._root / META_DIRECTORY
        with _alone_in(output):
            for abandoned in output.glob(f".*{_MARK}*"):
                _remove_abandoned(abandoned, output)
            self._root.mkdir()
            self._lock = FileLock.take(self._root, folder=True, wait_s=None)
        self.version.mkdir()
        self.meta.mkdir()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        self._lock.release()

    def publish(self) -> Path:
        """Move all files to their final places.

        Raises:
            Conflict: another build of this version was published meanwhile.
        """
        final = self._output / self._name.directory
        with _alone_in(self._output):
            if final.exists():
                raise Conflict(f"another build published {final} meanwhile", path=str(final))
            sync_directory(self.version)
            meta = self._output / META_DIRECTORY
            meta.mkdir(exist_ok=True)
            # Copies: if the build is killed from here on, the copies can be distinguished from the originals.
            for path in sorted(self.meta.iterdir()):
                unfinished = meta / f".{path.name}"
                unfinished.unlink(missing_ok=True)
                write_synced(unfinished, path.read_bytes())
                unfinished.replace(meta / path.name)  # one sync of the directory serves all of them
            sync_directory(meta)
            self.version.rename(final)
            sync_directory(self._output)
        return final


def _remove_abandoned(root: Path, output: Path) -> None:
    try:
        with FileLock.take(root, folder=True):
            if (root / "version").exists():  # killed before its directory was moved: its meta files describe no version
                for path in (root / META_DIRECTORY).glob("*.json"):
                    (output / META_DIRECTORY / path.name).unlink(missing_ok=True)
            shutil.rmtree(root)
    except (LockHeld, FileNotFoundError):
        pass  # its build lives, or another build removed it
