"""Watches of one kind: the existing objects, then every change, across broken connections and restarts.

A watch goes on from the last `resourceVersion` it saw. When the server no longer knows that version (410), the watch
lists everything again and compares it with the objects already reported, so that no change is missed or reported
twice. Several changes in between are reported as one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cloudedge.errors import CloudEdgeError, Unavailable
from cloudedge.kube.api import Passing, Session, Status, listed, refusal
from cloudedge.kube.objects import Kind, Object

__all__ = ["WINDOW_S", "Event", "Watch", "changes"]

WINDOW_S = 60.0
"""The duration of one watch request: a connection that died silently is noticed after this."""
_SHORTEST_S = 0.5
_GRACE_S = 3.0
_GONE = 410


@dataclass(frozen=True)
class Event:
    """A change of one object."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object

    @property
    def uid(self) -> str:
        """The object's uid: one deleted and made again under its name is another object."""
        return _uid(self.object)


@dataclass
class Watch:
    """A watch of the objects of one kind until a deadline.

    Args:
        session: The server.
        kind: The objects' kind.
        namespace: The namespace; None for all.
        query: Selectors.
        end: When to stop, by the session's clock.
        window_s: How long one request lasts.
    """

    session: Session
    kind: Kind
    namespace: str | None
    query: Mapping[str, str]
    end: float
    window_s: float = WINDOW_S

    def __iter__(self) -> Iterator[Event | None]:
        """Yield the existing objects, then None, then every change, and None again after each window, until the end."""
        known: dict[str, Object] = {}
        version, failures = "", 0
        silence: Passing | None = None
        while self._left_s() > 0:
            try:
                if not version:
                    found, version = self._list()
                    silence = None
                    yield from changes(known, found)
                    known = {_uid(each): each for each in found}
                    yield None
                began = self.session.clock.monotonic()
                for event, seen in self._follow(version):
                    version, failures, silence = seen, 0, None
                    if event is not None and _apply(known, event):
                        yield event
                if self.session.clock.monotonic() - began < _SHORTEST_S:
                    failures += 1  # a proxy closes connections it should keep open
                    self._rest(failures)
                else:
                    failures = 0
                silence = None
                yield None
            except _Expired:
                version = ""
                failures += 1
                if failures > 1:  # the list expired before it could be watched
                    self._rest(failures)
            except Passing as passing:
                silence = passing
                failures += 1
                self._rest(failures, passing.after_s)
        if silence is not None:
            raise silence.error from silence.__cause__

    def _list(self) -> tuple[list[Object], str]:
        try:
            within_s = max(1.0, self._left_s())
            return listed(
                self.session, self.kind, self.namespace, self.query, what=self._what(), attempts=1, timeout_s=within_s
            )
        except Unavailable as error:
            if error.facts.get("status") == _GONE:
                raise _Expired from error
            raise Passing(error, acted=False, after_s=error.facts.get("retry_after_s")) from error

    def _follow(self, version: str) -> Iterator[tuple[Event | None, str]]:
        window_s = min(self.window_s, max(1.0, self._left_s()))
        query = {
            **self.query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(math.ceil(window_s)),
        }
        try:
            with self.session.stream(
                self.kind.path(self.namespace), what=self._what(), query=query, quiet_s=math.ceil(window_s) + _GRACE_S
            ) as lines:
                for line in lines:
                    event, version = _read(line, self._what())
                    yield event, version
                    if self._left_s() <= 0:
                        return
        except CloudEdgeError as error:
            if error.facts.get("status") == _GONE:
                raise _Expired from error
            raise

    def _rest(self, failures: int, at_least_s: float | None = None) -> None:
        """Wait before the next attempt: the server may be restarting."""
        self.session.clock.sleep(min(max(0.0, self._left_s()), self.session.pause(failures, at_least_s)))

    def _left_s(self) -> float:
        return self.end - self.session.clock.monotonic()

    def _what(self) -> str:
        return f"watching {self.kind.plural} in {self.namespace or 'all namespaces'}"


class _Expired(Exception):
    """The server no longer knows our position."""


def changes(known: Mapping[str, Object], listed: list[Object]) -> Iterator[Event]:
    """Yield the differences between the objects already reported and a fresh list; pure."""
    now = {_uid(each): each for each in listed}
    for uid, gone in known.items():
        if uid not in now:
            yield Event("DELETED", gone)
    for uid, each in now.items():
        if uid not in known:
            yield Event("ADDED", each)
        elif _version(each) != _version(known[uid]):
            yield Event("MODIFIED", each)


def _apply(known: dict[str, Object], event: Event) -> bool:
    """Update the known objects; return whether the event is news."""
    if event.type == "DELETED":
        return known.pop(event.uid, None) is not None
    before = known.get(event.uid)
    known[event.uid] = event.object
    return before is None or _version(before) != _version(event.object)


def _read(line: bytes, what: str) -> tuple[Event | None, str]:
    try:
        found = json.loads(line)
        kind, obj = found["type"], found["object"]
        if kind == "ERROR":
            raise refusal(what, Status.read(int(obj.get("code") or 500), json.dumps(obj).encode()))
        version = str(obj["metadata"]["resourceVersion"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Passing(Unavailable(f"{what}: half an event arrived"), acted=False) from error
    return (Event(kind, obj) if kind in ("ADDED", "MODIFIED", "DELETED") else None), version


def _uid(obj: Object) -> str:
    return str(obj.get("metadata", {}).get("uid") or "")


def _version(obj: Object) -> Any:
    return obj.get("metadata", {}).get("resourceVersion")
