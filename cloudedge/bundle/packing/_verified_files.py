"""Files that were hashed before they are loaded, and are known not to have changed while they were.

Paddle and the memory map read a file by its name, so the bytes they get cannot be hashed on the way, and a copy of them
would cost as much memory or disk as the model. Instead the file is hashed first and its state compared afterwards:
device, inode, size, and the times of its last write and its last change. The kernel keeps the latter; no call sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cloudedge.errors import IntegrityError
from cloudedge.hub import Digest, Progress, hash_file, hash_files

__all__ = ["VerifiedFiles"]

Stamp = tuple[int, int, int, int, int]


class VerifiedFiles:
    """Files whose bytes had the given digests when this was made.

    Args:
        files: The digest of each file.
        what: The bundle, for error messages.
        progress: Called with the number of bytes as they are hashed.

    Raises:
        IntegrityError: a file is damaged; names all of them.
    """

    def __init__(self, files: Mapping[Path, Digest], what: str, progress: Progress = lambda _: None) -> None:
        self._files = files
        self._what = what
        self._stamps = {path: _stamp(path) for path in files}  # before they are read
        hashes = hash_files(list(files), progress=progress)
        damaged = [path for path, hashed in zip(files, hashes, strict=True) if hashed.digest != files[path]]
        if damaged:
            raise self._damaged(damaged, "is not what its digest says")

    def require_unchanged(self) -> None:
        """Check that nothing was written to the files since they were hashed.

        A new name for the same file changes its last time too; such a file is hashed again.

        Raises:
            IntegrityError: a file was written to, replaced or removed.
        """
        for path, before in self._stamps.items():
            try:
                now = _stamp(path)
                if now == before:
                    continue
                is_same = now[:-1] == before[:-1] and hash_file(path).digest == self._files[path]
            except OSError:
                is_same = False
            if not is_same:
                raise self._damaged([path], "was changed while it was in use")
            self._stamps[path] = now

    def _damaged(self, paths: list[Path], how: str) -> IntegrityError:
        return IntegrityError(
            f"{self._what}: {', '.join(str(path) for path in paths)} {how}",
            hint="Pull the bundle again from a hub where it verifies, or run `cloudedge resume` on its target.",
            damaged=[self._files[path] for path in paths],
        )


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
