"""The logs of several pods as one stream of lines.

Every line comes with its time, so that a reader whose connection broke goes on after its last line.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cloudedge.errors import CloudEdgeError, InputError, NotFound
from cloudedge.kube.api import Passing, Session, listed
from cloudedge.kube.objects import Kind, Object
from cloudedge.kube.streams._watch import Watch

__all__ = ["LogLine", "Logs"]

_QUIET_S = 60.0
_POLL_S = 0.5
_SETTLED_S = 2.0
"""The time every pod must have ended before the stream counts as complete."""
_KEPT = 1000
_LONGEST = 64 * 1024


@dataclass(frozen=True)
class LogLine:
    """A line of a pod's log."""

    pod: str
    text: str
    at: str
    """The time it was written, as the node recorded it."""


@dataclass
class Logs:
    """Reads the logs of pods, once or as they grow.

    Args:
        session: The server.
        namespace: The pods' namespace.
        selector: Their labels.
        pods: Or their names.
        container: The container; empty for the first.
        tail: The number of earlier lines.
        end: When to stop, by the session's clock.
        is_over: Returns whether named pods that have not started never will.
    """

    session: Session
    namespace: str
    selector: str
    pods: tuple[str, ...]
    container: str
    tail: int | None
    end: float
    is_over: Callable[[], bool] = lambda: False

    def read(self) -> Iterator[LogLine]:
        """Return the lines so far, in the order of their times."""
        query = {"labelSelector": self.selector} if self.selector else {}
        found, _ = listed(self.session, Kind.POD, self.namespace, query, what="listing pods")
        wanted = [pod for pod in found if self._is_wanted(pod)]
        for missing in set(self.pods) - {pod["metadata"]["name"] for pod in wanted}:
            raise NotFound(f"pod {missing} does not exist in {self.namespace}")
        return heapq.merge(*map(self._so_far, wanted), key=lambda line: _moment(line.at))

    def follow(self) -> Iterator[LogLine]:
        """Yield the lines so far and each new one, until every pod has ended."""
        reading = _Reading(self)
        try:
            yield from reading
        finally:
            reading.end()

    def _is_wanted(self, pod: Object) -> bool:
        return not self.pods or pod["metadata"]["name"] in self.pods

    def _so_far(self, pod: Object) -> Iterator[LogLine]:
        try:
            yield from self.lines(pod, "", follow=False)
        except Passing as passing:
            raise passing.error from passing.__cause__
        except NotFound:
            return
        except InputError as error:
            if not _is_early(error):
                raise

    def lines(self, found: Object, since: str, *, follow: bool) -> Iterator[LogLine]:
        """Read one pod's lines after a given time, over one connection."""
        pod = found["metadata"]["name"]
        query = {"timestamps": "true", "follow": "true" if follow else "false"}
        query["container"] = self.container or found["spec"]["containers"][0]["name"]
        if since:
            query["sinceTime"] = since
        elif self.tail is not None:
            query["tailLines"] = str(self.tail)
        path = Kind.POD.path(self.namespace, pod, "log")
        with self.session.stream(path, what=f"reading the log of pod {pod}", query=query, quiet_s=_QUIET_S) as lines:
            for line in lines:
                at, _, text = line[:_LONGEST].decode(errors="replace").partition(" ")
                if _moment(at) > _moment(since):
                    yield LogLine(pod, text.rstrip("\r"), at)


class _Reading:
    """Reader threads: one watches for pods, one reads each; the caller gets the lines as they come."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._clock = logs.session.clock
        self._lines: queue.Queue[LogLine] = queue.Queue(_KEPT)
        self._readers: dict[str, threading.Thread] = {}
        self._expected = set(logs.pods)
        """Named pods that may still produce their first line."""
        self._error: CloudEdgeError | None = None
        self._ending = threading.Event()
        self._finder = threading.Thread(target=self._find, name="pods", daemon=True)

    def end(self) -> None:
        """Stop the threads; the reader of a silent pod notices later, and blocks nothing."""
        self._ending.set()
        self._finder.join(_SETTLED_S * 2)

    def __iter__(self) -> Iterator[LogLine]:
        self._finder.start()
        settled: float | None = None
        while self._clock.monotonic() < self._logs.end:
            with suppress(queue.Empty):
                yield self._lines.get(timeout=_POLL_S)
                continue
            if self._error is not None:
                raise self._error
            readers = list(self._readers.values())
            # A selector promises no pods: at least one must have appeared.
            done = bool(readers or self._logs.pods) and not any(thread.is_alive() for thread in readers)
            settled = (settled or self._clock.monotonic()) if done else None
            if settled is not None and self._clock.monotonic() - settled >= _SETTLED_S:
                if not self._expected or self._logs.is_over():
                    return
                settled = None

    def _find(self) -> None:
        logs = self._logs
        query = {"labelSelector": logs.selector} if logs.selector else {}
        try:
            for event in Watch(logs.session, Kind.POD, logs.namespace, query, logs.end, window_s=_SETTLED_S):
                if self._ending.is_set():
                    return
                if event is None or not logs._is_wanted(event.object):  # noqa: SLF001
                    continue
                if event.type != "DELETED" and event.uid not in self._readers and _has_begun(event.object):
                    thread = threading.Thread(target=self._read, args=(event.object,), daemon=True)
                    thread.start()
                    self._readers[event.uid] = thread
                if event.type == "DELETED" or event.uid in self._readers or _is_past(event.object):
                    self._expected.discard(event.object["metadata"]["name"])
        except CloudEdgeError as error:
            self._error = error

    def _read(self, pod: Object) -> None:
        last, failures = "", 0
        while not self._ending.is_set() and self._clock.monotonic() < self._logs.end:
            try:
                for line in self._logs.lines(pod, last, follow=True):
                    last, failures = line.at, 0
                    self._put(line)
                    if self._ending.is_set():
                        return
                if self._has_ended(pod):
                    return
                self._clock.sleep(_POLL_S)  # its container restarts; until then its log ends at once
            except NotFound:
                return
            except Passing as passing:
                failures += 1
                self._clock.sleep(self._logs.session.pause(failures, passing.after_s))
            except CloudEdgeError as error:
                if not _is_early(error):
                    self._error = error
                    return
                self._clock.sleep(_POLL_S)

    def _put(self, line: LogLine) -> None:
        while not self._ending.is_set():
            with suppress(queue.Full):
                self._lines.put(line, timeout=_POLL_S)
                return

    def _has_ended(self, pod: Object) -> bool:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        found = self._logs.session.call("GET", Kind.POD.path(self._logs.namespace, name), what=f"reading pod {name}")
        return found["metadata"]["uid"] != uid or _is_past(found)


def _is_early(error: CloudEdgeError) -> bool:
    """Return whether there is no log because the container has not started."""
    return isinstance(error, InputError) and "waiting to start" in error.message


def _has_begun(pod: Object) -> bool:
    states: list[dict[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or []
    return any((each.get("state") or {}).keys() & {"running", "terminated"} for each in states)


def _is_past(pod: Object) -> bool:
    """Return whether a pod has ended, or was turned away before it started."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _moment(at: str) -> str:
    """Return a comparable form: fractions of a second come without trailing zeros."""
    return at.removesuffix("Z")
