"""`UpstreamAgent`: cube-agent's HTTP API, with the original's changes to the disk and the server, in the same order.

Its faults are kept: a corrupt download stays for ever because retries are saved beside it, the clean-up removes the
``data/VERSION`` that was just written and the version that is being served, ``enable`` succeeds whatever the
server answered, and two tables can collide because names are joined without a separator.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import requests

__all__ = ["UpstreamAgent"]

_DAY_S = 86400


class _Failed(Exception):
    """The original's "Do work failed."."""


class UpstreamAgent:
    """An agent for the servers of this machine.

    Args:
        port: 0 takes any free one.
        time_scale: Seconds here for one of the original's: it waits 2 before a download and 10 between attempts.
    """

    def __init__(self, *, port: int = 0, time_scale: float = 0.001) -> None:
        self.time_scale = time_scale
        self.corrupt_downloads = 0
        """The number of next downloads that arrive damaged."""
        self.works: list[dict[str, Any]] = []
        """The commands in the order of arrival, with refused ones."""
        self._working: set[str] = set()
        self._lock = threading.Lock()
        self._port = port
        self._life: _Http | None = None
        self._doing = threading.local()
        self.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    def start(self) -> None:
        """Listen; after `kill`, on the same port and without memory of earlier work."""
        self._working = set()
        self._life = _Http(self._port, self)
        self._port = int(self._life.server_address[1])
        self._thread = threading.Thread(target=self._life.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End like a killed process: no client gets an answer, and work under way ends at its next wait."""
        life, self._life = self._life, None
        if life is not None:
            life.shutdown()
            life.server_close()
            self._thread.join()

    def close(self) -> None:
        """Stop listening."""
        self.kill()

    def is_life(self, http: object) -> bool:
        """Tell whether a listener belongs to the process that runs now."""
        return http is self._life

    def __enter__(self) -> UpstreamAgent:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def answer(self, method: str, path: str, content_type: str, body: bytes) -> dict[str, Any]:
        """Answer one HTTP request; the status is always 200."""
        if (method, path) == ("GET", "/agent/status"):
            return _envelope("0", "query ok", {"status": "RUNNING", "version": "3.0.0.1"})
        if (method, path) != ("POST", "/agent/cmd"):
            return _envelope("2", "wrong api")
        if content_type.startswith("application/x-www-form-urlencoded"):
            body = b""  # its web framework has taken the body for a form
        try:
            work = json.loads(body)
            self._do_work(work)
        except (ValueError, KeyError, TypeError, _Failed) as error:
            return _envelope("255", f"Do work failed.%!(EXTRA *errors.errorString={error})")
        return _envelope("0", "query ok")

    def _do_work(self, work: dict[str, Any]) -> None:
        self.works.append(work)
        self._doing.life = self._life
        doing = {"download": self._download, "reload": self._reload, "enable": self._enable}.get(work["command"])
        if doing is None or not work["version"] or not work["depend"]:
            raise _Failed("unknown command.")
        # Plain concatenation: table d1 shard 2 and table d shard 12 are one work.
        key = f"{work['dict_name']}{work['shard_seq']}{work.get('service', '')}"
        with self._lock:
            if key in self._working:
                raise _Failed("another work is doing.")
            self._working.add(key)
        try:
            doing(work)
        finally:
            with self._lock:
                self._working.discard(key)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds * self.time_scale)
        if not self.is_life(self._doing.life):
            raise _Failed("killed.")

    # download ---------------------------------------------------------------------------------------------------

    def _download(self, work: dict[str, Any]) -> None:
        verdir, deploy = _version_directory(work), Path(work["deploy_path"])
        shard = deploy / "cube_data" / str(work["shard_seq"])
        place = shard / verdir
        place.mkdir(parents=True, exist_ok=True)
        tar = place / urlsplit(work["source"]).path.rpartition("/")[2]
        if not (place / ".download_done").exists():
            self._fetch(work["source"], tar)
            (place / ".download_done").touch()
        try:
            with tarfile.open(tar) as packed:
                packed.extractall(place, filter="data")
        except (OSError, tarfile.TarError) as error:
            raise _Failed("untar failed.") from error
        self._link(place, deploy / "data", verdir, base=work["mode"] == "base")
        for name in ("VERSION", f"VERSION-{work['dict_name']}"):
            (deploy / "cube_data" / name).write_text(f"{verdir}\n")
        (deploy / "data" / "VERSION").write_text(f"{verdir}\n")
        for directory, oldest_s in ((shard, _DAY_S), (deploy / "data", 5 * _DAY_S)):
            _clean_up(directory, work["depend"], oldest_s)

    def _fetch(self, url: str, tar: Path) -> None:
        self._sleep(2)
        for _ in range(3):
            if self._wget(url, tar) and self._wget(f"{url}.md5", tar.with_name(f"{tar.name}.md5")):
                # Always the first file, although a retry has saved its own as .1, .2, ...
                wanted = tar.with_name(f"{tar.name}.md5").read_text().split()[:1]
                if [hashlib.md5(tar.read_bytes(), usedforsecurity=False).hexdigest()] == wanted:
                    return
        raise _Failed("download failed.")

    def _wget(self, url: str, target: Path) -> bool:
        for _ in range(3):
            with contextlib.suppress(requests.RequestException), requests.get(url, timeout=60) as answer:
                if answer.ok:
                    content = answer.content
                    if self.corrupt_downloads and not url.endswith(".md5"):
                        self.corrupt_downloads -= 1
                        content = bytes([content[0] ^ 1]) + content[1:]
                    next(_numbered(target)).write_bytes(content)
                    return True
            self._sleep(10)
        return False

    @staticmethod
    def _link(place: Path, data: Path, verdir: str, *, base: bool) -> None:
        data.mkdir(exist_ok=True)
        links = [path for path in data.iterdir() if path.is_symlink()]
        for link in links if base else ():
            link.unlink()
        for path in place.iterdir():
            if path.name.startswith(("index.", "data.")):
                (data / path.name).unlink(missing_ok=True)
                (data / path.name).symlink_to(path.absolute())
        (data / verdir).mkdir(exist_ok=True)
        for link in [path for path in data.iterdir() if path.is_symlink()]:
            copy = data / verdir / link.name
            copy.unlink(missing_ok=True)
            copy.symlink_to(link.readlink())

    # reload and enable ------------------------------------------------------------------------------------------

    def _reload(self, work: dict[str, Any]) -> None:
        verdir = _version_directory(work)
        status = self._control(work, {"cmd": "status"})
        with contextlib.suppress(ValueError):
            found = json.loads(status.content)
            if verdir in {found.get("cur_version"), found.get("bg_version")}:
                return
        command = "bg_load_base" if work["mode"] == "base" else "bg_load_patch"
        if not self._three_times(work, {"cmd": command, "version_path": f"/{verdir}"}):
            raise _Failed("reload failed.")

    def _enable(self, work: dict[str, Any]) -> None:
        self._three_times(work, {"cmd": "enable", "version": _version_directory(work)})
        with contextlib.suppress(requests.RequestException):
            self._control(work, {"cmd": "bg_unload"})

    def _three_times(self, work: dict[str, Any], body: dict[str, str]) -> bool:
        for _ in range(3):
            with contextlib.suppress(requests.RequestException):
                if self._control(work, body).status_code == 200:  # noqa: PLR2004 - only this counts
                    return True
            self._sleep(10)
        return False

    @staticmethod
    def _control(work: dict[str, Any], body: dict[str, str]) -> requests.Response:
        return requests.post(f"http://127.0.0.1:{work['port']}/ControlService/cmd", json=body, timeout=60)


def _envelope(success: str, message: str, data: Any = "") -> dict[str, Any]:
    return {"success": success, "message": message, "data": data}


def _version_directory(work: dict[str, Any]) -> str:
    depend, version = work["depend"], work["version"]
    return str(depend) if version == depend else f"{depend}_{version}"


def _numbered(target: Path) -> Iterator[Path]:
    """Return a free name for a download as wget chooses it: .1, .2, ..."""
    if not target.exists():
        yield target
    number = 1
    while target.with_name(f"{target.name}.{number}").exists():
        number += 1
    yield target.with_name(f"{target.name}.{number}")


def _clean_up(directory: Path, depend: str, oldest_s: float) -> None:
    """Delete, by prefix, the entries whose line in a listing lacks the version; else old ones."""
    listing = {
        path: f"{path.name} -> {path.readlink()}" if path.is_symlink() else path.name for path in _entries(directory)
    }
    doomed = [path for path, line in listing.items() if depend not in line]
    if not doomed:
        doomed = [path for path in listing if path.is_dir() and time.time() - path.lstat().st_mtime > oldest_s]
    for path in doomed:
        for same_beginning in directory.glob(f"{path.name}*"):
            if same_beginning.is_dir() and not same_beginning.is_symlink():
                shutil.rmtree(same_beginning)
            else:
                same_beginning.unlink()


def _entries(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, agent: UpstreamAgent) -> None:
        self.agent = agent
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: clients come and go."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _do(self) -> None:
        if not self.server.agent.is_life(self.server):  # a connection from before it was killed
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        content_type = self.headers.get("Content-Type", "application/x-www-form-urlencoded")
        answer = self.server.agent.answer(self.command, urlsplit(self.path).path, content_type, body)
        if not self.server.agent.is_life(self.server):
            self.close_connection = True
            return
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _do  # noqa: N815 - the names BaseHTTPRequestHandler calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Log nothing."""
