"""`UpstreamReplica`: an upstream cube-server behind its cube-agent, with every claim of either verified.

- The agent fetches the files as a tar; all later commands go to the server itself, because the agent reports a refused
  ``enable`` as a success and then unloads the new version.
- A download that arrived damaged stays in the agent's way for ever; the next attempt uses another file name.
- A seek finds out which version answers. The server has two slots, cannot be asked for a version by name, and cannot
  report the content of the other slot.
- The agent's clean-up deletes ``data/VERSION``; it is written again if the disk is this machine's, else reported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.delivery import ReplicaStatus, VersionState
from cloudedge.cube.formats import Artifact, ArtifactFile, CubeAddress, Endpoint
from cloudedge.cube.upstream.servers._calls import UpstreamCalls
from cloudedge.cube.upstream.servers._disk import ServerDisk
from cloudedge.cube.upstream.servers._version_ids import VersionIds
from cloudedge.errors import Conflict, DeadlineExceeded, InputError, NotFound, Rejected, Unavailable
from cloudedge.io import Backoff

__all__ = ["UpstreamReplica", "UpstreamTimes"]

_TRIES = 3
_BACKOFF = Backoff(0.2, 10.0, 0.5, 1.5)


@dataclass(frozen=True)
class UpstreamTimes:
    """Deadlines of operations, in seconds."""

    stage_s: float = 3600
    """A download by the agent, which fetches 10 MiB per second at most."""
    load_s: float = 1800
    call_s: float = 10
    """Any other answer."""
    refused_s: float = 1
    """An agent that refuses sooner than this has not tried: it works on an earlier command."""


class UpstreamReplica:
    """One upstream server; see `Replica`.

    Args:
        table: The table's name.
        shard: The shard it serves.
        copy: Its number among the shard's servers.
        agent: The address of its agent.
        cube: Its address, and its working directory.
        ids: The table's numbers, shared by all its replicas; their memory also keeps file names from run to run.
        through_agent: Send ``reload`` and ``enable`` through the agent, for servers whose port can be reached from here
            for seeks only. The way back is then lost with every switch.
        times: The deadlines of operations.
        clock: For deadlines and pauses.
    """

    def __init__(
        self,
        *,
        table: str,
        shard: int,
        copy: int,
        agent: Endpoint,
        cube: CubeAddress,
        ids: VersionIds,
        through_agent: bool = False,
        times: UpstreamTimes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = f"{table}/{shard}/{copy}"
        self.shard = shard
        self.cube = cube
        self.warnings: list[str] = []
        """Messages for the operator although nothing failed."""
        self._table = table
        self._memory = ids.memory
        self._times = times or UpstreamTimes()
        self._clock = clock or SystemClock()
        self._ids = ids
        self.through_agent = through_agent
        self._calls = UpstreamCalls(self.name, agent, cube, call_s=self._times.call_s)
        self._staged: set[str] = set()
        self._background: str | None = None  # the version that this object knows to be in the other slot
        self._previous_key = f"cube/{self.name}/previous"
        self._disk = ServerDisk(self.name, shard, cube)

    def close(self) -> None:
        """Close the connections that are kept."""
        self._calls.close()

    def number(self, name: str) -> str:
        """Return the version string that stands for a name on this server."""
        return str(self._ids.number(name))

    def version_name(self, number: str) -> str | None:
        """Return the name that a version string of this server stands for."""
        return self._ids.name(number)

    def status(self) -> ReplicaStatus:
        """Return the versions it has; of the other slot only a version that this object put there is known."""
        active = self._active()
        versions: dict[str, VersionState] = {name: VersionState("staged") for name in sorted(self._staged)}
        # The version that another run switched away from is still there, unless the server was restarted since.
        background = self._background or self._memory.recall(self._previous_key)
        counters = self._calls.counters()
        for name in (background, active):
            if name is not None:
                held = counters.get("data_size", 0) << 20 if name == active else 0
                versions[name] = VersionState("loaded", memory_bytes=held)
        return ReplicaStatus(
            versions=versions,
            active=active,
            previous=background,
            can_pin=False,
            can_delta=False,
            form="tar",
            keys=counters.get("total_key_num", 0),
            misses=counters.get("unfound_key_num", 0),
        )

    def stage(self, name: str, artifact: Artifact) -> int:
        """Let the agent fetch the shard's tar.

        Raises:
            InputError: it is a delta, an empty shard, or no tar.
            DeadlineExceeded: the agent did not fetch it in time.
        """
        tar = self._require_fit(name, artifact)
        if name in self._staged or self._active() == name:
            return 0
        number = self.number(name)
        deadline = self._clock.monotonic() + self._times.stage_s
        key, failures, tries = f"cube/{self.name}/{number}/tar", 0, 0
        while True:
            attempt = int(self._memory.recall(key) or 0)
            served = _served_as(artifact, tar, attempt)
            begun = self._clock.monotonic()
            try:
                answer = self._calls.agent(
                    self._work("download", number, _source_url(artifact, served)), within_s=deadline - begun
                )
                why = _without_secret(answer.message, artifact)
            except Unavailable as error:  # it may still be at work; asked again it says so, or that it is done
                answer, why = None, error.message
            if answer is not None and answer.ok:
                break
            if answer is not None and self._clock.monotonic() - begun >= self._times.refused_s:
                failures += 1
                # A damaged download stays under its name in the agent's way: fetch it under another one.
                self._memory.remember(key, attempt + 1)
            tries += 1
            self._pause(tries, failures, deadline, f"{self.name}: the agent could not download version {name}: {why}")
        self._staged.add(name)
        self._warn(self._disk.keep_pointer(number))
        return artifact.size

    def load(self, name: str, base: str | None = None) -> None:
        """Load a staged version into the other slot, whose version is unloaded.

        Raises:
            InputError: the server did not load it.
            Unavailable: it did not answer in time.
        """
        if base is not None:
            raise InputError(f"{self.name}: upstream's servers get whole versions only", replica=self.name)
        if name in {self._active(), self._background}:
            return
        number = self.number(name)
        deadline = self._clock.monotonic() + self._times.load_s
        failures, tries = 0, 0
        while True:
            self._wait_until_idle(deadline)
            self._set_background(None)  # a load drops it first, whatever its outcome
            try:
                done, why = self._load_once(number, deadline), "it answered no"
            except Unavailable as error:
                done, why = False, error.message
            else:
                failures += not done
            if done:
                self._background = name
                return
            if failures == _TRIES:
                raise InputError(
                    f"{self.name}: the server did not load version {name} ({number}) from {self.cube.deploy_path}/data",
                    hint="Look at the server's log; if its files are damaged there, deliver it again under a new name.",
                    replica=self.name,
                    version=name,
                )
            tries += 1
            self._pause(tries, 0, deadline, f"{self.name}: version {name} was not loaded: {why}")

    def probe(self, name: str, keys: Sequence[int]) -> list[bytes | None]:
        """Read keys from a version, which has to be the active one: upstream's servers understand no pins.

        Raises:
            NotFound: another version answers.
        """
        values, version = self._calls.seek(keys)
        if version != self.number(name):
            raise NotFound(
                f"{self.name}: version {name} is not the one that answers ({version or 'unnamed'} is)",
                hint="Upstream's servers show a version only once it is active.",
                replica=self.name,
            )
        return values

    def activate(self, name: str) -> None:
        """Switch to a loaded version and verify, by a seek, that it answers.

        Raises:
            NotFound: the server does not have it in either slot, or says it switched and did not.
        """
        before, number = self._active(), self.number(name)
        for attempt in range(_TRIES):
            if before == name:
                break
            if attempt:
                self._clock.sleep(_BACKOFF.pause_s(attempt + 1, self._clock))
            with contextlib.suppress(Unavailable):
                self._enable_once(number)
            if self._active() == name:
                break
        else:
            self._set_background(None)  # if it was there: an agent unloads a version that could not be enabled
            raise NotFound(
                f"{self.name}: version {name} ({number}) was not switched to; {before or 'unnamed'} still answers",
                hint="It is in neither slot any more. Load it again, or deliver it again if its files are gone.",
                replica=self.name,
                version=name,
            )
        self.switched(name, before)

    def deactivate(self) -> None:
        """Refuse: an upstream server answers from the version it has, for as long as it runs.

        Raises:
            Rejected: always, unless nothing named answers yet.
        """
        active = self._active()
        if active is not None:
            raise Rejected(
                f"{self.name}: version {active} answers, and upstream's server cannot go back to none",
                hint="Deliver again, or start the server anew with an empty data directory.",
                replica=self.name,
            )

    def switched(self, name: str, before: str | None) -> None:
        """Record that a version answers now that did not before, and make a restart load it."""
        if before != name:
            self._set_background(None if self.through_agent else before)
        self._warn(self._disk.keep_pointer(self.number(name)))

    def unload(self, name: str) -> None:
        """Unload a version.

        Raises:
            Conflict: it is the one that answers.
        """
        if self._active() == name:
            raise Conflict(f"{self.name}: version {name} is active", replica=self.name)
        if self._background == name:
            self._calls.control({"cmd": "bg_unload"})
            self._set_background(None)
        self._staged.discard(name)
        self._disk.forget(self.number(name))

    def peer(self, name: str) -> None:
        """Return None: agents serve nothing."""

    def refused(self) -> None:
        """Record that the other slot does not hold the expected version."""
        self._set_background(None)

    def _set_background(self, name: str | None) -> None:
        """Record the version in the other slot; other runs learn only the one that was switched away from."""
        self._background = name
        if self._memory.recall(self._previous_key) != name:
            self._memory.remember(self._previous_key, name)

    def _active(self) -> str | None:
        return self.version_name(self._calls.version())

    def _require_fit(self, name: str, artifact: Artifact) -> ArtifactFile:
        tar = next((file for file in artifact.files if file.name.endswith(".tar")), None)
        if artifact.kind != "base" or tar is None or not artifact.sources:
            raise InputError(
                f"{self.name}: version {name} is no tar of a whole shard, and upstream's agent takes nothing else",
                replica=self.name,
            )
        if artifact.rows == 0:
            raise InputError(
                f"{self.name}: shard {self.shard} of version {name} is empty, and upstream's server never loads that",
                hint="Build it with `--reserve-key`.",
                replica=self.name,
            )
        return tar

    def _work(self, command: str, number: str, source: str = "") -> dict[str, Any]:
        return {
            "command": command,
            "dict_name": self._table,
            "deploy_path": self.cube.deploy_path,
            "version": number,
            "depend": number,
            "id": number,
            "key": number,
            "mode": "base",
            "shard_seq": self.shard,
            "source": source,
            "port": str(self.cube.port),
        }

    def _load_once(self, number: str, deadline: float) -> bool:
        left = deadline - self._clock.monotonic()
        if self.through_agent:
            return self._calls.agent(self._work("reload", number), within_s=left).ok
        return self._calls.control({"cmd": "bg_load_base", "version_path": f"/{number}"}, within_s=left)

    def _enable_once(self, number: str) -> None:
        if self.through_agent:
            self._calls.agent(self._work("enable", number), within_s=60 + self._times.call_s)
        else:
            self._calls.control({"cmd": "enable", "version": number})

    def _wait_until_idle(self, deadline: float) -> None:
        """Wait for the end of a load that another process began; a second one would be refused."""
        tries = 0
        while self._calls.is_loading():
            tries += 1
            self._pause(tries, 0, deadline, f"{self.name}: the server is loading something else")

    def _pause(self, tries: int, failures: int, deadline: float, what: str) -> None:
        wait = _BACKOFF.pause_s(tries, self._clock)
        if failures < _TRIES and self._clock.monotonic() + wait < deadline:
            self._clock.sleep(wait)
            return
        raise DeadlineExceeded(
            what, hint="Look at the agent's and the server's log, then run the same command again.", replica=self.name
        )

    def _warn(self, message: str) -> None:
        if message and message not in self.warnings:
            self.warnings.append(message)


def _served_as(artifact: Artifact, tar: ArtifactFile, attempt: int) -> str:
    """Return the name that a tar is fetched under: its own at first, then others, made by linking it and its .md5."""
    if attempt == 0:
        return tar.name
    name = f"{tar.name.removesuffix('.tar')}.{attempt}.tar"
    for suffix in ("", ".md5"):
        target = artifact.directory / f"{name}{suffix}"
        if not target.exists():
            with contextlib.suppress(FileExistsError):
                os.link(artifact.directory / f"{tar.name}{suffix}", target)
    return name


def _without_secret(message: str, artifact: Artifact) -> str:
    """Return an agent's message without the token, which it may repeat with the URL it was given."""
    token = artifact.sources[0].token
    return message.replace(quote(token, safe=""), "***").replace(token, "***") if token else message


def _source_url(artifact: Artifact, name: str) -> str:
    """Return the URL for the agent's wget: a token goes as a password, since wget sends no other header."""
    source = artifact.sources[0]
    parts = urlsplit(f"{source.url.rstrip('/')}/{quote(name)}")
    if source.token:
        parts = parts._replace(netloc=f"cloudedge:{quote(source.token, safe='')}@{parts.netloc}")
    return parts.geturl()
