"""Deploying, trying, promoting and taking back, in the one order in which a PaddleService keeps answering.

Revision names are fixed, and Knative refuses a template that changes under its name. The controller deletes the
revision first and is refused afterwards, so a plain change of `default` takes the service down and keeps it down. What
works: try the new version as canary, send it everything, rebuild `default` behind it, and then let the canary go. The
status of the PaddleService itself is never written; the Knative Service says what is so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from cloudedge.errors import Conflict, InputError, NotFound, Rejected, Unavailable
from cloudedge.findings import refuse_errors
from cloudedge.kube import Kind, Object
from cloudedge.serving.knative._parts import Endpoint, check_endpoint
from cloudedge.serving.knative._service import PaddleService
from cloudedge.serving.knative._status import ALL, ServiceStatus, has_failed, readiness, shares, split

if TYPE_CHECKING:
    from cloudedge.kube import Cluster

__all__ = ["PaddleServices"]

_READY_S = 900.0
_HALF = 50
"""What a canary gets if nobody said how much."""
REPLACED = "cloudedge/replaced"
"""The annotation with the image a promotion replaced: from the moment the default is changed to the next canary."""
ORDER = "cloudedge/order"
"""The annotation with the number of the last order, where whoever changes the service numbers them."""
_WRITES = 8


class PaddleServices:
    """The services of one namespace.

    Args:
        cluster: Where.
        timeout_s: How long a revision may take to get ready.
        kind: PaddleService with its group; the cluster's own if left out.
        order: The number that every change carries: a service refuses one that is lower than the last. 0: none.

    Raises:
        NotFound: the cluster has no PaddleService, or no Knative.
    """

    def __init__(
        self, cluster: Cluster, *, timeout_s: float = _READY_S, kind: Kind | None = None, order: int = 0
    ) -> None:
        found = kind or cluster.capabilities().paddle_service
        if found is None or not cluster.capabilities().has(Kind.KNATIVE_SERVICE):
            missing = "PaddleService" if found is None else "Knative Serving"
            raise NotFound(f"{cluster.address} has no {missing}", hint="cloudedge doctor says how to install it.")
        self._cluster = cluster
        self.kind = found
        """PaddleService, in the group of this cluster's operator."""
        self._timeout_s = timeout_s
        self._order = order

    def deploy(self, service: PaddleService, *, dry_run: bool = False) -> ServiceStatus | Object:
        """Bring up a service that is not there yet, and wait until it answers; the same again only waits.

        Raises:
            Conflict: another one of that name is there; says how it is changed.
            Rejected: its revision cannot get ready.
        """
        if service.namespace not in {"", self._cluster.namespace}:
            raise InputError(
                f"{service.name} belongs to the namespace {service.namespace}, and this connection to "
                f"{self._cluster.namespace}",
                hint="Connect to that namespace.",
            )
        manifest = service.manifest(self.kind)
        if dry_run:
            return self._cluster.create(manifest, dry_run=True)
        there = self._cluster.get(self.kind, service.name)
        if there is None:
            if self._order:
                manifest["metadata"].setdefault("annotations", {})[ORDER] = str(self._order)
            self._cluster.create(manifest)
        elif {**there["spec"], **manifest["spec"]} != there["spec"] or there["spec"].get("canary") not in (
            None,
            service.canary and service.canary.manifest(),
        ):
            raise Conflict(
                f"PaddleService {service.name!r} is there",
                hint="A changed default would take it down: try the new version with canary(), then promote().",
            )
        status = self._settled(service.name)
        if service.canary is not None and status.canary is None:
            return self.canary(service.name, service.canary, service.canary_percent)
        return status

    def canary(self, name: str, endpoint: Endpoint, percent: int) -> ServiceStatus:
        """Let a new version answer a share of requests; 0 only brings it up.

        Raises:
            InputError: the share is none, or the version could not run.
        """
        refuse_errors(f"the canary of {name!r}", check_endpoint(endpoint, "spec.canary"))
        self._ready(name)
        self._patch(name, {"canary": endpoint.manifest(), "canaryTrafficPercent": _percent(percent)}, replaced=None)
        return self._settled(name)

    def shift(self, name: str, percent: int) -> ServiceStatus:
        """Give the canary another share. Its revision is rebuilt meanwhile and `default` answers everything.

        Raises:
            Conflict: there is no canary.
        """
        self._with_canary(name)
        self._patch(name, {"canaryTrafficPercent": _percent(percent)})
        return self._settled(name)

    def promote(self, name: str) -> ServiceStatus:
        """Make the canary the default; may be run again wherever it stopped, and once more when it is done.

        Raises:
            Conflict: there is no canary, and none was promoted.
        """
        found = self._get(name)
        replaced = _replaced(found)
        if replaced and not found["spec"].get("canary"):
            return self._settled(name)  # all that was left to do is to wait
        canary = self._with_canary(name)
        if self._traffic(name) != split(name, ALL):
            self.shift(name, ALL)
        default = found["spec"]["default"]
        replaced = replaced or Endpoint.from_manifest(default).image
        if default != canary.manifest():
            # While the canary answers everything, the default can be rebuilt under nobody's eyes.
            self._patch(name, {"default": canary.manifest()}, replaced=replaced)
        # Also if it was changed before: whoever stopped then did not see it get ready.
        self._settled(name)
        self._patch(name, _NO_CANARY, replaced=replaced)
        return self._settled(name)

    def rollback(self, name: str) -> ServiceStatus:
        """Take the canary away; the default is what it was before the canary came.

        Raises:
            Conflict: there is no canary, or a promotion has changed the default already.
        """
        self._with_canary(name)
        replaced = _replaced(self._get(name))
        if replaced:
            raise Conflict(
                f"a promotion of {name} stopped after it had changed the default: without the canary the new version "
                f"stays, and {replaced} does not come back",
                hint="Run promote() to its end, then bring the old version up with canary() and promote() it.",
                replaced=replaced,
            )
        self._patch(name, _NO_CANARY)
        return self._settled(name)

    def is_like(self, service: PaddleService) -> bool:
        """Tell whether a service has the resources, the scale and the volumes that another one would get.

        Raises:
            NotFound: there is no such service.
        """
        there, wanted = self._get(service.name)["spec"], service.manifest(self.kind)["spec"]
        del wanted["default"]
        return bool({**there, **wanted} == there)

    def claim(self, name: str) -> None:
        """Write this order's number down without a change: from now on a lower one changes nothing.

        Raises:
            NotFound: there is no such service.
            Conflict: a higher one was here.
        """
        self._patch(name, {})

    def revision(self, name: str, role: Literal["default", "canary"]) -> tuple[str, str]:
        """Say whether a revision runs what the service asks for: ready, loading or failed, and why.

        Raises:
            NotFound: there is no such service, or it has no canary.
        """
        endpoint = self._get(name)["spec"].get(role)
        if not endpoint:
            raise NotFound(f"{name} has no {role}")
        try:
            runs = self._runs(f"{name}-{role}", Endpoint.from_manifest(endpoint))
        except Rejected as failed:
            return "failed", failed.message
        return ("ready", "") if runs else ("loading", "")

    def wait(self, name: str) -> ServiceStatus:
        """Wait until what is asked for runs and gets the requests it should.

        Raises:
            NotFound: there is no such service.
            Rejected: a revision cannot get ready.
            DeadlineExceeded: it is not; with state and events.
        """
        return self._settled(name)

    def delete(self, name: str, *, wait_s: float = 300.0) -> None:
        """Remove a service and wait until Knative's part of it is gone too."""
        self._cluster.delete(self.kind, name, wait_s=wait_s)
        # The controller's owner reference takes it along; until then a new one of that name would get its status.
        self._cluster.wait(
            Kind.KNATIVE_SERVICE,
            name,
            lambda now: now is None,
            timeout_s=wait_s,
            what=f"removing the Knative Service {name}",
        )

    def status(self, name: str) -> ServiceStatus:
        """Say what answers, in which shares, and what is not ready.

        Raises:
            NotFound: there is no such service.
        """
        spec = self._get(name)["spec"]
        below = self._cluster.get(Kind.KNATIVE_SERVICE, name) or {}
        status = below.get("status") or {}
        ready, reason = readiness(below)
        canary = spec.get("canary")
        return ServiceStatus(
            name=name,
            ready=ready,
            reason=reason,
            url=status.get("url", ""),
            address=(status.get("address") or {}).get("url", ""),
            traffic=shares(status),
            default=Endpoint.from_manifest(spec["default"]),
            canary=Endpoint.from_manifest(canary) if canary else None,
            canary_percent=spec.get("canaryTrafficPercent"),
        )

    def _settled(self, name: str) -> ServiceStatus:
        """Wait until what is asked for runs and gets the requests it should; a status of before does not count.

        Raises:
            Rejected: a revision cannot get ready.
            DeadlineExceeded: it is not; with state and events.
        """
        spec = self._get(name)["spec"]
        traffic = split(name, spec.get("canaryTrafficPercent", _HALF) if spec.get("canary") else 0)
        wanted = {
            f"{name}-{role}": Endpoint.from_manifest(spec[role]) for role in ("default", "canary") if spec.get(role)
        }

        def settled(now: Object | None) -> bool:
            if now is None:
                return False
            run = all(self._runs(revision, endpoint) for revision, endpoint in wanted.items())
            return run and readiness(now)[0] and shares(now.get("status") or {}) == traffic

        what = f"waiting for {name} to send {traffic}"
        self._cluster.wait(
            Kind.KNATIVE_SERVICE, name, settled, timeout_s=self._timeout_s, what=what, pods=f"PaddleService={name}"
        )
        return self.status(name)

    def _runs(self, revision: str, endpoint: Endpoint) -> bool:
        """Tell whether a revision is ready and runs this; its name alone says nothing, since it never changes.

        The command counts too: a model pushed anew changes what the same image is told to fetch, and a default that
        was not rebuilt yet must not be taken for the new one.

        Raises:
            Rejected: it runs this and cannot get ready.
        """
        found = self._cluster.get(Kind.KNATIVE_REVISION, revision) or {}
        container = ((found.get("spec") or {}).get("containers") or [{}])[0]
        told = [*(container.get("command") or ()), *(container.get("args") or ())]
        if container.get("image") != endpoint.image or (endpoint.arg and endpoint.arg not in told):
            return False
        ready, reason = readiness(found)
        if has_failed(found):
            raise Rejected(
                f"revision {revision} cannot get ready: {reason}",
                hint="The version before answers as long as it has a share; rollback() takes this one away.",
            )
        return ready

    def _traffic(self, name: str) -> dict[str, int]:
        return shares((self._cluster.get(Kind.KNATIVE_SERVICE, name) or {}).get("status") or {})

    def _get(self, name: str) -> Object:
        found = self._cluster.get(self.kind, name)
        if found is None:
            raise NotFound(f"there is no PaddleService {name!r} in {self._cluster.namespace}")
        return found

    def _ready(self, name: str) -> None:
        """Refuse to go on from a state in which the controller loses a revision for good."""
        self._get(name)
        ready, reason = readiness(self._cluster.get(Kind.KNATIVE_SERVICE, name) or {})
        if not ready:
            raise Conflict(
                f"{name} is not ready: {reason}", hint="A canary beside a default that is not there stays alone."
            )

    def _with_canary(self, name: str) -> Endpoint:
        canary = self._get(name)["spec"].get("canary")
        if not canary:
            raise Conflict(f"{name} has no canary", hint="Bring one up with canary() first.")
        return Endpoint.from_manifest(canary)

    def _patch(self, name: str, spec: Mapping[str, Any], *, replaced: str | None = "") -> None:
        """Change a service; `replaced` is what its annotation says from now on, None for nothing, "" as it is."""
        noted: dict[str, Any] = {} if replaced == "" else {REPLACED: replaced}
        change: dict[str, Any] = {"spec": dict(spec)} if spec else {}
        if not self._order:
            self._cluster.patch(self.kind, name, change | ({"metadata": {"annotations": noted}} if noted else {}))
            return
        noted[ORDER] = str(self._order)
        for _ in range(_WRITES):
            metadata = self._get(name)["metadata"]
            last = int((metadata.get("annotations") or {}).get(ORDER) or 0)
            if last > self._order:
                raise Conflict(
                    f"PaddleService {name}: order {self._order} comes after order {last}",
                    hint="Somebody else releases to this target, or the journal that numbers orders was lost.",
                )
            # Bound to what was read: a call that is late in the network changes nothing once somebody else has.
            bound = {"metadata": {"annotations": noted, "resourceVersion": metadata["resourceVersion"]}}
            try:
                self._cluster.patch(self.kind, name, change | bound)
            except Conflict:
                continue  # somebody wrote meanwhile: look again
            return
        raise Unavailable(f"PaddleService {name} changes all the time")


_NO_CANARY = {"canary": None, "canaryTrafficPercent": None}


def _replaced(service: Object) -> str:
    return str((service["metadata"].get("annotations") or {}).get(REPLACED) or "")


def _percent(value: int) -> int:
    if not 0 <= value <= ALL:
        raise InputError(f"a share of {value} % is not between 0 and 100")
    return value
