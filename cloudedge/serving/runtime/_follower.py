"""The follower: brings a runtime to the desired state that a document declares, and keeps it there.

The document comes as a file, for a replica that starts empty (`cloudedge serve --follow`), and through the admin API,
for one that runs; the one with the higher order counts. So a pod that replaces a dead one loads the live versions
before it is ready, and a pod that read an old file is corrected through the admin API. The follower saves the document
it follows: a restarted process never goes back to an older file.
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

_POLL_S = 1.0
_RETRY_S = 5.0
"""Wait before a failed step is tried again: an unreachable hub may be back."""
_MAX_FILE_BYTES = 1 << 20


class Follower:
    """Brings a runtime to the state that a document declares, and keeps it there.

    Args:
        runtime: The runtime to bring there.
        file: The file with the document; it may appear later, or be replaced.
        kept: The file that saves the newest document.
        fetch: Brings a bundle into the runtime's hub if it is missing; with its tables or without.
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
        """The runtime reached the state of some document; from then on it answers while it goes to the next."""
        self._desired = max(self._read(kept), self._read(file), key=lambda each: each.order)
        self._thread = threading.Thread(target=self._run, name="serving-follow", daemon=True)

    @property
    def desired(self) -> Desired:
        """The newest document."""
        return self._desired

    @property
    def has_loaded(self) -> bool:
        """Every version that the document names is loaded, and routed to unless its probes fail."""
        return self._tried == self._desired.order and self._is_there(self._desired)

    def status(self) -> dict[str, Any]:
        """Return the order it follows, the last order it tried, the last it reached, and the failures."""
        with self._lock:
            orders = {"order": self._desired.order, "tried": self._tried, "reached": self._reached}
            return {**orders, "failures": dict(self._failures)}

    def take(self, desired: Desired) -> None:
        """Follow another document from now on; it is saved before this returns.

        Raises:
            Conflict: The follower has a newer document.
        """
        with self._lock:
            current = self._desired
            if desired.order < current.order or (desired.order == current.order and desired != current):
                raise Conflict(f"order {desired.order} comes after order {current.order} was taken")
            self._save(desired)
            self._desired = desired
            self._failures = {}
        self._wake.set()

    def start(self) -> Follower:
        """Begin to follow."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop following; loaded versions stay loaded."""
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
                self._converge(wanted)
            self._wake.wait(_RETRY_S if self._failures else _POLL_S)
            self._wake.clear()
            self._check_file()

    def _check_file(self) -> None:
        """Take the file's document if it is newer."""
        found = self._read(self._file)
        if found.order > self._desired.order:
            try:
                self.take(found)
            except CloudEdgeError:
                return  # a still newer document came meanwhile, or the disk is full: checked again at the next poll

    def _converge(self, wanted: Desired) -> None:
        """Load, route and unload until the runtime has the state of one document."""
        failures: dict[str, dict[str, str]] = {}
        for version in wanted.versions:
            try:
                self._ensure_loaded(version, wanted)
            except Exception as error:  # noqa: BLE001 - `status` reports it
                failures[version.pin] = _describe_error(error)
            if wanted is not self._desired or self._closed.is_set():
                return  # a newer document came
        try:
            if not wanted.shares.keys() & failures.keys():
                self._ensure_routing(wanted.shares)
                self.has_arrived = True
                self._unload_others(wanted)
        except CloudEdgeError as error:
            failures[""] = _describe_error(error)
        with self._lock:
            if wanted is not self._desired:
                return
            self._failures = failures
            self._tried = wanted.order
            if not failures:
                self._reached = wanted.order

    def _ensure_loaded(self, version: DesiredVersion, wanted: Desired) -> None:
        found = next((each for each in self._runtime.versions() if each.pin == version.pin), None)
        if found is not None and found.state == states.READY:
            if dict(found.tables) == dict(version.tables):
                return
            self._runtime.unload(version.pin)  # it reads tables under names that are no longer served
        self._fetch(version.bundle, not wanted.cube)
        self._runtime.load(version.bundle, tables=version.tables)

    def _ensure_routing(self, shares: Mapping[str, float]) -> None:
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

    def _unload_others(self, wanted: Desired) -> None:
        pins = {version.pin for version in wanted.versions}
        for version in self._runtime.versions():
            if version.pin not in pins:
                self._runtime.unload(version.pin)

    def _is_there(self, wanted: Desired) -> bool:
        ready = {version.pin for version in self._runtime.versions() if version.state == states.READY}
        return ready == {version.pin for version in wanted.versions}

    def _read(self, path: Path) -> Desired:
        try:
            return Desired.parse(path.read_bytes()[:_MAX_FILE_BYTES])
        except (OSError, InputError):
            return Desired()  # missing or not readable: the admin API brings the document

    def _save(self, desired: Desired) -> None:
        with storage_errors("remembering what to serve", self._kept):
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._kept, desired.model_dump_json(indent=1))


def _describe_error(error: Exception) -> dict[str, str]:
    message = error.message if isinstance(error, CloudEdgeError) else f"{type(error).__name__}: {error}"
    return {"error": message, "kind": type(error).__name__}
