"""Pushes an image to a registry through the engine, and returns the digest to pin it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloudedge.errors import CloudEdgeError, IntegrityError, NotFound, Rejected, Unavailable
from cloudedge.images._engine_errors import engine_errors
from cloudedge.images._image_plan import Planned

__all__ = ["Layers", "Pushed", "push", "refusal"]

Moved = Callable[[int, int], None]
"""Told how many bytes moved since it was told last, and how many there are in all, as far as is known."""


@dataclass(frozen=True)
class Pushed:
    """An image as a registry has it."""

    kind: str
    image: str
    digest: str

    @property
    def pinned(self) -> str:
        """Name these bytes and no others, whatever the tag points at later."""
        return f"{self.image.rpartition(':')[0]}@{self.digest}"


class Layers:
    """Adds up what an engine tells of the layers it pushes at the same time."""

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._sizes: dict[str, int] = {}
        self._settled: dict[str, int] = {}
        self.digest = ""

    def take(self, event: dict[str, Any]) -> None:
        """Read one event of a push."""
        self.digest = (event.get("aux") or {}).get("Digest") or self.digest
        layer, detail = event.get("id"), event.get("progressDetail") or {}
        if not layer or "current" not in detail:
            return
        # The engine counts the archive's headers too, so that more may be sent than there was to send.
        self._sizes[layer] = max(detail.get("total", 0), detail["current"])
        before = self._settled.get(layer, 0)
        self._settled[layer] = max(before, detail["current"])
        self._moved(self._settled[layer] - before, sum(self._sizes.values()))


def push(client: Any, planned: Planned, moved: Moved = lambda _, __: None) -> Pushed:
    """Give an image its name in a registry and push it; layers that are there already are not sent.

    Raises:
        NotFound: the engine does not have the image.
        Rejected: the registry does not let us.
        Unavailable: the engine does not reach the registry.
    """
    repository, _, tag = planned.target.rpartition(":")
    try:
        with engine_errors(f"push {planned.source}"):
            image = client.images.get(planned.source)
    except NotFound as error:
        hint = f"cloudedge image build {planned.kind}"
        raise NotFound(f"cannot push {planned.source}: the engine does not have it", hint=hint) from error
    layers = Layers(moved)
    with engine_errors(f"push {planned.target}"):
        image.tag(repository, tag)
        for event in client.api.push(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                raise refusal(planned.target, event["error"])
            layers.take(event)
    if not layers.digest:
        raise IntegrityError(f"pushed {planned.target}, but the engine names no digest", hint="push it again")
    return Pushed(planned.kind, planned.target, layers.digest)


def refusal(target: str, said: str) -> CloudEdgeError:
    """Say why a push failed, and what helps."""
    host, words = target.partition("/")[0], said.lower()
    message = f"cannot push {target}: {said}"
    if any(word in words for word in ("unauthorized", "denied", "authentication required", "no basic auth")):
        return Rejected(message, hint=f"docker login {host}, as somebody who may write there")
    if "http response to https" in words or "certificate" in words:
        return Rejected(message, hint=f"have the engine trust it: insecure-registries or certs.d/{host} of dockerd")
    if any(word in words for word in ("refused", "no such host", "timeout", "eof", "reset", "unreachable")):
        return Unavailable(message, hint=f"does the registry at {host} run? The engine, not this program, calls it.")
    return Rejected(message, hint="ask whoever runs the registry")
