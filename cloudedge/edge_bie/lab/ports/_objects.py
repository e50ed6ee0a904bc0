"""The objects port: serves a folder of files, with ranges, and counts the bytes that each client fetched."""

from __future__ import annotations

import re
from email.utils import formatdate
from pathlib import Path

from cloudedge.edge_bie.lab.ports._faults import Chance
from cloudedge.edge_bie.lab.ports._requests import JSON, Request
from cloudedge.http1 import FileAnswer, FilePart, HttpAnswer

__all__ = ["ObjectFiles"]

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class ObjectFiles:
    """Serves files below a folder.

    The header ``common-name``, which nodes send to the sync port, identifies a client; else its address does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chance: Chance | None = None
        self.by_client: dict[str, int] = {}
        self.by_object: dict[str, int] = {}
        self.requests: dict[str, int] = {}

    def __call__(self, request: Request) -> HttpAnswer:
        """Answer one request."""
        if request.method not in {"GET", "HEAD"}:
            return HttpAnswer(405, b"", JSON, {"Allow": "GET, HEAD"})
        found = self._find(request.path)
        if found is None:
            return HttpAnswer(404, b"not here\n", "text/plain")
        stat = found.stat()
        tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
        headers = {
            "Accept-Ranges": "bytes",
            "ETag": tag,
            "Last-Modified": formatdate(stat.st_mtime, usegmt=True),
        }
        start, length = 0, stat.st_size
        wanted = request.headers.get("range", "")
        if wanted and request.headers.get("if-range", tag) in {tag, headers["Last-Modified"]}:
            span = _span(wanted, stat.st_size)
            if span is None:
                return HttpAnswer(416, b"", JSON, {**headers, "Content-Range": f"bytes */{stat.st_size}"})
            start, length = span
            headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{stat.st_size}"
        client = request.headers.get("common-name", "").partition(".")[2] or request.peer
        key = request.path.lstrip("/")
        if request.method == "GET":
            self.requests[client] = self.requests.get(client, 0) + 1

        def sent(count: int) -> None:
            self.by_client[client] = self.by_client.get(client, 0) + count
            self.by_object[key] = self.by_object.get(key, 0) + count

        cut = self.chance.cut_at(length) if self.chance and length and self.chance.happens("cut") else None
        status = 206 if "Content-Range" in headers else 200
        part = FilePart(found, start, length, cut, sent)
        return FileAnswer(status, b"", "application/octet-stream", headers, part=part)

    def _find(self, path: str) -> Path | None:
        """Return the file of a path, if it is one and below the folder."""
        try:
            found = (self.folder / path.lstrip("/")).resolve()
            return found if found.is_relative_to(self.folder.resolve()) and found.is_file() else None
        except (OSError, ValueError):
            return None

    def reset(self) -> None:
        """Reset the counts."""
        for counts in (self.by_client, self.by_object, self.requests):
            counts.clear()


def _span(wanted: str, size: int) -> tuple[int, int] | None:
    """Return the offset and length of a single range; None if it is empty."""
    match = _RANGE.fullmatch(wanted.strip())
    if match is None or not any(match.groups()):
        return 0, size  # an unsupported range is answered with the whole file
    first, last = match.groups()
    if not first:
        length = min(int(last), size)
        return (size - length, length) if length else None
    start = int(first)
    end = min(int(last), size - 1) if last else size - 1
    return (start, end - start + 1) if start < size and start <= end else None
