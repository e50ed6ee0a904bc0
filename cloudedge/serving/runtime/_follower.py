"""A replica that is told what to have, not what to do: it follows a document until it is as the document says.

The document comes as a file, for a replica that starts with nothing (`cloudedge serve --follow`), and through the admin
API, for one that runs: whichever has the higher order counts. So a pod that takes a dead one's place comes up with
what is live before it is ready, and one that read an old file is put right by whoever changed it. What was taken is
kept: a process that is started again never goes back to a file that is older.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloudedge.admin import states
from cloudedge.errors import CloudEdgeError, Conflict, InputError
from cloudedge.io import storage_errors, write_atomically
from cloudedge.serving.control import Desired, DesiredVersion, Variant
from cloudedge.serving.runtime._runtime import Runtime

__all__ = ["Follower"]

_LOOK_S = 1.0
_AGAIN_S = 5.0
"""Before another try at what failed: a hub that was away may be back."""
_MAX_FILE = 1 << 20


class Follower:
    """Brings a runtime to what a document says, and keeps it there.

    Args:
        runtime: What is brought there.
        file: Where the document comes from; it may come later, or be replaced.
        kept: Where the newest document is kept.
        fetch: Brings a bundle into the runtime's hub, if it is not there; with its tables or without.
    """

    def __init__(self, runtime: Runtime, file: Path, *, kept: Path, fetch: Callable[[str, bool], None]) -> None:
        self._runtime = runtime
        self._file = file
        self._kept = kept
        self._fetch = fetch
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._failures: dict[str, dict[str, str]] = {}
        self._tried = self._reached = -1
        self.has_arrived = False
        """Whether the runtime ever answered as a document said; from then on it answers while it goes to the next."""
        self._desired = max(self._read(kept), self._read(file), key=lambda each: each.order)
        self._thread = threading.Thread(target=self._run, name="serving-follow", daemon=True)

    @property
    def desired(self) -> Desired:
        """The newest document there is."""
        return self._desired

    @property
    def has_loaded(self) -> bool:
        """Whether all that the document names is loaded, and pointed at unless its probes fail."""
        return self._tried == self._desired.order and self._is_there(self._desired)

    def status(self) -> dict[str, Any]:
        """Say how far it is: the order it follows, the last it tried and the last it reached, and what failed."""
        with self._lock:
            orders = {"order": self._desired.order, "tried": self._tried, "reached": self._reached}
            return {**orders, "failures": dict(self._failures)}

    def take(self, desired: Desired) -> None:
        """Follow another document from now on; it is kept before this returns.

        Raises:
            Conflict: a newer one is followed.
        """
        with self._lock:
            now = self._desired
            if desired.order < now.order or (desired.order == now.order and desired != now):
                raise Conflict(f"order {desired.order} comes after order {now.order} was taken")
            self._keep(desired)
            self._desired = desired
            self._failures = {}
        self._wake.set()

    def start(self) -> Follower:
        """Begin to follow."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop following; what is loaded stays."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Follower:  # noqa: PYI034 - typing.Self is not in 3.10
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            wanted = self._desired
            if self._reached != wanted.order or not self._is_there(wanted):
                self._go(wanted)
            self._wake.wait(_AGAIN_S if self._failures else _LOOK_S)
            self._wake.clear()
            self._look()

    def _look(self) -> None:
        """See whether the file says something newer."""
        found = self._read(self._file)
        if found.order > self._desired.order:
            try:
                self.take(found)
            except CloudEdgeError:
                return  # something newer yet came meanwhile, or the disk is full: at the next look

    def _go(self, wanted: Desired) -> None:
        failures: dict[str, dict[str, str]] = {}
        for version in wanted.versions:
            try:
                self._have(version, wanted)
            except Exception as error:  # noqa: BLE001 - whatever it was, whoever asks has to learn it
                failures[version.pin] = _told(error)
            if wanted is not self._desired or self._closed.is_set():
                return  # something newer came
        try:
            if not wanted.shares.keys() & failures.keys():
                self._point(wanted.shares)
                self.has_arrived = True
                self._drop(wanted)
        except CloudEdgeError as error:
            failures[""] = _told(error)
        with self._lock:
            if wanted is not self._desired:
                return
            self._failures = failures
            self._tried = wanted.order
            if not failures:
                self._reached = wanted.order

    def _have(self, version: DesiredVersion, wanted: Desired) -> None:
        found = next((each for each in self._runtime.versions() if each.pin == version.pin), None)
        if found is not None and found.state == states.READY:
            if dict(found.tables) == dict(version.tables):
                return
            self._runtime.unload(version.pin)  # it reads a layout that was given up
        self._fetch(version.bundle, not wanted.cube)
        self._runtime.load(version.bundle, tables=version.tables)

    def _point(self, shares: Mapping[str, float]) -> None:
        if self._runtime.routing.shares == dict(shares):
            return
        if not shares:
            self._runtime.deactivate()
            return
        largest = max(shares, key=lambda pin: shares[pin])
        if len(shares) == 1 or self._runtime.routing.active is None:
            self._runtime.activate(largest)
        if len(shares) > 1:
            self._runtime.set_weights([Variant(pin, share) for pin, share in shares.items()])

    def _drop(self, wanted: Desired) -> None:
        pins = {version.pin for version in wanted.versions}
        for version in self._runtime.versions():
            if version.pin not in pins:
                self._runtime.unload(version.pin)

    def _is_there(self, wanted: Desired) -> bool:
        ready = {version.pin for version in self._runtime.versions() if version.state == states.READY}
        return ready == {version.pin for version in wanted.versions}

    def _read(self, path: Path) -> Desired:
        try:
            return Desired.parse(path.read_bytes()[:_MAX_FILE])
        except (OSError, InputError):
            return Desired()  # not there yet, or not for us: the other way it comes by has it

    def _keep(self, desired: Desired) -> None:
        with storage_errors("remembering what to serve", self._kept):
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._kept, desired.model_dump_json(indent=1))


def _told(error: Exception) -> dict[str, str]:
    message = error.message if isinstance(error, CloudEdgeError) else f"{type(error).__name__}: {error}"
    return {"error": message, "kind": type(error).__name__}
