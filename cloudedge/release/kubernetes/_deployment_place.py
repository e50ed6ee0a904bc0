"""The serving pods of a target as one place: pods have no lasting names, so a release changes all of them or none.

A document in a ConfigMap (`cloudedge.serving.Desired`) defines what they shall have. A step writes it first, under its
order, then gives it to every pod, and is done when each has got there. If a process dies in between, the document still
holds: a pod that starts later reads it before it is ready. A pod that was starting may have read the old document: the
step waits until it answers and takes the new one, or until the cluster has certainly renewed the file that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from cloudedge.admin import ordered, read_error
from cloudedge.bundle import Bundle
from cloudedge.errors import CloudEdgeError, Conflict, DeadlineExceeded, NotFound, Unavailable
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
"""After this time the kubelet has renewed the file of every pod: it syncs every minute, from a cache about as old."""
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
        """See `Place`: a version is loaded if every pod has it; its share is the mean over all pods."""
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
            free_memory_bytes=min((free for pod in found if (free := pod.get("free_memory_bytes"))), default=None),
            order=max((int(pod.get("order", 0)) for pod in found), default=0),
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
        """See `Place`: asks every pod."""
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
        self._pods.wait_left()  # a shard may unload the rows once this returns

    def watch(self) -> Health:
        """See `Place`: the traffic of all pods together."""
        return self._pods.watch()

    def _reach(self, change: Callable[[Desired], Desired], order: int, *, about: Sequence[str]) -> None:
        """Change the document and wait until every pod has got there."""
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
                    hint="Another cloudedge releases to this target, or the journal that numbers orders was lost. "
                    "In that case, run `cloudedge journal rebuild TARGET`.",
                )
            written = change(now).model_copy(update={"order": order})
            return text if written == now else written.model_dump_json(indent=1)

        self._site.rewrite(named("serving", self._site.name, dotted="state"), STATE_FILE, rewritten)
        return written

    def _waiting(self, desired: Desired, about: Sequence[str], *, seconds: float) -> list[str]:
        """Give the document to every pod that does not have it; list the pods that are not there yet.

        Raises:
            CloudEdgeError: a pod cannot get there; the message has the reason.
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
                return ""  # it takes no requests, and will not before it has read the document
            failed = next((status["failures"][pin] for pin in (*about, "") if pin in status["failures"]), None)
            if failed is not None and status["order"] == desired.order:
                raise _reported(pod, failed)
            # Another failure there, such as an older version that no shard has any more, is not this step's.
            return "" if status["tried"] >= desired.order else f"{pod.name} is on its way"

        pods = self._pods.there()
        if not pods:
            return ["there is no pod"]
        return [found for found in self._pods.each(pods, give) if found]


def _reported(pod: Pod, failed: Mapping[str, Any]) -> CloudEdgeError:
    """Make the error of a pod's failure; an error class that the admin protocol does not know becomes `InputError`."""
    return read_error(failed, pod.name, status=HTTPStatus.BAD_REQUEST)


def _mean(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the share of all requests that each version answers, if all pods get equally many."""
    pins = dict.fromkeys(pin for shares in found for pin in shares)
    return {pin: round(sum(shares.get(pin, 0.0) for shares in found) / len(found), 9) for pin in pins}


def _joined(pin: str, found: Sequence[Mapping[str, Any]]) -> Loaded:
    """Return the state of a version over all pods: ready if it is ready on each."""
    states = [next((each for each in pod["versions"] if each["pin"] == pin), None) for pod in found]
    failed = next((each for each in states if each is not None and each["state"] == "failed"), None)
    if failed is not None:
        return Loaded(state="failed", error=failed["error"])
    is_everywhere = all(each is not None and loaded_state(each["state"]) == "ready" for each in states)
    memory = max((each.get("memory_bytes") or 0 for each in states if each is not None), default=0)
    return Loaded(state="ready" if is_everywhere else "loading", memory_bytes=memory)
