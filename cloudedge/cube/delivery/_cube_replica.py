"""A cube server as a replica: its admin API for control, its data port for probes.

Calls are made once and waits have a deadline; the delivery owns the retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from cloudedge.admin import AdminHttpClient, read_error, states, with_free_memory, with_pin
from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.client import Client, ClientConfig
from cloudedge.cube.delivery._replica import Loading, ReplicaStatus, VersionState
from cloudedge.cube.formats import Artifact, ArtifactFile, Source
from cloudedge.cube.server import Throttle
from cloudedge.errors import Conflict, DeadlineExceeded, NotFound, StorageError, Unavailable
from cloudedge.io import join_address, parse_address

__all__ = ["CubeReplica"]

_TIMEOUT_S = 10.0
_BUSY_PAUSE_S = 0.25
_PIECE = 4 << 20
_STATES: dict[str, Loading] = {
    states.QUEUED: "staging",
    states.STAGING: "staging",
    states.PARTIAL: "staging",
    states.STAGED: "staged",
    states.LOADING: "loading",
    states.LOADED: "loaded",
    states.FAILED: "failed",
}


class CubeReplica:
    """One cube server.

    Args:
        table: The table's name.
        shard: The shard it serves.
        replica: The name that tells it apart from the shard's other replicas; its data address if left out.
        address: Its data port, ``host:port``.
        admin: Its admin port, ``host:port``.
        token: For the admin API, and for fetching from it; or a function that returns it, called for each request.
        deadline_s: For fetching and loading one version.
        push: Send the files through its admin port: for a server that cannot reach the delivering machine.
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
        self._deadline_s = deadline_s
        self._push = push
        self._clock = clock or SystemClock()
        # No connection is kept: replicas are many, calls are few, and a server restarts between two of them.
        self._http = AdminHttpClient(
            admin, what=self._what, token=token, timeout_s=_TIMEOUT_S, keep_alive=False, clock=self._clock
        )
        self._files_port: int | None = None
        self.limit: Throttle | None = None
        """The limit of bytes sent to it; the delivery sets it, for all replicas together."""

    def status(self) -> ReplicaStatus:
        """Return the versions it has, and its free room."""
        found = with_free_memory(self._http.call("GET", "/versions"))
        counters = self._http.call("GET", "/stats")
        self._files_port = found.get("files_port")
        return ReplicaStatus(
            versions={each["pin"]: _version(each) for each in map(with_pin, found["versions"])},
            active=found["active"],
            previous=found.get("previous"),
            can_delta=self._files_port is not None,
            free_disk_bytes=found.get("free_disk_bytes"),
            free_memory_bytes=found["free_memory_bytes"],
            keys=int(counters.get("keys", 0)),
            misses=int(counters.get("missing_keys", 0)),
            order=int(found.get("order", 0)),
        )

    def stage(self, name: str, artifact: Artifact) -> int:
        """Let the server fetch a version's files, or send them; see `Replica`."""
        if (self._find(name) or {}).get("state") == states.LOADED:
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
        return int(self._wait(name, states.STAGED).get("shipped_bytes", 0))

    def _send(self, name: str, artifact: Artifact) -> int:
        deadline, sent = self._clock.monotonic() + self._deadline_s, 0
        before: Any = None
        refused: Conflict | None = None
        while True:
            found = self._http.call("POST", "/staged", {"name": name, "artifact": artifact.as_json(), "sources": []})
            if found["state"] == states.STAGED:
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
                                hint="Run the same command again: it continues where it stopped.",
                            )
                except Conflict as error:
                    refused = error  # an answer was lost, and it has more than we know: ask again
                    break

    def _pieces(self, name: str, artifact: Artifact, file: ArtifactFile, there: int) -> Iterator[int]:
        """Send the missing bytes of a file; yields the size of each piece that arrived."""
        path = f"/staged/{quote(name, safe='')}/{quote(file.name, safe='')}"
        try:
            with (artifact.directory / file.name).open("rb") as content:
                content.seek(there)
                while piece := content.read(_PIECE):
                    if self.limit is not None:
                        self.limit.take(len(piece))
                    self._http.call("PUT", path, piece=piece, offset=there)
                    there += len(piece)
                    yield len(piece)
        except OSError as error:
            raise StorageError(f"cannot read {artifact.directory / file.name}: {error.strerror}") from error

    def load(self, name: str, base: str | None = None) -> None:
        """Let the server load a staged version; it finds a delta's base itself, by its rows."""
        if (self._find(name) or {}).get("state") == states.LOADED:
            return
        self._begin("/versions", {"name": name} | ({} if base is None else {"base": base}), name)
        self._wait(name, states.LOADED)

    def probe(self, name: str, keys: Sequence[int]) -> list[bytes | None]:
        """Read keys from exactly that version, on the data port."""
        with Client(ClientConfig([[self.address]], timeout_ms=int(_TIMEOUT_S * 1000))) as client:
            found = client.seek(keys, pin=name, dtype=np.uint8)
        return [row.tobytes() if there else None for row, there in zip(found.values, found.found, strict=True)]

    def activate(self, name: str) -> None:
        """Move the server's pointer and verify that it moved."""
        self._http.call("POST", f"/versions/{quote(name, safe='')}/activate")
        active = self._http.call("GET", "/versions")["active"]
        if active != name:
            raise Unavailable(f"{self._what} answers from {active!r} after {name!r} was activated")

    def deactivate(self) -> None:
        """Take the server's pointer away: reads without a pin get nothing, as before the first version."""
        self._http.call("DELETE", "/active")

    def unload(self, name: str, *, previous: bool = False) -> None:
        """Unload a version and remove its files; with `previous`, also if it is the one that was active before."""
        try:
            self._http.call("DELETE", f"/versions/{quote(name, safe='')}", {"previous": True} if previous else None)
        except NotFound:
            return

    def peer(self, name: str) -> Source | None:
        """Return the source from which other replicas may fetch a version that is staged here."""
        if self._files_port is None:
            return None
        return Source(f"http://{join_address(self._admin_host, self._files_port)}/{quote(name)}", self._http.token)

    def drain(self, within_s: float = 10) -> None:
        """Let the process finish the requests under way and end."""
        try:
            self._http.call("POST", "/drain", {"within_s": within_s})
        except Conflict:
            return  # it is draining already

    @property
    def _what(self) -> str:
        return f"{self.name} (admin API on {self.admin})"

    def _find(self, name: str) -> dict[str, Any] | None:
        try:
            return self._http.call("GET", f"/versions/{quote(name, safe='')}")
        except NotFound:
            return None

    def _begin(self, path: str, body: dict[str, Any], name: str) -> None:
        """Ask for a background job, after any job that works on that version."""
        deadline = self._clock.monotonic() + self._deadline_s
        while True:
            try:
                self._http.call("POST", path, body)
            except Conflict:
                # A job works on it, or has just ended: perhaps one that an earlier call of ours asked for.
                if (self._find(name) or {}).get("state") == states.LOADED:
                    return
                if self._clock.monotonic() > deadline:
                    raise
                self._clock.sleep(_BUSY_PAUSE_S)
            else:
                return

    def _wait(self, name: str, wanted: str) -> dict[str, Any]:
        state = ""

        def look() -> dict[str, Any] | None:
            nonlocal state
            found = self._find(name) or {"state": "gone"}
            state = found["state"]
            if state in (wanted, states.LOADED):
                return found
            if state == states.FAILED:
                raise read_error(found, self._what)
            if state not in states.UNDER_WAY:
                raise Unavailable(f"{self._what}: version {name!r} is {state}: the server restarted meanwhile")
            return None

        def late() -> DeadlineExceeded:
            return DeadlineExceeded(f"{self._what}: version {name!r} is still {state} after {self._deadline_s:g} s")

        return self._http.poll(look, within_s=self._deadline_s, late=late)


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
