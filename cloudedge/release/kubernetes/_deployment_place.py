"""The serving pods of a target, as one place: pods have no names that last, so it is all of them or none.

What they shall have is a document in a ConfigMap (`cloudedge.serving.Desired`). A step writes it first, under its
order, then gives it to every pod there is, and is done when each has got there. Whatever dies in between, the document
says what holds: a pod that comes later reads it before it is ready. A pod that was starting meanwhile may have read the
document before: it is waited for until it answers and is given the new one, or until the cluster has certainly renewed
the file it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloudedge import errors
from cloudedge.admin import ordered
from cloudedge.bundle import Bundle
from cloudedge.errors import CloudEdgeError, Conflict, DeadlineExceeded, InputError, NotFound, Unavailable
from cloudedge.hub import LocalHub
from cloudedge.release.core import Estimate, Health, Leg, Loaded, Observed, Shares, Shipped, Version
from cloudedge.release.kubernetes._cluster_state import Site
from cloudedge.release.kubernetes._names import STATE_FILE, labels, named, selector
from cloudedge.release.kubernetes._pods import Pod, Pods
from cloudedge.release.kubernetes._revision import desired
from cloudedge.release.places import changed_bytes, loaded_state, require_probed, shares_in
from cloudedge.serving import Desired

__all__ = ["DeploymentPlace"]

_LOAD_S = 600.0
_RENEWED_S = 150.0
"""After so long the kubelet has renewed the file of every pod: it looks every minute, and at what it learned since."""
_LOOK_S = 0.2
_BYTES_PER_S = 100e6


class DeploymentPlace:
    """All serving pods of a target."""

    leg: Leg = "dense"

    def __init__(self, site: Site, *, hub: LocalHub) -> None:
        self.name = f"dense/{named('serving', site.name)}"
        self._site = site
        self._hub = hub
        self._clock = site.cluster.clock
        self._pods = Pods(site, selector(labels("serving", site.name)), place=self.name)

    def observe(self) -> Observed:
        """See `Place`: a version is there if every pod has it, and answers in the share that it has over all pods."""
        found = list(self._pods.require(self._pods.answers(lambda admin: admin.versions())).values())
        pins = dict.fromkeys(version["pin"] for pod in found for version in pod["versions"])
        active = _mean([shares_in(pod) for pod in found])
        live = max(active, key=lambda pin: active[pin], default=None)
        bundles = {version["pin"]: version["bundle"] for pod in found for version in pod["versions"]}
        return Observed(
            self.name,
            self.leg,
            versions={pin: _joined(pin, found) for pin in pins},
            active=active,
            signature=Bundle.open(bundles[live], hub=self._hub).signature if live in bundles else None,
            memory_free_bytes=min((free for pod in found if (free := pod.get("memory_free_bytes"))), default=None),
        )

    def estimate(self, version: Version) -> Estimate:
        """See `Place`."""
        found = self._pods.answers(lambda admin: admin.versions())
        loaded = {each["bundle"] for pod in found.values() for each in pod["versions"]}
        ship = changed_bytes(version, loaded, self._hub) * len(found)
        return Estimate(ship_bytes=ship, memory_bytes=2 * version.dense_bytes, seconds=1 + ship / _BYTES_PER_S)

    def load(self, version: Version, *, order: int) -> Shipped:
        """See `Place`."""
        wanted = desired(version)
        ship = self.estimate(version).ship_bytes

        def add(now: Desired) -> Desired:
            others = [each for each in now.versions if each.pin != version.pin]
            return now.model_copy(update={"versions": (*others, wanted), "cube": self._site.cube_conf()})

        self._reach(add, order, about=[version.pin])
        return Shipped(ship, "base" if ship >= version.dense_bytes else "delta" if ship else "nothing")

    def verify(self, version: Version) -> None:
        """See `Place`: every pod is asked."""
        for answered in self._pods.require(self._pods.answers(lambda admin: admin.probe(version.pin))).values():
            require_probed(self.name, version, answered)

    def activate(self, shares: Shares, *, order: int) -> None:
        """See `Place`."""

        def point(now: Desired) -> Desired:
            missing = shares.keys() - {each.pin for each in now.versions}
            if missing:
                raise NotFound(f"{self.name} does not have {', '.join(sorted(missing))}", hint="Load it first.")
            return now.model_copy(update={"shares": dict(shares)})

        self._reach(point, order, about=list(shares))

    def unload(self, pin: str, *, order: int) -> None:
        """See `Place`."""

        def drop(now: Desired) -> Desired:
            if pin in now.shares:
                raise Conflict(f"{self.name} answers with {pin}")
            return now.model_copy(update={"versions": tuple(each for each in now.versions if each.pin != pin)})

        self._reach(drop, order, about=[])
        self._pods.wait_left()  # rows go when this returns

    def watch(self) -> Health:
        """See `Place`: what all pods did together."""
        return self._pods.watch()

    def _reach(self, change: Callable[[Desired], Desired], order: int, *, about: Sequence[str]) -> None:
        """Change the document and have every pod get there."""
        written = self._write(change, order)
        begun = self._clock.monotonic()
        with ordered(order):
            while True:
                waiting = self._waiting(written, about, seconds=self._clock.monotonic() - begun)
                if not waiting:
                    return
                if self._clock.monotonic() - begun > _LOAD_S:
                    raise DeadlineExceeded(f"{self.name}: after {_LOAD_S:.0f} s not there yet: {'; '.join(waiting)}")
                self._clock.sleep(_LOOK_S)

    def _write(self, change: Callable[[Desired], Desired], order: int) -> Desired:
        """Write the document under an order.

        Raises:
            Conflict: a later order was written.
        """
        written = Desired()

        def rewritten(text: str) -> str:
            nonlocal written
            now = Desired.parse(text) if text else Desired()
            if now.order > order:
                raise Conflict(
                    f"{self.name}: order {order} comes after order {now.order} was written",
                    hint="Somebody else releases to this target, or the journal that numbers orders was lost.",
                )
            written = change(now).model_copy(update={"order": order})
            return text if written == now else written.model_dump_json(indent=1)

        self._site.rewrite(named("serving", self._site.name, dotted="state"), STATE_FILE, rewritten)
        return written

    def _waiting(self, desired: Desired, about: Sequence[str], *, seconds: float) -> list[str]:
        """Give the document to every pod that does not have it; say who is not there yet.

        Raises:
            CloudEdgeError: a pod cannot get there; says why.
        """

        def give(pod: Pod) -> str:
            admin = self._pods.admin(pod)
            try:
                status = admin.desired()
                if status["order"] < desired.order:
                    status = admin.set_desired(desired)
            except Unavailable:
                if pod.is_ready or seconds < _RENEWED_S:
                    return f"{pod.name} does not answer"
                return ""  # it does not take requests, and will not before it has read the document
            failed = next((status["failures"][pin] for pin in (*about, "") if pin in status["failures"]), None)
            if failed is not None and status["order"] == desired.order:
                kind = getattr(errors, failed["kind"], InputError)
                raise (kind if issubclass(kind, CloudEdgeError) else InputError)(f"{pod.name}: {failed['error']}")
            # What else failed there, such as a version to go back to that no shard has any more, is not this step's.
            return "" if status["tried"] >= desired.order else f"{pod.name} is on its way"

        pods = self._pods.there()
        if not pods:
            return ["there is no pod"]
        return [found for found in self._pods.each(pods, give) if found]


def _mean(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the share of all requests that each version answers, if every pod gets as many."""
    pins = dict.fromkeys(pin for shares in found for pin in shares)
    return {pin: round(sum(shares.get(pin, 0.0) for shares in found) / len(found), 9) for pin in pins}


def _joined(pin: str, found: Sequence[Mapping[str, Any]]) -> Loaded:
    """Say of a version what all pods together have: ready if it is on each."""
    states = [next((each for each in pod["versions"] if each["pin"] == pin), None) for pod in found]
    failed = next((each for each in states if each is not None and each["state"] == "failed"), None)
    if failed is not None:
        return Loaded(state="failed", error=failed["error"])
    is_everywhere = all(each is not None and loaded_state(each["state"]) == "ready" for each in states)
    memory = max((each.get("memory_bytes") or 0 for each in states if each is not None), default=0)
    return Loaded(state="ready" if is_everywhere else "loading", memory_bytes=memory)
