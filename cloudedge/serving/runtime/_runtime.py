"""Versions side by side in one process, and a pointer that says which of them answers.

A version is loaded beside those that answer, measured, probed, and only then can the pointer reach it. A request uses
the version it was given to from its first array to its last; unloading waits for the last request. Every operation can
be repeated: what is so already stays so.
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
from cloudedge.serving.model import Lane, LaneClosed, Pool, ProbeResult, RowSource, Version, engine
from cloudedge.serving.runtime._config import RuntimeConfig, VersionInfo
from cloudedge.serving.runtime._request_version import HeldVersion
from cloudedge.serving.runtime._saved_state import Memory
from cloudedge.serving.runtime._version_entry import Entry, open_bundle

__all__ = ["Runtime"]

_INLINE_ONE_CORE_S, _INLINE_S = 0.001, 0.0001


class Runtime:
    """Loads bundles and answers calls; an `Engine`.

    Args:
        config: How versions are run.
        hub: Where bundles are; the user's own local hub if left out.
        rows: Makes the source of rows for a bundle, given what it calls the bundle's tables where that is not their
            names; the bundle's own tables if left out.
        state: File that remembers what is loaded and active; nothing is remembered if left out.
    """

    def __init__(
        self,
        config: RuntimeConfig | None = None,
        *,
        hub: LocalHub | None = None,
        rows: Callable[[Bundle, Mapping[str, str]], RowSource] | None = None,
        state: Path | None = None,
    ) -> None:
        engine()  # here and not in the thread that loads: only the main thread can keep its signals
        self.config = config or RuntimeConfig()
        self.hub = hub or LocalHub()
        self.home: asyncio.AbstractEventLoop | None = None
        """The loop that reads requests; quick models run on its thread."""
        self._rows = rows
        self._memory = Memory(state)
        self._pool = Pool(self.config.workers or len(os.sched_getaffinity(0)))
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="serving-load")
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._lanes: dict[str, Lane] = {}
        """Versions that can answer; replaced whole, so that readers need no lock."""
        self._routing = Routing()
        """What of the orders in memory can be done with the versions that are here."""

    # -- versions ----------------------------------------------------------------------------------------------------

    def start_load(self, ref: str, *, name: str = "", tables: Mapping[str, str] | None = None) -> str:
        """Begin to load a bundle beside the others and return its pin; nothing happens if it is loaded already.

        Args:
            ref: A bundle in the hub, or a folder with a model, which is packed first.
            name: What people call it; the bundle's own name if left out.
            tables: What the source of rows calls its tables, where not by their names. Versions whose tables were cut
                differently are read under different names.

        Raises:
            NotFound: there is no such bundle.
        """
        bundle = open_bundle(ref, self.hub)
        with self._lock:
            entry = self._entries.get(bundle.pin)
            if entry is None or entry.state == states.FAILED:
                entry = self._entries[bundle.pin] = Entry(bundle, name or bundle.name, dict(tables or {}))
                entry.done = self._loader.submit(self._load, entry)
            elif entry.state == states.UNLOADING:
                raise Conflict(f"version {bundle.pin} is being unloaded", hint="try again when it is gone")
        return bundle.pin

    def load(
        self, ref: str, *, name: str = "", tables: Mapping[str, str] | None = None, timeout_s: float = 600
    ) -> VersionInfo:
        """Load a bundle and wait until it can answer.

        Raises:
            NotFound: there is no such bundle.
            InputError: it cannot be served; says why.
        """
        pin = self.start_load(ref, name=name, tables=tables)
        entry = self._entries[pin]
        if entry.done is not None:
            entry.done.result(timeout_s)
        return self.version(pin)

    def _load(self, entry: Entry) -> None:
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
        lane = Lane(
            version, self._pool, max_queue_rows=self.config.max_queue_rows,
            max_queue_bytes=self.config.max_queue_bytes, max_wait_s=self.config.max_wait_s, inline=inline,
            width=max(1, len(self._pool) // version.tuning.threads),
        )  # fmt: skip
        with self._lock:
            entry.lane, entry.state = lane, states.READY
            self._lanes = {**self._lanes, version.pin: lane}
            self._memory.missing.pop(version.pin, None)
            self._route(self._memory.routing)

    def versions(self) -> list[VersionInfo]:
        """List what is loaded, and what became of loads."""
        with self._lock:
            return [entry.info(active=self._routing.active == pin) for pin, entry in self._entries.items()]

    def version(self, pin: str) -> VersionInfo:
        """Find one.

        Raises:
            NotFound: it was never asked for, or is gone.
        """
        with self._lock:
            return self._entry(pin).info(active=self._routing.active == pin)

    def _entry(self, pin: str) -> Entry:
        entry = self._entries.get(pin)
        if entry is None:
            raise NotFound(
                f"version {pin!r} is neither loaded nor on its way", hint="POST /versions loads one", pin=pin
            )
        return entry

    def _lane(self, pin: str) -> Lane:
        lane = self._lanes.get(pin)
        if lane is None:
            entry = self._entry(pin)
            raise NotFound(f"version {pin!r} cannot answer: it is {entry.state}", hint=entry.error, pin=pin)
        return lane

    def probe(self, pin: str) -> ProbeResult:
        """Answer a version's probes again.

        Raises:
            NotFound: it is not loaded.
        """
        return self._lane(pin).version.probe()

    def activate(self, pin: str) -> None:
        """Move the pointer; weights are cleared.

        Raises:
            NotFound: it is not loaded.
            Conflict: it did not answer its probes as expected.
        """
        with self._lock:
            now = self._memory.routing
            if self._routing.active == now.active == pin and not now.variants:
                return
            self._require_probed(pin)
            self._route(now.activated(pin))

    def deactivate(self) -> None:
        """Let no version answer any more, as before the first was activated; what is loaded stays."""
        with self._lock:
            self._route(Routing())

    def set_weights(self, variants: Sequence[Variant]) -> None:
        """Share the traffic between versions, for a canary or an A/B test; none: everything to the active one.

        Raises:
            NotFound: a version is not loaded.
            Conflict: one did not answer its probes as expected.
        """
        with self._lock:
            for variant in variants:
                self._require_probed(variant.pin)
            self._route(self._memory.routing.weighted(variants))

    def set_shadow(self, shadow: Shadow | None) -> None:
        """Give a version copies of requests, whose answers are compared and counted and go nowhere; None: stop.

        Raises:
            NotFound: it is not loaded.
        """
        with self._lock:
            if shadow is not None:
                self._lane(shadow.pin)
            self._route(replace(self._memory.routing, shadow=shadow))

    def _require_probed(self, pin: str) -> None:
        probed = self._lane(pin).version.probed
        if probed is not None and not probed.passed:
            raise Conflict(
                f"version {pin} did not answer its probes as expected: {'; '.join(probed.failures[:3])}",
                hint="look at its inputs and tables, then POST /versions/PIN/probe",
                pin=pin,
            )

    def unload(self, pin: str) -> None:
        """Unload a version once its last request is done; nothing happens if it is gone already.

        Raises:
            Conflict: traffic can reach it.
            Unavailable: requests were still under way when the wait was over; it takes no new ones.
        """
        with self._lock:
            entry = self._entries.get(pin)
            if entry is None and pin not in self._memory.missing:
                return
            if pin in self._memory.routing.pins:
                raise Conflict(
                    f"version {pin} is active, has a weight or is the shadow",
                    hint="activate another one, or take its weight away, first",
                    pin=pin,
                )
            if entry is not None and entry.state in states.UNDER_WAY:
                raise Conflict(f"version {pin} is being loaded", hint="wait until it is loaded", pin=pin)
            self._lanes = {key: lane for key, lane in self._lanes.items() if key != pin}
            self._memory.missing.pop(pin, None)
            if entry is not None and entry.lane is not None:
                entry.state = states.UNLOADING
            self._route(self._memory.routing)
        if entry is not None and entry.lane is not None:
            if not entry.lane.close(self.config.unload_wait_s):
                raise Unavailable(f"version {pin} still answers {entry.lane.pending} requests", pin=pin)
            entry.lane.version.close()
        with self._lock:
            if self._entries.get(pin) is entry:  # who else unloaded it may have been quicker, and loaded it again
                self._entries.pop(pin, None)

    @property
    def routing(self) -> Routing:
        """Who answers what."""
        return self._routing

    @property
    def wanted(self) -> Routing:
        """Who is to answer what, as ordered; `routing` is what of it can be done with what is loaded."""
        return self._memory.routing

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """Versions that can answer, by pin."""
        return self._lanes

    def is_ready(self, max_age_s: float = 5.0) -> bool:
        """Tell whether the active version answers its probes, asking it again if that is long ago."""
        lane = self._lanes.get(self._routing.active or "")
        if lane is None:
            return False
        probed = lane.version.probed
        if probed is None or time.monotonic() - probed.at > max_age_s:
            probed = lane.version.probe()
        return probed.passed

    # -- across restarts ---------------------------------------------------------------------------------------------

    def _route(self, wanted: Routing) -> None:
        """Remember an order, then obey it."""
        self._memory.write((entry.ref for entry in self._entries.values() if entry.state == states.READY), wanted)
        self._routing = wanted.within(self._lanes)

    def restore(self) -> list[str]:
        """Load what the state file remembers and let it answer as it did; return what could not be brought back.

        That stays remembered, and is tried when this is called again. What was ordered meanwhile is not undone.

        Raises:
            InputError: the state file is not one.
        """
        with self._lock:
            self._memory.read()
            missing = list(self._memory.missing.values())
        lost = []
        for ref in missing:
            try:
                self.load(ref.bundle, tables=ref.tables)
            except Exception as error:  # noqa: BLE001 - whatever it was, the others are brought back
                lost.append(f"{ref.pin}: {error.message if isinstance(error, CloudEdgeError) else repr(error)}")
        return lost

    # -- calls -------------------------------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """Feeds and fetches of the active version.

        Raises:
            NoneActive: no version is.
        """
        return self._chosen(None, 0.0)[0].version.signature

    def _chosen(self, wanted: str | None, draw: float, tag: str | None = None) -> tuple[Lane, str]:
        """Return the lane of a version that is wanted, or of the one the pointer and its weights choose."""
        while True:
            routing = self._routing
            pin, variant = (wanted, "") if wanted is not None else routing.choose(draw, tag)
            lane = self._lanes.get(pin)
            if lane is not None:
                return lane, variant
            if wanted is not None or routing is self._routing:
                return self._lane(pin), variant
            # The pointer moved on since it was read, and the version went: read it again.

    def hold(self, tag: str | None = None, *, pin: str | None = None) -> HeldVersion:
        """Choose a version for one request; see `Engine.hold`.

        Args:
            tag: The variant a caller wants; None: by weight.
            pin: The version an admin caller wants; None: the one the pointer and its weights choose.

        Raises:
            NotFound: it is not loaded.
            NoneActive: no version is.
        """
        while True:
            lane, variant = self._chosen(pin, random.random(), tag)  # noqa: S311 - a share, not a secret
            try:
                lane.hold()
            except LaneClosed:
                continue  # unloaded since it was chosen
            return HeldVersion(self, lane, variant)

    async def predict(self, call: Call) -> Answer:
        """Answer one call with the version it asks for; see `Held.predict`."""
        with self.hold(call.tag, pin=call.pin) as version:
            return await version.predict(call)

    def ask(
        self, feed: Mapping[str, NDArray[Any]], *, fetch: Sequence[str] = (), pin: str | None = None,
        tag: str | None = None, timeout_s: float = 30.0,
    ) -> Answer:  # fmt: skip
        """Answer one call and wait for it, for programs without a loop.

        Raises:
            InputError, NotFound, Overloaded, DeadlineExceeded, Unavailable: as `hold` and `Held.predict`.
        """
        with self.hold(tag, pin=pin) as version:
            item = version.submit(Call(feed, fetch, deadline=time.monotonic() + timeout_s), None)
            answer: Answer = item.future.result(timeout_s + self.config.unload_wait_s)  # type: ignore[call-arg]
            return answer

    def close(self) -> None:
        """Stop loading, finish what is queued, give everything back."""
        self._loader.shutdown(cancel_futures=True)
        with self._lock:  # what comes now is told at once that nobody answers
            lanes, self._lanes, self._routing = self._lanes, {}, Routing()
        for lane in lanes.values():
            lane.close(self.config.unload_wait_s, abandoned=True)
        self._pool.close()
        for lane in lanes.values():
            lane.version.close()

    def __enter__(self) -> Runtime:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
