"""Changes to PaddleServices: deploy, canary, promote and roll back, in the one order that keeps a service answering.

Revision names are fixed, and Knative refuses a template that changes under its name. The controller deletes the
revision first and is refused afterwards, so a plain change of `default` takes the service down and keeps it down. This
order works: start the new version as canary, send it everything, rebuild `default` behind it, then remove the canary.
The controller never writes the status of the PaddleService itself; the Knative Service has the true state.
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
"""The default share of a canary."""
REPLACED = "cloudedge/replaced"
"""The annotation with the image that a promotion replaced: from the change of the default to the next canary."""
ORDER = "cloudedge/order"
"""The annotation with the number of the last order, if orders are numbered."""
_WRITES = 8


class PaddleServices:
    """The services of one namespace.

    Args:
        cluster: The cluster.
        timeout_s: Longest time for a revision to get ready.
        kind: PaddleService with its group; the cluster's own if left out.
        order: The number of every change: a service refuses a number lower than the last. 0: unnumbered.

    Raises:
        NotFound: The cluster has no PaddleService, or no Knative.
    """

    def __init__(
        self, cluster: Cluster, *, timeout_s: float = _READY_S, kind: Kind | None = None, order: int = 0
    ) -> None:
        found = kind or cluster.capabilities().paddle_service
        if found is None or not cluster.capabilities().has(Kind.KNATIVE_SERVICE):
            missing = "PaddleService" if found is None else "Knative Serving"
            raise NotFound(f"{cluster.address} has no {missing}", hint="Run `cloudedge doctor` for installation steps.")
        self._cluster = cluster
        self.kind = found
        """PaddleService, in the group of this cluster's operator."""
        self._timeout_s = timeout_s
        self._order = order

    def deploy(self, service: PaddleService, *, dry_run: bool = False) -> ServiceStatus | Object:
        """Create a service and wait until it answers; for an identical existing one, only wait.

        Raises:
            Conflict: A different service of that name exists; the hint explains how to change it.
            Rejected: Its revision cannot get ready.
        """
        if service.namespace not in {"", self._cluster.namespace}:
            raise InputError(
                f"{service.name} belongs to the namespace {service.namespace}, this connection to "
                f"{self._cluster.namespace}",
                hint="Connect to that namespace.",
            )
        manifest = service.manifest(self.kind)
        if dry_run:
            return self._cluster.create(manifest, dry_run=True)
        existing = self._cluster.get(self.kind, service.name)
        if existing is None:
            if self._order:
                manifest["metadata"].setdefault("annotations", {})[ORDER] = str(self._order)
            self._cluster.create(manifest)
        elif {**existing["spec"], **manifest["spec"]} != existing["spec"] or existing["spec"].get("canary") not in (
            None,
            service.canary and service.canary.manifest(),
        ):
            raise Conflict(
                f"PaddleService {service.name!r} exists and differs",
                hint="A changed default would take it down: start the new version with `canary()`, then `promote()`.",
            )
        status = self._settled(service.name)
        if service.canary is not None and status.canary is None:
            return self.canary(service.name, service.canary, service.canary_percent)
        return status

    def canary(self, name: str, endpoint: Endpoint, percent: int) -> ServiceStatus:
        """Start a new version that answers a share of requests; 0 only starts it.

        Raises:
            InputError: The share is not a percentage, or the version could not run.
        """
        refuse_errors(f"the canary of {name!r}", check_endpoint(endpoint, "spec.canary"))
        self._ready(name)
        self._patch(name, {"canary": endpoint.manifest(), "canaryTrafficPercent": _percent(percent)}, replaced=None)
        return self._settled(name)

    def shift(self, name: str, percent: int) -> ServiceStatus:
        """Give the canary another share. Its revision is rebuilt meanwhile and `default` answers everything.

        Raises:
            Conflict: There is no canary.
        """
        self._with_canary(name)
        self._patch(name, {"canaryTrafficPercent": _percent(percent)})
        return self._settled(name)

    def promote(self, name: str) -> ServiceStatus:
        """Make the canary the default; idempotent, and resumes where an earlier run stopped.

        Raises:
            Conflict: There is no canary, and none was promoted.
        """
        found = self._get(name)
        replaced = _replaced(found)
        if replaced and not found["spec"].get("canary"):
            return self._settled(name)  # only the wait is left
        canary = self._with_canary(name)
        if self._traffic(name) != split(name, ALL):
            self.shift(name, ALL)
        default = found["spec"]["default"]
        replaced = replaced or Endpoint.from_manifest(default).image
        if default != canary.manifest():
            # While the canary answers everything, no request meets the rebuild of the default.
            self._patch(name, {"default": canary.manifest()}, replaced=replaced)
        # Also after an earlier change: the run that stopped then did not see it get ready.
        self._settled(name)
        self._patch(name, _NO_CANARY, replaced=replaced)
        return self._settled(name)

    def rollback(self, name: str) -> ServiceStatus:
        """Remove the canary; the default is as before the canary.

        Raises:
            Conflict: There is no canary, or a promotion has changed the default already.
        """
        self._with_canary(name)
        replaced = _replaced(self._get(name))
        if replaced:
            raise Conflict(
                f"a promotion of {name} stopped after it had changed the default: without the canary the new version "
                f"stays, and {replaced} does not come back",
                hint="Finish with `promote()`, then start the old version with `canary()` and `promote()` it.",
                replaced=replaced,
            )
        self._patch(name, _NO_CANARY)
        return self._settled(name)

    def is_like(self, service: PaddleService) -> bool:
        """Return True if the existing service has the resources, the scale and the volumes of the given one.

        Raises:
            NotFound: There is no such service.
        """
        existing, wanted = self._get(service.name)["spec"], service.manifest(self.kind)["spec"]
        del wanted["default"]
        return bool({**existing, **wanted} == existing)

    def claim(self, name: str) -> None:
        """Record this order's number without a change: from now on the service refuses lower ones.

        Raises:
            NotFound: There is no such service.
            Conflict: A higher number is recorded.
        """
        self._patch(name, {})

    def revision(self, name: str, role: Literal["default", "canary"]) -> tuple[str, str]:
        """Return the state of a revision (ready, loading or failed) and the reason of a failure.

        Raises:
            NotFound: There is no such service, or it has no canary.
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
        """Wait until the specified revisions run and get their shares of the requests.

        Raises:
            NotFound: There is no such service.
            Rejected: A revision cannot get ready.
            DeadlineExceeded: The time-out passed; with state and events.
        """
        return self._settled(name)

    def delete(self, name: str, *, wait_s: float = 300.0) -> None:
        """Remove a service and wait until its Knative Service is gone too."""
        self._cluster.delete(self.kind, name, wait_s=wait_s)
        # The owner reference deletes it; until then a new service of that name would get its status.
        self._cluster.wait(
            Kind.KNATIVE_SERVICE,
            name,
            lambda now: now is None,
            timeout_s=wait_s,
            what=f"removing the Knative Service {name}",
        )

    def status(self, name: str) -> ServiceStatus:
        """Return the revisions that answer, their shares, and the reason if the service is not ready.

        Raises:
            NotFound: There is no such service.
        """
        spec = self._get(name)["spec"]
        knative_service = self._cluster.get(Kind.KNATIVE_SERVICE, name) or {}
        status = knative_service.get("status") or {}
        ready, reason = readiness(knative_service)
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
        """Wait until the specified revisions run and get their shares; an outdated status does not count.

        Raises:
            Rejected: A revision cannot get ready.
            DeadlineExceeded: The time-out passed; with state and events.
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
        """Return True if a revision is ready and runs this container; its name alone proves nothing, as it is fixed.

        The command counts too: a newly pushed model changes the command of the same image, and a default that is not
        rebuilt yet must not be taken for the new one.

        Raises:
            Rejected: The revision runs this container and cannot get ready.
        """
        found = self._cluster.get(Kind.KNATIVE_REVISION, revision) or {}
        container = ((found.get("spec") or {}).get("containers") or [{}])[0]
        command = [*(container.get("command") or ()), *(container.get("args") or ())]
        if container.get("image") != endpoint.image or (endpoint.arg and endpoint.arg not in command):
            return False
        ready, reason = readiness(found)
        if has_failed(found):
            raise Rejected(
                f"revision {revision} cannot get ready: {reason}",
                hint="The previous version answers as long as it has a share; remove this one with `rollback()`.",
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
        """Refuse a state in which the controller would lose a revision for good."""
        self._get(name)
        ready, reason = readiness(self._cluster.get(Kind.KNATIVE_SERVICE, name) or {})
        if not ready:
            raise Conflict(
                f"{name} is not ready: {reason}", hint="Wait for the default: without it a canary stays alone."
            )

    def _with_canary(self, name: str) -> Endpoint:
        canary = self._get(name)["spec"].get("canary")
        if not canary:
            raise Conflict(f"{name} has no canary", hint="Start one with `canary()` first.")
        return Endpoint.from_manifest(canary)

    def _patch(self, name: str, spec: Mapping[str, Any], *, replaced: str | None = "") -> None:
        """Change a service; `replaced` sets its annotation, None removes it, "" leaves it."""
        annotations: dict[str, Any] = {} if replaced == "" else {REPLACED: replaced}
        change: dict[str, Any] = {"spec": dict(spec)} if spec else {}
        if not self._order:
            metadata = {"metadata": {"annotations": annotations}} if annotations else {}
            self._cluster.patch(self.kind, name, change | metadata)
            return
        annotations[ORDER] = str(self._order)
        for _ in range(_WRITES):
            metadata = self._get(name)["metadata"]
            last = int((metadata.get("annotations") or {}).get(ORDER) or 0)
            if last > self._order:
                raise Conflict(
                    f"PaddleService {name}: order {self._order} comes after order {last}",
                    hint="Another process releases to this target, or the journal that numbers orders was lost. "
                    "In that case, run `cloudedge journal rebuild TARGET`.",
                )
            # Bound to the version read: a call that is late in the network changes nothing after another write.
            bound = {"metadata": {"annotations": annotations, "resourceVersion": metadata["resourceVersion"]}}
            try:
                self._cluster.patch(self.kind, name, change | bound)
            except Conflict:
                continue  # another process wrote meanwhile: read again
            return
        raise Unavailable(f"PaddleService {name} changes all the time")


_NO_CANARY = {"canary": None, "canaryTrafficPercent": None}


def _replaced(service: Object) -> str:
    return str((service["metadata"].get("annotations") or {}).get(REPLACED) or "")


def _percent(value: int) -> int:
    if not 0 <= value <= ALL:
        raise InputError(f"a share of {value} % is not between 0 and 100")
    return value
