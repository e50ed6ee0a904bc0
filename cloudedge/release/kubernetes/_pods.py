"""Calls to the serving pods of a target: every pod that takes requests has to answer, a starting one may."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cloudedge.errors import Unavailable
from cloudedge.io import map_in_threads
from cloudedge.kube import Kind, Object
from cloudedge.release.core import Health, Traffic, add_up
from cloudedge.release.kubernetes._cluster_state import Site
from cloudedge.release.kubernetes._names import SERVING_ADMIN
from cloudedge.release.places import traffic_of, traffic_since
from cloudedge.serving import AdminClient

__all__ = ["Pod", "Pods"]

_GONE_S = 60.0
"""Longer than a pod's grace period; a pod that is still listed then is on a lost node."""
_LOOK_S = 0.2
_ASK_S = 10.0
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Pod:
    """A pod that answers, or soon may."""

    name: str
    ip: str
    is_ready: bool

    @classmethod
    def read(cls, found: Object) -> Pod | None:
        """Read a pod; None for one that is ending, or has no node and therefore no files yet."""
        status = found.get("status") or {}
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        is_over = status.get("phase") in ("Failed", "Succeeded")
        if found["metadata"].get("deletionTimestamp") or is_over or conditions.get("PodScheduled") != "True":
            return None
        return cls(found["metadata"]["name"], status.get("podIP") or "", conditions.get("Ready") == "True")


class Pods:
    """The serving pods that a selector finds.

    Args:
        site: The target.
        selector: Selects them among the pods of the namespace.
        place: The name of their place, for errors.
    """

    def __init__(self, site: Site, selector: str, *, place: str) -> None:
        self._site = site
        self._selector = selector
        self._place = place
        self._clock = site.cluster.clock
        self._seen: dict[str, dict[str, Traffic]] = {}
        self._clients: dict[tuple[str, str], AdminClient] = {}

    def answers(self, ask: Callable[[AdminClient], _Found | None]) -> dict[str, _Found]:
        """Ask every pod; leave out pods that answer None, and pods without requests that do not answer.

        Raises:
            Unavailable: a pod that takes requests does not answer.
        """

        def one(pod: Pod) -> tuple[str, _Found | None]:
            try:
                return pod.name, ask(self.admin(pod))
            except Unavailable:
                if pod.is_ready and any(each == pod for each in self.there()):
                    raise
                return pod.name, None

        return {name: found for name, found in self.each(self.there(), one) if found is not None}

    def require(self, answers: dict[str, _Found]) -> dict[str, _Found]:
        """Return the answers, of which there must be one.

        Raises:
            Unavailable: no pod answered.
        """
        if not answers:
            raise Unavailable(
                f"{self._place}: no pod answers", hint=f"Look at the pods with `kubectl get pods -l {self._selector}`."
            )
        return answers

    def watch(self) -> Health:
        """Return the traffic of all pods together since the last call."""
        since = []
        for pod, stats in self.answers(lambda admin: admin.stats()).items():
            now = {pin: traffic_of(found) for pin, found in stats["versions"].items()}
            before, self._seen[pod] = self._seen.get(pod, {}), now
            since.append(Health({pin: traffic_since(each, before.get(pin, Traffic())) for pin, each in now.items()}))
        return Health(add_up(since))

    def wait_left(self) -> None:
        """Wait until ending pods are gone: they are not asked any more, and may still answer requests."""
        end = self._clock.monotonic() + _GONE_S
        while self._clock.monotonic() < end and any(each["metadata"].get("deletionTimestamp") for each in self._list()):
            self._clock.sleep(_LOOK_S)

    def each(self, pods: Sequence[Pod], do: Callable[[Pod], _Found]) -> list[_Found]:
        """Call a function for each pod, in parallel."""
        # The order of a call is kept per thread: each call takes it along.
        return map_in_threads(_with_context(do), pods, 16, name="serving-pods")

    def there(self) -> list[Pod]:
        """List the pods that answer, or soon may."""
        found = [Pod.read(each) for each in self._list()]
        pods = [pod for pod in found if pod is not None]
        names = {pod.name for pod in pods}
        for key in [key for key in list(self._clients) if key[0] not in names]:
            gone = self._clients.pop(key, None)
            if gone is not None:
                gone.close()
                self._site.reach.drop(key[0])
        return pods

    def admin(self, pod: Pod) -> AdminClient:
        """Return the client of a pod's admin API."""
        address = self._site.reach.address(pod.name, SERVING_ADMIN, ip=pod.ip)
        if (pod.name, address) not in self._clients:
            self._clients[pod.name, address] = AdminClient(address, token=self._site.token, timeout_s=_ASK_S)
        return self._clients[pod.name, address]

    def _list(self) -> list[Object]:
        return self._site.cluster.list(Kind.POD, selector=self._selector)


def _with_context(do: Callable[[Pod], _Found]) -> Callable[[Pod], _Found]:
    context = contextvars.copy_context()
    return lambda pod: context.copy().run(do, pod)
