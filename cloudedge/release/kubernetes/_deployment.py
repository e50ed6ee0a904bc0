"""The serving pods of a target, as one place: pods have no names that last, so it is all of them or none.

What they shall have is a document in a ConfigMap (`cloudedge.serving.Desired`). A step writes it first, under its
order, then gives it to every pod there is, and is done when each has got there. Whatever dies in between, the document
says what holds: a pod that comes later reads it before it is ready. A pod that was starting meanwhile may have read the
document before: it is waited for until it answers and is given the new one, or until the cluster has certainly renewed
the file it reads.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from cloudedge import errors
from cloudedge.adminhttp import ordered
from cloudedge.bundle import Bundle
from cloudedge.errors import CloudEdgeError, Conflict, DeadlineExceeded, InputError, NotFound, Unavailable
from cloudedge.hub import LocalHub
from cloudedge.kube import Kind, Object
from cloudedge.release._breach import add_up
from cloudedge.release._places import Estimate, Health, Leg, Loaded, Observed, Shares, Shipped, Traffic
from cloudedge.release._servers import (
    changed_bytes,
    loaded_state,
    require_probed,
    shares_in,
    tables_of,
    traffic_of,
    traffic_since,
)
from cloudedge.release._version import Version
from cloudedge.release.kubernetes._names import SERVING_ADMIN, STATE_FILE, labels, named, selector
from cloudedge.release.kubernetes._site import Site
from cloudedge.serving import AdminClient, Desired, DesiredVersion

__all__ = ["DeploymentPlace"]

_LOAD_S = 600.0
_RENEWED_S = 150.0
"""After so long the kubelet has renewed the file of every pod: it looks every minute, and at what it learned since."""
_GONE_S = 60.0
"""Longer than a pod's grace period; one that is still listed then is on a node that nobody hears of."""
_LOOK_S = 0.2
_ASK_S = 10.0
_WRITES = 8
_BYTES_PER_S = 100e6
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class _Pod:
    """A pod that may answer, now or soon."""

    name: str
    ip: str
    is_ready: bool

    @classmethod
    def read(cls, found: Object) -> _Pod | None:
        """Read a pod; None for one that is going, or has no node yet, and with that no file either."""
        status = found.get("status") or {}
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        is_over = status.get("phase") in ("Failed", "Succeeded")
        if found["metadata"].get("deletionTimestamp") or is_over or conditions.get("PodScheduled") != "True":
            return None
        return cls(found["metadata"]["name"], status.get("podIP") or "", conditions.get("Ready") == "True")


