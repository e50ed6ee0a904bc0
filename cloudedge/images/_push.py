"""Pushes of an image to a registry through the engine, and the digest that pins it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloudedge.errors import CloudEdgeError, IntegrityError, NotFound, Rejected, Unavailable
from cloudedge.images._engine_errors import engine_errors
from cloudedge.images._image_plan import Planned

__all__ = ["Layers", "Pushed", "push", "refusal"]

Moved = Callable[[int, int], None]
"""Called with the bytes moved since the last call, and the total as far as it is known."""


@dataclass(frozen=True)
class Pushed:
    """An image in a registry."""

    kind: str
    image: str
    digest: str

    @property
    def pinned(self) -> str:
        """The image by digest, independent of where the tag points later."""
        return f"{self.image.rpartition(':')[0]}@{self.digest}"


class Layers:
    """Adds up the progress of layers that an engine pushes at the same time."""

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._sizes: dict[str, int] = {}
        self._settled: dict[str, int] = {}
        self.digest = ""

    def take(self, event: dict[str, Any]) -> None:
        """Process one event of a push."""
        self.digest = (event.get("aux") or {}).get("Digest") or self.digest
        layer, detail = event.get("id"), event.get("progressDetail") or {}
        if not layer or "current" not in detail:
            return
        # The engine counts the archive's headers too, so that the bytes sent may exceed the total.
        self._sizes[layer] = max(detail.get("total", 0), detail["current"])
        before = self._settled.get(layer, 0)
        self._settled[layer] = max(before, detail["current"])
        self._moved(self._settled[layer] - before, sum(self._sizes.values()))


def push(client: Any, planned: Planned, moved: Moved = lambda _, __: None) -> Pushed:
    """Tag an image for a registry and push it; layers the registry has are not sent.

    Raises:
        NotFound: the engine does not have the image.
        Rejected: the registry refuses it.
        Unavailable: the engine does not reach the registry.
    """
    repository, _, tag = planned.target.rpartition(":")
    try:
        with engine_errors(f"push {planned.source}"):
            image = client.images.get(planned.source)
    except NotFound as error:
        hint = f"Run `cloudedge image build {planned.kind}`."
        raise NotFound(f"cannot push {planned.source}: the engine does not have it", hint=hint) from error
    layers = Layers(moved)
    with engine_errors(f"push {planned.target}"):
        image.tag(repository, tag)
        for event in client.api.push(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                raise refusal(planned.target, event["error"])
            layers.take(event)
    if not layers.digest:
        raise IntegrityError(f"pushed {planned.target}, but the engine reports no digest", hint="Push it again.")
    return Pushed(planned.kind, planned.target, layers.digest)


def refusal(target: str, reason: str) -> CloudEdgeError:
    """Return the error for a failed push, with the remedy."""
    host, words = target.partition("/")[0], reason.lower()
    message = f"cannot push {target}: {reason}"
    if any(word in words for word in ("unauthorized", "denied", "authentication required", "no basic auth")):
        return Rejected(message, hint=f"Run `docker login {host}` as a user with write permission.")
    if "http response to https" in words or "certificate" in words:
        return Rejected(message, hint=f"Make the engine trust it: insecure-registries or certs.d/{host} of dockerd.")
    if any(word in words for word in ("refused", "no such host", "timeout", "eof", "reset", "unreachable")):
        return Unavailable(message, hint=f"Check that the registry at {host} runs and that the engine can reach it.")
    return Rejected(message, hint="Ask the registry's operator.")
