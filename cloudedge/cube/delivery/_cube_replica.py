"""A server of ours as a replica: its admin API for control, its data port for probes.

Calls are made once and waits have a deadline; whoever delivers tries again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from cloudedge import errors
from cloudedge.admin import order_header, piece_header
from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.client import Client, ClientConfig
from cloudedge.cube.delivery._replica import Loading, ReplicaStatus, VersionState
from cloudedge.cube.formats import Artifact, ArtifactFile, Source
from cloudedge.cube.server import Throttle
from cloudedge.errors import CloudEdgeError, Conflict, DeadlineExceeded, NotFound, Rejected, StorageError, Unavailable
from cloudedge.io import join_address, parse_address, read_body

if TYPE_CHECKING:
    import requests

__all__ = ["CubeReplica"]

_TIMEOUT_S = 10.0
_MAX_ANSWER = 16 << 20
_POLL_S = (0.002, 0.25)
_PIECE = 4 << 20
_STATES: dict[str, Loading] = {
    "queued": "staging",
    "staging": "staging",
    "partial": "staging",
    "staged": "staged",
    "loading": "loading",
    "loaded": "loaded",
    "failed": "failed",
}
_UNDER_WAY = ("queued", "staging", "loading")


class CubeReplica:
    """One cube server.

    Args:
        table: The table's name.
        shard: The shard it serves.
        replica: What tells it from the shard's other replicas; its data address if left out.
        address: Its data port, ``host:port``.
        admin: Its admin port, ``host:port``.
        token: For the admin API, and for fetching from it; or what returns it, asked each time.
        deadline_s: For fetching and loading one version.
        push: Send it the files through its admin port: for a server that cannot reach who delivers.
        clock: For waits.
    """

    def __init__(
        self,
        table: str,
        shard: int,
        *,
        address: str,
        admin: str,
        replica: str = "",
        token: str | Callable[[], str] = "",
        deadline_s: float = 3600,
        push: bool = False,
        clock: Clock | None = None,
    ) -> None:
        parse_address(address)
        self._admin_host, _ = parse_address(admin)
        self.name = f"{table}/{shard}/{replica or address}"
        self.shard = shard
        self.address = address
        self.admin = admin
        self._given_token = token
        self._deadline_s = deadline_s
        self._push = push
        self._clock = clock or SystemClock()
        self._files_port: int | None = None
        self.limit: Throttle | None = None
        """For what is sent to it; whoever delivers sets it, for all replicas together."""

    def status(self) -> ReplicaStatus:
        """Ask what it has."""
        found = self._ask("GET", "/versions")
        counters = self._ask("GET", "/stats")
        self._files_port = found.get("files_port")
        return ReplicaStatus(
            versions={each["name"]: _version(each) for each in found["versions"]},
            active=found["active"],
            previous=found.get("previous"),
            can_delta=self._files_port is not None,
            free_disk_bytes=found.get("free_disk_bytes"),
            free_memory_bytes=found.get("free_memory_bytes"),
            keys=int(counters.get("keys", 0)),
            misses=int(counters.get("missing_keys", 0)),
        )

    def stage(self, name: str, artifact: Artifact) -> int:
        """Have the server fetch a version's files, or send them; see `Replica`."""
        if (self._find(name) or {}).get("state") == "loaded":
            return 0
        if self._push:
            return self._send(name, artifact)
        body = {
            "name": name,
            "artifact": artifact.as_json(),
            "sources": [{"url": source.url, "token": source.token} for source in artifact.sources],
            "deadline_s": self._deadline_s,
        }
        self._begin("/staged", body, name)
        return int(self._wait(name, "staged").get("shipped_bytes", 0))

    def _send(self, name: str, artifact: Artifact) -> int:
        deadline, sent = self._clock.monotonic() + self._deadline_s, 0
        before: Any = None
        refused: Conflict | None = None
        while True:
            found = self._ask("POST", "/staged", {"name": name, "artifact": artifact.as_json(), "sources": []})
            if found["state"] == "staged":
                return sent
            if found["there"] == before:
                raise refused or Unavailable(f"{self._what}: version {name!r} is not complete although all was sent")
            before, refused = found["there"], None
            for file in artifact.files:
                try:
                    for piece in self._pieces(name, artifact, file, int(found["there"].get(file.name, 0))):
                        sent += piece
                        if self._clock.monotonic() > deadline:
                            raise DeadlineExceeded(
                                f"{self._what}: version {name!r} did not arrive within {self._deadline_s:g} s",
                                hint="Run the same command again: it goes on where it stopped.",
                            )
                except Conflict as error:
                    refused = error  # an answer was lost, and it has more than we know: ask again
                    break

    def _pieces(self, name: str, artifact: Artifact, file: ArtifactFile, there: int) -> Iterator[int]:
        """Send what is missing of a file; yields the size of each piece that arrived."""
        path = f"/staged/{quote(name, safe='')}/{quote(file.name, safe='')}"
        try:
            with (artifact.directory / file.name).open("rb") as content:
                content.seek(there)
                while piece := content.read(_PIECE):
                    if self.limit is not None:
                        self.limit.take(len(piece))
                    self._ask("PUT", path, piece=piece, offset=there)
                    there += len(piece)
                    yield len(piece)
        except OSError as error:
            raise StorageError(f"cannot read {artifact.directory / file.name}: {error.strerror}") from error

    def load(self, name: str, base: str | None = None) -> None:
        """Have the server load what was staged; it finds a delta's base itself, by its rows."""
        if (self._find(name) or {}).get("state") == "loaded":
            return
        self._begin("/versions", {"name": name} | ({} if base is None else {"base": base}), name)
        self._wait(name, "loaded")

    def probe(self, name: str, keys: Sequence[int]) -> list[bytes | None]:
        """Read keys from exactly that version, on the data port."""
        with Client(ClientConfig([[self.address]], timeout_ms=int(_TIMEOUT_S * 1000))) as client:
            found = client.seek(keys, pin=name, dtype=np.uint8)
        return [row.tobytes() if there else None for row, there in zip(found.values, found.found, strict=True)]

    def activate(self, name: str) -> None:
        """Move the server's pointer and see that it moved."""
        self._ask("POST", f"/versions/{quote(name, safe='')}/activate")
        active = self._ask("GET", "/versions")["active"]
        if active != name:
            raise Unavailable(f"{self._what} answers from {active!r} after {name!r} was activated")

    def deactivate(self) -> None:
        """Take the server's pointer away: reads without a pin get nothing, as before the first version."""
        self._ask("DELETE", "/active")

    def unload(self, name: str, *, previous: bool = False) -> None:
        """Let a version go, its files too; with `previous`, also if it is the one that was active before."""
        try:
            self._ask("DELETE", f"/versions/{quote(name, safe='')}", {"previous": True} if previous else None)
        except NotFound:
            return

    def peer(self, name: str) -> Source | None:
        """Return where others may fetch a version that was staged here."""
        if self._files_port is None:
            return None
        return Source(f"http://{join_address(self._admin_host, self._files_port)}/{quote(name)}", self._token)

    def drain(self, within_s: float = 10) -> None:
        """Ask the process to finish what is under way and end."""
        try:
            self._ask("POST", "/drain", {"within_s": within_s})
        except Conflict:
            return  # it is draining already

    @property
    def _token(self) -> str:
        return self._given_token if isinstance(self._given_token, str) else self._given_token()

    @property
    def _what(self) -> str:
        return f"{self.name} (admin API on {self.admin})"

    def _find(self, name: str) -> dict[str, Any] | None:
        try:
            return self._ask("GET", f"/versions/{quote(name, safe='')}")
        except NotFound:
            return None

    def _begin(self, path: str, body: dict[str, Any], name: str) -> None:
        """Ask for something that runs in the background, after what is under way with that version."""
        deadline = self._clock.monotonic() + self._deadline_s
        while True:
            try:
                self._ask("POST", path, body)
            except Conflict:
                # Something is under way there, or just ended: perhaps what an earlier call of ours asked for.
                if (self._find(name) or {}).get("state") == "loaded":
                    return
                if self._clock.monotonic() > deadline:
                    raise
                self._clock.sleep(_POLL_S[1])
            else:
                return

    def _wait(self, name: str, wanted: str) -> dict[str, Any]:
        deadline = self._clock.monotonic() + self._deadline_s
        pause, longest = _POLL_S
        while True:
            found = self._find(name) or {"state": "gone"}
            state = found["state"]
            if state in (wanted, "loaded"):
                return found
            if state == "failed":
                kind = getattr(errors, found.get("kind", ""), CloudEdgeError)
                raise kind(f"{self._what}: {found['error']}", hint=found.get("hint", ""))
            if state not in _UNDER_WAY:
                raise Unavailable(f"{self._what}: version {name!r} is {state}: the server was started anew meanwhile")
            if self._clock.monotonic() > deadline:
                raise DeadlineExceeded(f"{self._what}: version {name!r} is still {state} after {self._deadline_s:g} s")
            self._clock.sleep(pause)
            pause = min(longest, pause * 1.5)

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, piece: bytes | None = None, offset: int = 0
    ) -> dict[str, Any]:
        import requests  # noqa: PLC0415 - slow to import

        token = self._token
        headers = order_header() | ({"Authorization": f"Bearer {token}"} if token else {})
        headers |= {} if piece is None else piece_header(offset)
        try:
            with requests.request(
                method, f"http://{self.admin}{path}", json=body, data=piece, headers=headers, timeout=_TIMEOUT_S,
                stream=True,
            ) as answer:  # fmt: skip
                content = read_body(answer, _MAX_ANSWER)
                found = json.loads(content or b"{}")
                if not isinstance(found, dict):
                    raise TypeError("not an object")  # noqa: TRY301 - one handler words all of them
        except (requests.RequestException, OSError) as error:
            raise Unavailable(
                f"{self._what} does not answer: {type(error).__name__}",
                hint="Start it again, or take it out of the layout; then run the same command again.",
            ) from error
        except (ValueError, TypeError) as error:
            raise Unavailable(f"{self._what} does not answer like a cube server: {error}") from error
        if not answer.ok:
            raise self._refusal(answer, found)
        return found

    def _refusal(self, answer: requests.Response, found: dict[str, Any]) -> CloudEdgeError:
        if answer.status_code in (401, 403):
            return Rejected(f"{self._what} does not take the token", hint="Give the token the server was started with.")
        kind = getattr(errors, str(found.get("kind")), Unavailable if answer.status_code >= 500 else Rejected)  # noqa: PLR2004
        message = found.get("error", f"HTTP {answer.status_code}")
        refusal: CloudEdgeError = kind(f"{self._what}: {message}", hint=str(found.get("hint", "")))
        return refusal


def _version(found: dict[str, Any]) -> VersionState:
    return VersionState(
        state=_STATES.get(found["state"], "failed"),
        rows=int(found.get("rows", 0)),
        checksum=found.get("checksum"),
        deltas=int(found.get("deltas", 0)),
        delta_bytes=int(found.get("delta_bytes", 0)),
        memory_bytes=int(found.get("memory_bytes", 0)),
        error=str(found.get("error", "")),
    )