class DeploymentPlace:
    """All serving pods of a target."""

    leg: Leg = "dense"

    def __init__(self, site: Site, *, hub: LocalHub) -> None:
        self.name = f"dense/{named('serving', site.name)}"
        self._site = site
        self._hub = hub
        self._clock = site.cluster.clock
        self._seen: dict[str, dict[str, Traffic]] = {}
        self._clients: dict[tuple[str, str], AdminClient] = {}

    def observe(self) -> Observed:
        """See `Place`: a version is there if every pod has it, and answers in the share that it has over all pods."""
        found = list(self._require(self._answers(lambda admin: admin.versions())).values())
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
        found = self._answers(lambda admin: admin.versions())
        loaded = {each["bundle"] for pod in found.values() for each in pod["versions"]}
        ship = changed_bytes(version, loaded, self._hub) * len(found)
        return Estimate(ship_bytes=ship, memory_bytes=2 * version.dense_bytes, seconds=1 + ship / _BYTES_PER_S)

    def prepare(self, version: Version, *, order: int) -> Shipped:
        """See `Place`."""
        rows = {name: (table.dtype, table.dim) for name, table in version.tables.items()}
        wanted = DesiredVersion(pin=version.pin, bundle=version.ref, tables=tables_of(version), rows=rows)
        ship = self.estimate(version).ship_bytes

        def add(now: Desired) -> Desired:
            others = [each for each in now.versions if each.pin != version.pin]
            return now.model_copy(update={"versions": (*others, wanted), "cube": self._site.cube_conf()})

        self._reach(add, order, about=[version.pin])
        return Shipped(ship, "base" if ship >= version.dense_bytes else "delta" if ship else "nothing")

    def check(self, version: Version) -> None:
        """See `Place`: every pod is asked."""
        for answered in self._require(self._answers(lambda admin: admin.probe(version.pin))).values():
            require_probed(self.name, version, answered)

    def switch(self, shares: Shares, *, order: int) -> None:
        """See `Place`."""

        def point(now: Desired) -> Desired:
            missing = shares.keys() - {each.pin for each in now.versions}
            if missing:
                raise NotFound(f"{self.name} does not have {', '.join(sorted(missing))}", hint="Prepare it first.")
            return now.model_copy(update={"shares": dict(shares)})

        self._reach(point, order, about=list(shares))

    def forget(self, pin: str, *, order: int) -> None:
        """See `Place`."""

        def drop(now: Desired) -> Desired:
            if pin in now.shares:
                raise Conflict(f"{self.name} answers with {pin}")
            return now.model_copy(update={"versions": tuple(each for each in now.versions if each.pin != pin)})

        self._reach(drop, order, about=[])
        # A pod that is going was not asked, and may still answer with it; rows go when this returns.
        end = self._clock.monotonic() + _GONE_S
        while self._clock.monotonic() < end and any(map(_is_leaving, self._listed())):
            self._clock.sleep(_LOOK_S)

    def watch(self) -> Health:
        """See `Place`: what all pods did together."""
        since = []
        for pod, stats in self._answers(lambda admin: admin.stats()).items():
            now = {pin: traffic_of(found) for pin, found in stats["versions"].items()}
            before, self._seen[pod] = self._seen.get(pod, {}), now
            since.append(Health({pin: traffic_since(each, before.get(pin, Traffic())) for pin, each in now.items()}))
        return Health(add_up(since))

    def _reach(self, change: Callable[[Desired], Desired], order: int, *, about: Sequence[str]) -> None:
        """Change the document and have every pod get there."""
        desired = self._write(change, order)
        begun = self._clock.monotonic()
        with ordered(order):
            while True:
                waiting = self._waiting(desired, about, seconds=self._clock.monotonic() - begun)
                if not waiting:
                    return
                if self._clock.monotonic() - begun > _LOAD_S:
                    raise DeadlineExceeded(f"{self.name}: after {_LOAD_S:.0f} s not there yet: {'; '.join(waiting)}")
                self._clock.sleep(_LOOK_S)

    def _write(self, change: Callable[[Desired], Desired], order: int) -> Desired:
        """Write the document under an order; of two who write at the same time one writes again."""
        name = named("serving", self._site.name, dotted="state")
        for _ in range(_WRITES):
            found = self._site.cluster.get(Kind.CONFIG_MAP, name)
            if found is None:
                raise NotFound(f"{self.name} is not there", hint=f"Bring it up: cloudedge up {self._site.name}")
            text = (found.get("data") or {}).get(STATE_FILE, "")
            now = Desired.parse(text) if text else Desired()
            if now.order > order:
                raise Conflict(
                    f"{self.name}: order {order} comes after order {now.order} was written",
                    hint="Somebody else releases to this target, or the journal that numbers orders was lost.",
                )
            wanted = change(now).model_copy(update={"order": order})
            if wanted == now:
                return now
            written = wanted.model_dump_json(indent=1)
            version = found["metadata"]["resourceVersion"]
            try:
                self._site.cluster.patch(
                    Kind.CONFIG_MAP, name, {"metadata": {"resourceVersion": version}, "data": {STATE_FILE: written}}
                )
            except Conflict:
                continue  # somebody wrote meanwhile: look again
            return wanted
        raise Unavailable(f"{self.name}: ConfigMap {name} changes all the time")

    def _waiting(self, desired: Desired, about: Sequence[str], *, seconds: float) -> list[str]:
        """Give the document to every pod that does not have it; say who is not there yet.

        Raises:
            CloudEdgeError: a pod cannot get there; says why.
        """

        def give(pod: _Pod) -> str:
            admin = self._admin(pod)
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

        pods = self._pods()
        if not pods:
            return ["there is no pod"]
        return [found for found in self._each(pods, give) if found]

    def _answers(self, ask: Callable[[AdminClient], _Found]) -> dict[str, _Found]:
        """Ask every pod that takes requests, and those others that answer.

        Raises:
            Unavailable: one that takes requests does not answer.
        """

        def one(pod: _Pod) -> tuple[str, _Found | None]:
            try:
                return pod.name, ask(self._admin(pod))
            except Unavailable:
                if pod.is_ready and any(each == pod for each in self._pods()):
                    raise
                return pod.name, None

        return {name: found for name, found in self._each(self._pods(), one) if found is not None}

    def _require(self, answers: dict[str, _Found]) -> dict[str, _Found]:
        """Return what pods said.

        Raises:
            Unavailable: none said anything, so that nobody knows.
        """
        if not answers:
            raise Unavailable(f"{self.name}: no pod answers", hint=f"kubectl get pods -l {self._selector}")
        return answers

    def _each(self, pods: Sequence[_Pod], do: Callable[[_Pod], _Found]) -> list[_Found]:
        if not pods:
            return []
        with ThreadPoolExecutor(min(16, len(pods)), thread_name_prefix="serving-pods") as pool:
            # Orders are numbered per thread: each call takes the number along.
            return list(pool.map(_with_context(do), pods))

    @property
    def _selector(self) -> str:
        return selector(labels("serving", self._site.name))

    def _listed(self) -> list[Object]:
        return self._site.cluster.list(Kind.POD, selector=self._selector)

    def _pods(self) -> list[_Pod]:
        found = [_Pod.read(each) for each in self._listed()]
        pods = [pod for pod in found if pod is not None]
        names = {pod.name for pod in pods}
        for key in [key for key in list(self._clients) if key[0] not in names]:
            gone = self._clients.pop(key, None)
            if gone is not None:
                gone.close()
                self._site.reach.forget(key[0])
        return pods

    def _admin(self, pod: _Pod) -> AdminClient:
        address = self._site.reach.address(pod.name, SERVING_ADMIN, ip=pod.ip)
        if (pod.name, address) not in self._clients:
            self._clients[pod.name, address] = AdminClient(address, token=self._site.token, timeout_s=_ASK_S)
        return self._clients[pod.name, address]


def _is_leaving(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _with_context(do: Callable[[_Pod], _Found]) -> Callable[[_Pod], _Found]:
    context = contextvars.copy_context()
    return lambda pod: context.copy().run(do, pod)


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
