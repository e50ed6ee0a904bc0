"""`UpstreamServer`: cube-server's port, with seeks, control commands and two slots.

Its faults are kept: `status` answers with freed memory, ``reload_*`` answer 200 when the load failed, a server without
data answers "not found", pins are not understood, and a restart without ``data/VERSION`` serves the contents of
``data`` under an empty name.
"""

from __future__ import annotations

import base64
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from cloudedge.testing.upstream_cube._dict import Dict, LoadFailed, load_base, load_patch
from cloudedge.testing.upstream_cube._listener import Listener
from cloudedge.testing.upstream_cube._wire import seek_message, write_seek

__all__ = ["UpstreamServer"]

_NOT_FOUND = 4294967295
_COMMANDS = ("bg_load_base", "bg_load_patch", "reload_base", "reload_patch", "enable", "bg_switch", "bg_unload")
_Reply = tuple[int, bytes]


class UpstreamServer:
    """One shard's server in a working directory, ``deploy_path``.

    Args:
        deploy_path: The directory with ``data``; made if it is absent.
        port: 0 takes any free one; a restart keeps it.
        generation: "A" up to v0.6.3, "B" from v0.7.0 on; they differ in how they load patches.
        load_s: The least time of a load.
        garbled_status: Whether `status` answers with freed memory; a compiler that is kind would not.
        seed: Of that memory's content.
    """

    def __init__(
        self,
        deploy_path: Path,
        *,
        port: int = 0,
        generation: str = "B",
        load_s: float = 0.0,
        garbled_status: bool = True,
        seed: int = 0,
    ) -> None:
        self.deploy_path = Path(deploy_path)
        self.generation = generation
        self.load_s = load_s
        self.garbled_status = garbled_status
        self.refuse: Counter[str] = Counter()
        """By kind of command: the number of next ones that are refused with 500."""
        self.commands: list[dict[str, Any]] = []
        """The control commands in the order of arrival, without ``status``."""
        self._random = random.Random(seed)  # noqa: S311 - seeded on purpose
        self._busy = threading.Lock()
        self._counting = threading.Lock()
        self._counts = dict.fromkeys(("request_num", "total_key_num", "unfound_key_num", "long_value_num"), 0)
        self._loading = False
        self._port = port
        self._current: Dict | None = None
        self._background: Dict | None = None
        self._listener: Listener | None = None
        (self.deploy_path / "data").mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start as the process does: load the version that ``data/VERSION`` names, or else ``data`` without a name."""
        data = self.deploy_path / "data"
        pointer = data / "VERSION"
        version = pointer.read_text().split("\n")[0] if pointer.exists() else ""
        self._background = None
        try:
            self._current = load_base(data / version, version)
        except LoadFailed:
            self._current = None
        self._listener = Listener(self._port, self)
        self._port = self._listener.server_address[1]

    def kill(self) -> None:
        """End like a killed process: connections break, memory is gone, the disk stays."""
        if self._listener is not None:
            self._listener.end()
            self._listener = None
        self._current = self._background = None

    def restart(self) -> None:
        """Kill and start again on the same port."""
        self.kill()
        self.start()

    @property
    def port(self) -> int:
        """The port for everything."""
        return self._port

    @property
    def version(self) -> str:
        """The name of the version that answers; empty without one."""
        current = self._current
        return current.version if current else ""

    @property
    def background(self) -> str | None:
        """The version in the other slot."""
        background = self._background
        return background.version if background else None

    def close(self) -> None:
        """Stop."""
        self.kill()

    def __enter__(self) -> UpstreamServer:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def seek(self, keys: list[int]) -> tuple[list[bytes | None], str]:
        """Look keys up in the current version."""
        current = self._current
        values = [current.find(key) if current else None for key in keys]
        missing = {key for key, value in zip(keys, values, strict=True) if value is None}
        too_long = {key for key in missing if current and key in current.table}
        with self._counting:
            self._counts["request_num"] += 1
            self._counts["total_key_num"] += len(keys)
            self._counts["unfound_key_num"] += sum(key in missing - too_long for key in keys)
            self._counts["long_value_num"] += sum(key in too_long for key in keys)
        return values, current.version if current else ""

    def counts(self, name: str) -> int:
        """Return one of the counters that it shows under ``/vars``."""
        return self._counts[name]

    def http(self, method: str, path: str, content_type: str, body: bytes) -> _Reply:
        """Answer one HTTP request."""
        if path in {"/ControlService/cmd", "/rec.mcube.ControlService/cmd"}:
            return self._control(body)
        if path in {"/DictService/seek", "/rec.mcube.DictService/seek"}:
            return self._seek_http(method, content_type, body)
        pages = {"/health": b"OK", "/version": b"Cube Service", "/vars": self._vars()}
        return (200, pages[path]) if path in pages else (404, b"")

    def _vars(self) -> bytes:
        data = sum(len(block or b"") for block in self._current.blocks) >> 20 if self._current else 0
        return "".join(f"{name} : {value}\n" for name, value in (*self._counts.items(), ("data_size", data))).encode()

    def _seek_http(self, method: str, content_type: str, body: bytes) -> _Reply:
        if content_type in {"application/proto", "application/x-protobuf"}:
            wanted = seek_message(body)
            values, version = self.seek(wanted.keys)
            return 200, write_seek(values, version if wanted.wants_version else None)
        try:
            asked = json.loads(body or b"{}") if method == "POST" else {}
            keys = [int(key) for key in asked.get("keys", [])]
        except (ValueError, AttributeError, TypeError):
            return 400, b"Fail to parse http body as json"
        values, version = self.seek(keys)
        answer: dict[str, Any] = {}
        if values:
            answer["values"] = [
                {"status": _NOT_FOUND if v is None else 0, "value": base64.b64encode(v or b"").decode()} for v in values
            ]
        if asked.get("version_required"):
            answer["version"] = version
        return 200, json.dumps(answer, separators=(",", ":")).encode()

    def _control(self, body: bytes) -> _Reply:
        try:
            asked = json.loads(body)
        except ValueError:
            return 400, b""
        if not isinstance(asked, dict) or not isinstance(asked.get("cmd"), str):
            return 400, b""
        command = asked["cmd"]
        if command == "status":
            return 200, self._status()
        self.commands.append(asked)
        if command not in _COMMANDS or not self._busy.acquire(blocking=False):
            return 500, b"null"
        try:
            done = self._do(command, asked)
        finally:
            self._busy.release()
        return 200 if done else 500, b"null"

    def _status(self) -> bytes:
        def shown(version: str) -> bytes:
            if not self.garbled_status:
                return version.encode()
            # Freed memory holds other data by now: fragments of either version, or no text at all.
            pool = (self.version + (self.background or "")).encode() + b"\x01\x02\x1f\xf8\x7f"
            return bytes(self._random.choice(pool) for _ in range(len(version) or 3))

        lines = [
            b'   "bg_version" : "' + shown(self.background or "") + b'",',
            b'   "cur_version" : "' + shown(self.version) + b'",',
            b'   "status" : ' + (b"1" if self._loading else b"0"),
        ]
        return b"{\n" + b"\n".join(lines) + b"\n}\n"

    def _do(self, command: str, asked: dict[str, Any]) -> bool:
        if self.refuse[command] > 0:
            self.refuse[command] -= 1
            return False
        match command:
            case "bg_load_base" | "bg_load_patch":
                return self._load(command, str(asked.get("version_path", "")))
            case "reload_base" | "reload_patch":
                if self._load(command.replace("reload", "bg_load"), str(asked.get("version_path", ""))):
                    self._switch()
                    self._background = None
                return True
            case "enable":
                wanted = asked.get("version")
                return self.version == wanted or (self.background == wanted and self._switch())
            case "bg_switch":
                return self._switch()
            case _:
                self._background = None
                return True

    def _switch(self) -> bool:
        if self._background is None:
            return False
        self._current, self._background = self._background, self._current
        return True

    def _load(self, command: str, path: str) -> bool:
        self._background = None
        self._loading = True
        try:
            time.sleep(self.load_s)
            # As text: without its slash the path names something beside the data directory.
            directory, version = Path(f"{self.deploy_path / 'data'}{path}"), path.removeprefix("/")
            if command == "bg_load_base":
                self._background = load_base(directory, version)
                return True
            if self._current is None:
                if self.generation == "B":
                    threading.Thread(target=self.kill, daemon=True).start()  # it follows a null pointer
                return False
            self._background = load_patch(self._current, directory, version, generation=self.generation)
        except LoadFailed:
            return False
        finally:
            self._loading = False
        return True
