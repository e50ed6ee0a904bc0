"""Calls to upstream's cube-agent and cube-server, and the reading of their answers.

The agent's ``success`` counts only for downloads: for ``enable`` it is always "0". The server's ``status`` answers with
freed memory, so only its loading flag is read; a seek finds out which version answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudedge.cube.client import Client, ClientConfig
from cloudedge.cube.formats import CubeAddress, Endpoint
from cloudedge.errors import Rejected, Unavailable
from cloudedge.io import join_address, read_body

__all__ = ["AgentAnswer", "UpstreamCalls"]

_LOADING = re.compile(rb'"status"\s*:\s*1\b')
_COUNTER = re.compile(r"^(\w+)\s*:\s*([0-9]{1,19})\s*$", re.MULTILINE)
_CONNECT_S = 5.0
_SHORTEST_S = 0.05
_OK = 200
_MAX_ANSWER = 1 << 20


@dataclass(frozen=True)
class AgentAnswer:
    """An agent's answer to a command."""

    ok: bool
    message: str


class UpstreamCalls:
    """Calls one agent and its server.

    Args:
        name: The replica's name, for messages.
        agent: The agent's address.
        cube: The server's address.
        call_s: The longest time of an ordinary answer.
    """

    def __init__(self, name: str, agent: Endpoint, cube: CubeAddress, *, call_s: float) -> None:
        self.name = name
        self._agent = join_address(*agent)
        self._cube = join_address(cube.host, cube.port)
        self._call_s = call_s
        # One replica and no pin: the answer's version is that of the server.
        self._client = Client(
            ClientConfig([[self._cube]], timeout_ms=max(1, int(call_s * 1000)), connect_timeout_ms=2000)
        )

    def close(self) -> None:
        """Close the connections that are kept."""
        self._client.close()

    def agent(self, work: dict[str, Any], *, within_s: float) -> AgentAnswer:
        """Send the agent a command and wait until it is done.

        Raises:
            Unavailable: the agent did not answer in time, or not as an agent does.
        """
        # `json=` says application/json; with any form type the agent finds an empty body.
        status, content = self._post(f"http://{self._agent}/agent/cmd", work, within_s)
        with self._read_as("cube-agent", self._agent, status):
            answer = json.loads(content)
            return AgentAnswer(answer["success"] == "0", str(answer["message"])[:500])

    def control(self, body: dict[str, Any], *, within_s: float | None = None) -> bool:
        """Send the server a control command; returns whether it succeeded.

        Raises:
            Unavailable: it did not answer in time.
            Rejected: it accepts no control commands from here.
        """
        status, _ = self._post(f"http://{self._cube}/ControlService/cmd", body, within_s or self._call_s)
        if status == 403:  # noqa: PLR2004 - cloudedge's own server, for control from elsewhere
            raise Rejected(
                f"{self.name}: {self._cube} takes no control commands from this machine",
                hint="Send them through its agent, or start the server with `--remote-control`.",
                replica=self.name,
            )
        return status == _OK

    def is_loading(self) -> bool:
        """Tell whether a load is under way."""
        _, content = self._post(f"http://{self._cube}/ControlService/cmd", {"cmd": "status"}, self._call_s)
        return bool(_LOADING.search(content))

    def version(self) -> str:
        """Return the version string that answers; asks without a key, which would count among those not found.

        Raises:
            Unavailable: there is no answer, or none that a cube-server gives.
        """
        status, content = self._post(f"http://{self._cube}/DictService/seek", {"version_required": True}, self._call_s)
        with self._read_as("cube-server", self._cube, status):
            return str(json.loads(content)["version"])

    def seek(self, keys: Sequence[int]) -> tuple[list[bytes | None], str]:
        """Read keys from the version that answers, whichever that is, and return its version string.

        Raises:
            ShardUnavailable: no answer.
        """
        if not keys:  # no server would be asked
            return [], self.version()
        result = self._client.seek(np.array(keys, np.uint64), dtype=np.uint8)
        rows = [row.tobytes() if found else None for row, found in zip(result.values, result.found, strict=True)]
        return rows, result.version or ""

    def counters(self) -> dict[str, int]:
        """Return the server's counters; empty if it has none."""
        import requests  # noqa: PLC0415 - slow to import

        try:
            with requests.get(f"http://{self._cube}/vars", timeout=(_CONNECT_S, self._call_s), stream=True) as answer:
                page = read_body(answer, _MAX_ANSWER).decode(errors="replace")
        except requests.RequestException:
            return {}
        return {name: int(value) for name, value in _COUNTER.findall(page)}

    @contextmanager
    def _read_as(self, what: str, address: str, status: int) -> Iterator[None]:
        """Name the server in the error for an answer that cannot be read."""
        try:
            yield
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unavailable(
                f"{self.name}: {address} does not answer like a {what} (HTTP {status})",
                hint="Check that address in transfer.conf, or in cloudedge.yaml.",
                replica=self.name,
            ) from error

    def _post(self, url: str, body: dict[str, Any], within_s: float) -> tuple[int, bytes]:
        import requests  # noqa: PLC0415 - slow to import

        try:
            with requests.post(url, json=body, timeout=(_CONNECT_S, max(_SHORTEST_S, within_s)), stream=True) as answer:
                return answer.status_code, read_body(answer, _MAX_ANSWER)
        except requests.RequestException as error:
            asked = json.dumps(body.get("command") or body.get("cmd") or "seek")
            raise Unavailable(
                f"{self.name}: {url} did not answer {asked}: {type(error).__name__}",
                hint="Check that it runs and can be reached from here, then run the same command again.",
                replica=self.name,
            ) from error
