"""The runtime: loads versions side by side in one process and routes each request to one of them.

A version is loaded beside those that answer, measured and probed; only then can it be activated. One version answers a
request from its first array to its last; unloading waits for the last request. Every operation is idempotent.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cloudedge.admin import states
from cloudedge.bundle import Bundle, Signature
from cloudedge.errors import CloudEdgeError, Conflict, NotFound, Unavailable
from cloudedge.hub import LocalHub
from cloudedge.serving.control import Routing, Shadow, Variant
from cloudedge.serving.engine import Answer, Call
from cloudedge.serving.model import ProbeResult, RowSource, Version, VersionQueue, VersionUnloaded, WorkerPool, engine
from cloudedge.serving.runtime._config import RuntimeConfig, VersionInfo
from cloudedge.serving.runtime._request_version import LoadedRequestVersion
from cloudedge.serving.runtime._saved_state import StateFile
from cloudedge.serving.runtime._version_entry import VersionEntry, open_bundle

__all__ = ["Runtime"]

_INLINE_ONE_CORE_S, _INLINE_S = 0.001, 0.0001


class Runtime:
    """Loads bundles and answers calls; an `Engine`.

    Args:
        config: The limits that versions run within.
        hub: The hub with the bundles; the user's local hub if left out.
        rows: Makes the source of rows for a bundle, given the names of the bundle's tables there where they differ;
            the bundle's own tables if left out.
        state: File that saves the loaded and active versions across restarts; nothing is saved if left out.
    """

    def __init__(
        self,
        config: RuntimeConfig | None = None,
        *,
        hub: LocalHub | None = None,
        rows: Callable[[Bundle, Mapping[str, str]], RowSource] | None = None,
        state: Path | None = None,
    ) -> None:
        engine()  # not in the thread that loads: only the main thread can restore its signal handlers
        self.config = config or RuntimeConfig()
        self.hub = hub or LocalHub()
        self.reader_loop: asyncio.AbstractEventLoop | None = None
        """The loop that reads requests; fast models run on its thread."""
        self._rows = rows
        self._state_file = StateFile(state)
        self._pool = WorkerPool(self.config.workers or len(os.sched_getaffinity(0)))
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="serving-load")
        self._lock = threading.RLock()
        self._entries: dict[str, VersionEntry] = {}
        self._queues: dict[str, VersionQueue] = {}
        """Versions that can answer; replaced as a whole, so that readers need no lock."""
        self._routing = Routing()
        """The ordered routing, reduced to the versions that are loaded."""

    # -- versions ----------------------------------------------------------------------------------------------------

    def start_load(self, ref: str, *, name: str = "", tables: Mapping[str, str] | None = None) -> str:
        """Begin to load a bundle beside the others and return its pin; a loaded bundle stays as it is.

        Args:
            ref: A bundle in the hub, or a folder with a model, which is packed first.
            name: Its display name; the bundle's own name if left out.
            tables: The names of its tables in the source of rows, where they differ. Versions whose tables were sharded
                differently are read under different names.

        Raises:
            NotFound: There is no such bundle.
            Conflict: The version is being unloaded, or another bundle has its pin.
        """
        bundle = open_bundle(ref, self.hub)
        with self._lock:
            entry = self._entries.get(bundle.pin)
            if entry is not None and entry.bundle.digest != bundle.digest:
                raise Conflict(
                    f"{bundle!r} {bundle.digest} has the pin of {entry.bundle.digest}, which is here already",
                    hint="Pack it again: any change gives it another digest, and another pin.",
                    pin=bundle.pin,
                )
            if entry is None or entry.state == states.FAILED:
                entry = self._entries[bundle.pin] = VersionEntry(bundle, name or bundle.name, dict(tables or {}))
                entry.done = self._loader.submit(self._load, entry)
            elif entry.state == states.UNLOADING:
                raise Conflict(f"version {bundle.pin} is being unloaded", hint="Try again when it is gone.")
        return bundle.pin

    def load(
        self, ref: str, *, name: str = "", tables: Mapping[str, str] | None = None, timeout_s: float = 600
    ) -> VersionInfo:
        """Load a bundle and wait until it can answer.

        Raises:
            NotFound: There is no such bundle.
            InputError: The bundle cannot be served; gives the reason.
        """
        pin = self.start_load(ref, name=name, tables=tables)
        entry = self._entries[pin]
        if entry.done is not None:
            entry.done.result(timeout_s)
        return self.version(pin)

    def _load(self, entry: VersionEntry) -> None:
        entry.state = states.LOADING
        looks_up = self._rows is not None and entry.bundle.signature.lookups
        try:
            version = Version(
                entry.bundle,
                rows=self._rows(entry.bundle, entry.tables) if self._rows is not None and looks_up else None,
                workers=len(self._pool),
                max_rows=self.config.max_rows,
                max_bytes=self.config.max_input_bytes,
                max_batch_rows=self.config.max_batch_rows,
                batch_budget_s=self.config.batch_budget_s,
            )
            version.probe()
        except Exception as error:
            entry.error = error.message if isinstance(error, CloudEdgeError) else f"{type(error).__name__}: {error}"
            entry.state = states.FAILED
            raise
        below_s = self.config.inline_below_s
        if below_s is None:
            below_s = _INLINE_ONE_CORE_S if len(self._pool) == 1 else _INLINE_S
        inline = version.has_local_rows and version.tuning.run_s < below_s
        queue = VersionQueue(
            version, self._pool, max_queue_rows=self.config.max_queue_rows,
            max_queue_bytes=self.config.max_queue_bytes, max_wait_s=self.config.max_wait_s, inline=inline,
            width=max(1, len(self._pool) // version.tuning.threads),
        )  # fmt: skip
        with self._lock:
            entry.queue, entry.state = queue, states.READY
            self._queues = {**self._queues, version.pin: queue}
            self._state_file.missing.pop(version.pin, None)
            self._route(self._state_file.routing)

    def versions(self) -> list[VersionInfo]:
        """List the versions that are queued, loading, ready, unloading or failed."""
        with self._lock:
            return [entry.info(active=self._routing.active == pin) for pin, entry in self._entries.items()]

    def version(self, pin: str) -> VersionInfo:
        """Describe one version.

        Raises:
            NotFound: It was never loaded, or has been unloaded.
        """
        with self._lock:
            return self._entry_of(pin).info(active=self._routing.active == pin)

    def _entry_of(self, pin: str) -> VersionEntry:
        entry = self._entries.get(pin)
        if entry is None:
            raise NotFound(
                f"version {pin!r} is neither loaded nor on its way", hint="Load it with `POST /versions`.", pin=pin
            )
        return entry

    def _queue_of(self, pin: str) -> VersionQueue:
        queue = self._queues.get(pin)
        if queue is None:
            entry = self._entry_of(pin)
            raise NotFound(f"version {pin!r} cannot answer: it is {entry.state}", hint=entry.error, pin=pin)
        return queue

    def probe(self, pin: str) -> ProbeResult:
        """Answer a version's probes again.

        Raises:
            NotFound: It is not loaded.
        """
        return self._queue_of(pin).version.probe()

    def activate(self, pin: str) -> None:
        """Answer all requests with one version; weights are cleared.

        Raises:
            NotFound: It is not loaded.
            Conflict: It did not answer its probes as expected.
        """
        with self._lock:
            current = self._state_file.routing
            if self._routing.active == current.active == pin and not current.variants:
                return
            self._require_probed(pin)
            self._route(current.activated(pin))

    def deactivate(self) -> None:
        """Answer with no version, as before the first activation; loaded versions stay loaded."""
        with self._lock:
            self._route(Routing())

    def set_weights(self, variants: Sequence[Variant]) -> None:
        """Share the traffic between versions, for a canary or an A/B test; an empty list gives all to the active one.

        Raises:
            NotFound: A version is not loaded.
            Conflict: A version did not answer its probes as expected.
        """
        with self._lock:
            for variant in variants:
                self._require_probed(variant.pin)
            self._route(self._state_file.routing.weighted(variants))

    def set_shadow(self, shadow: Shadow | None) -> None:
        """Mirror requests to a version; its answers are compared and counted, never sent. None stops it.

        Raises:
            NotFound: It is not loaded.
        """
        with self._lock:
            if shadow is not None:
                self._queue_of(shadow.pin)
            self._route(replace(self._state_file.routing, shadow=shadow))

    def _require_probed(self, pin: str) -> None:
        probed = self._queue_of(pin).version.probed
        if probed is not None and not probed.passed:
            raise Conflict(
                f"version {pin} did not answer its probes as expected: {'; '.join(probed.failures[:3])}",
                hint="Check its inputs and tables, then probe it again: `POST /versions/PIN/probe`.",
                pin=pin,
            )

    def unload(self, pin: str) -> None:
        """Unload a version once its last request is done; an unknown version is no error.

        Raises:
            Conflict: Traffic can reach it, or it is being loaded.
            Unavailable: Requests were still under way when the wait was over; it takes no new ones.
        """
        with self._lock:
            entry = self._entries.get(pin)
            if entry is None and pin not in self._state_file.missing:
                return
            if pin in self._state_file.routing.pins:
                raise Conflict(
                    f"version {pin} is active, has a weight or is the shadow",
                    hint="Activate another version, or remove its weight, first.",
                    pin=pin,
                )
            if entry is not None and entry.state in states.UNDER_WAY:
                raise Conflict(f"version {pin} is being loaded", hint="Wait until it is loaded.", pin=pin)
            self._queues = {key: queue for key, queue in self._queues.items() if key != pin}
            self._state_file.missing.pop(pin, None)
            if entry is not None and entry.queue is not None:
                entry.state = states.UNLOADING
            self._route(self._state_file.routing)
        if entry is not None and entry.queue is not None:
            if not entry.queue.close(self.config.unload_wait_s):
                raise Unavailable(f"version {pin} still answers {entry.queue.pending} requests", pin=pin)
            entry.queue.version.close()
        with self._lock:
            if self._entries.get(pin) is entry:  # another caller may have unloaded it first, and loaded it again
                self._entries.pop(pin, None)

    @property
    def routing(self) -> Routing:
        """The routing in effect."""
        return self._routing

    @property
    def wanted(self) -> Routing:
        """The ordered routing; `routing` is its part that the loaded versions can serve."""
        return self._state_file.routing

    @property
    def queues(self) -> Mapping[str, VersionQueue]:
        """Versions that can answer, by pin."""
        return self._queues

    def is_ready(self, max_age_s: float = 5.0) -> bool:
        """Return True if the active version answers its probes; probe it again if the last result is old."""
        queue = self._queues.get(self._routing.active or "")
        if queue is None:
            return False
        probed = queue.version.probed
        if probed is None or time.monotonic() - probed.at > max_age_s:
            probed = queue.version.probe()
        return probed.passed

    # -- across restarts ---------------------------------------------------------------------------------------------

    def _route(self, wanted: Routing) -> None:
        """Save an ordered routing, then apply it."""
        self._state_file.write((entry.ref for entry in self._entries.values() if entry.state == states.READY), wanted)
        self._routing = wanted.within(self._queues)

    def restore(self) -> list[str]:
        """Load the versions in the state file and route as before; return the versions that failed to load.

        Those stay in the state file, and the next call tries them again. Orders given meanwhile stay in effect.

        Raises:
            InputError: The state file is not one.
        """
        with self._lock:
            self._state_file.read()
            missing = list(self._state_file.missing.values())
        lost = []
        for ref in missing:
            try:
                self.load(ref.bundle, tables=ref.tables)
            except Exception as error:  # noqa: BLE001 - the other versions are loaded all the same
                lost.append(f"{ref.pin}: {error.message if isinstance(error, CloudEdgeError) else repr(error)}")
        return lost

    # -- calls -------------------------------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """Feeds and fetches of the active version.

        Raises:
            NoneActive: No version is active.
        """
        return self._choose_queue(None, 0.0)[0].version.signature

    def _choose_queue(self, wanted_pin: str | None, draw: float, tag: str | None = None) -> tuple[VersionQueue, str]:
        """Return the queue of the requested version, or of the one that the routing chooses, and its tag."""
        while True:
            routing = self._routing
            pin, variant = (wanted_pin, "") if wanted_pin is not None else routing.choose(draw, tag)
            queue = self._queues.get(pin)
            if queue is not None:
                return queue, variant
            if wanted_pin is not None or routing is self._routing:
                return self._queue_of(pin), variant
            # The routing changed since it was read, and the version was unloaded: read it again.

    def hold(self, tag: str | None = None, *, pin: str | None = None) -> LoadedRequestVersion:
        """Choose a version for one request; see `Engine.hold`.

        Args:
            tag: The variant the caller requests; None: by weight.
            pin: The version an admin caller requests; None: the routing chooses.

        Raises:
            NotFound: The requested version is not loaded.
            NoneActive: No version is active.
        """
        while True:
            queue, variant = self._choose_queue(pin, random.random(), tag)  # noqa: S311 - a share, not a secret
            try:
                queue.hold()
            except VersionUnloaded:
                continue  # unloaded since it was chosen
            return LoadedRequestVersion(self, queue, variant)

    async def predict(self, call: Call) -> Answer:
        """Answer one call with the version it requests; see `RequestVersion.predict`."""
        with self.hold(call.tag, pin=call.pin) as version:
            return await version.predict(call)

    def ask(
        self, feed: Mapping[str, NDArray[Any]], *, fetch: Sequence[str] = (), pin: str | None = None,
        tag: str | None = None, timeout_s: float = 30.0,
    ) -> Answer:  # fmt: skip
        """Answer one call and wait for it, for programs without an event loop.

        Raises:
            InputError, NotFound, Overloaded, DeadlineExceeded, Unavailable: As `hold` and `RequestVersion.predict`.
        """
        with self.hold(tag, pin=pin) as version:
            item = version.submit(Call(feed, fetch, deadline=time.monotonic() + timeout_s), None)
            answer: Answer = item.future.result(timeout_s + self.config.unload_wait_s)  # type: ignore[call-arg]
            return answer

    def close(self) -> None:
        """Stop loading, finish queued requests, unload every version."""
        self._loader.shutdown(cancel_futures=True)
        with self._lock:  # new requests are refused at once: no version is active
            queues, self._queues, self._routing = self._queues, {}, Routing()
        for queue in queues.values():
            queue.close(self.config.unload_wait_s, abandoned=True)
        self._pool.close()
        for queue in queues.values():
            queue.version.close()

    def __enter__(self) -> Runtime:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
