"""A web server's files; directories are read from the listings of nginx, Apache, Python's http.server and others.

A directory is always asked for with a slash at its end: without it some servers answer with the listing itself, which
then looks like one more file. Links out of the directory, up, to other hosts and to other orders of the same listing
are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

from cloudedge.clock import Clock
from cloudedge.cube.server import fetch, plain_url
from cloudedge.cube.upstream.sources._remote_files import ListedFiles, RemoteFile, bounded
from cloudedge.errors import InputError, NotFound, Rejected, Unavailable
from cloudedge.io import parse_length

if TYPE_CHECKING:
    import requests

__all__ = ["HttpFiles", "links"]

_TIMEOUT_S = (5.0, 30.0)
_DEEPEST = 32
_INDEX = {"index.html", "index.htm"}
_GONE = {404, 410}


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def links(page: str, url: str) -> list[str]:
    """Return the names in a directory's listing at `url`, those of directories with a slash."""
    parser = _Links()
    parser.feed(page)
    names: list[str] = []
    for href in parser.found:
        parts = urlsplit(urljoin(url, href))
        base = urlsplit(url)
        if parts.query or parts.netloc != base.netloc or not parts.path.startswith(base.path):
            continue
        name = unquote(parts.path[len(base.path) :])
        if name and "/" not in name.rstrip("/") and name not in {"./", "../", *names}:
            names.append(name)
    return names


class HttpFiles(ListedFiles):
    """One web server: ``http://host:port``."""

    def __init__(self, root: str, clock: Clock | None = None) -> None:
        import requests  # noqa: PLC0415 - slow to import

        super().__init__(clock)
        self._root = root
        self._session = requests.Session()
        self._errors = requests.RequestException

    def address(self, path: str) -> str:
        """Return the URL, without a password that may be in it."""
        return plain_url(self._url(path))

    def version(self, path: str) -> str | None:
        """Return the file's ETag, or its time."""
        answer = self._ask("HEAD", path)
        if answer is None:
            return None
        return answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""

    def read(self, path: str) -> bytes:
        """Read a file."""
        answer = self._ask("GET", path)
        if answer is None:
            raise NotFound(f"{self.address(path)} is not there", path=path)
        return self._content(answer, path)

    def walk(self, path: str) -> Iterator[RemoteFile]:
        """Follow the listings below a directory; a path that is a file is that file."""
        page = self._listing(path.rstrip("/") + "/")
        if page is not None:
            yield from self._below(path.rstrip("/") + "/", page, "", 0)
            return
        answer = self._ask("HEAD", path)
        if answer is None:
            raise NotFound(
                f"{self.address(path)} is not there",
                hint="The donefile's 'input' is put behind the server's name: check both.",
            )
        yield RemoteFile(path.rpartition("/")[2], path, *self._about(answer))

    def _below(self, directory: str, page: str, prefix: str, depth: int) -> Iterator[RemoteFile]:
        if depth == _DEEPEST:
            raise InputError(f"{self.address(directory)} is the {_DEEPEST}th directory inside another one")
        for name in links(page, self._url(directory)):
            if name.endswith("/"):
                inner = self._listing(directory + name)
                if inner is not None:
                    yield from self._below(directory + name, inner, prefix + name, depth + 1)
            elif name not in _INDEX:
                answer = self._ask("HEAD", directory + name)
                if answer is not None and "html" not in answer.headers.get("Content-Type", ""):
                    yield RemoteFile(prefix + name, directory + name, *self._about(answer))

    def fetch(self, file: RemoteFile, target: Path, deadline: float) -> None:
        """Bring a file here, continuing a broken download."""
        fetch(self._url(file.key), target, sha256=None, size=file.size, deadline=deadline, clock=self._clock)

    def _listing(self, directory: str) -> str | None:
        answer = self._ask("GET", directory)
        if answer is None or "html" not in answer.headers.get("Content-Type", ""):
            return None
        return self._content(answer, directory).decode(answer.encoding or "utf-8", errors="replace")

    @staticmethod
    def _about(answer: requests.Response) -> tuple[int | None, str]:
        length = answer.headers.get("Content-Length", "")
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        return parse_length(length), version

    def _url(self, path: str) -> str:
        return f"{self._root}{quote(path if path.startswith('/') else f'/{path}')}"

    def _content(self, answer: requests.Response, path: str) -> bytes:
        content = b""
        try:
            for chunk in answer.iter_content(1 << 16):
                content = bounded(content + chunk, self.address(path))
        except self._errors as error:
            raise self._away(path, type(error).__name__) from error
        finally:
            answer.close()
        return content

    def _ask(self, method: str, path: str) -> requests.Response | None:
        """Request a path; None if there is nothing."""
        headers = {"Accept-Encoding": "identity"}
        try:
            answer = self._session.request(
                method, self._url(path), headers=headers, timeout=_TIMEOUT_S, stream=True, allow_redirects=True
            )
        except self._errors as error:
            raise self._away(path, type(error).__name__) from error
        status = answer.status_code
        if status in _GONE:
            answer.close()
            return None
        if status >= 500:  # noqa: PLR2004 - the server's own trouble
            answer.close()
            raise self._away(path, f"HTTP {status}")
        if not answer.ok:
            answer.close()
            raise Rejected(
                f"{self.address(path)} answered HTTP {status}", hint="Check the address and its permissions."
            )
        return answer

    def _away(self, path: str, why: str) -> Unavailable:
        return Unavailable(
            f"{self.address(path)} cannot be read: {why}", hint="Check that the server runs; it is asked again later."
        )
