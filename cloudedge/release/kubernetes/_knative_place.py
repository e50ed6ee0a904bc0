"""A PaddleService as one place: a default, a canary, and the percentage of requests that the canary gets.

Two versions fit, each in a revision of its own, and no pod ever has both. The way of a release through them:

    load        the new version comes up as canary with no requests; if the canary was live, it first becomes the
                default, by the promote recipe
    canary      the canary gets its percentage
    activate    the canary gets everything; the version before stays as default
    roll back   the canary goes, and the default answers as before

The first release is the default at once: a PaddleService without a version cannot exist, so it answers from the moment
it is ready, before its probes are asked; if they fail it is deleted. The Knative Service holds the actual state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cloudedge.bundle import Bundle
from cloudedge.errors import Conflict, NotFound
from cloudedge.hub import LocalHub
from cloudedge.release.core import Estimate, Health, Leg, Loaded, Observed, Shares, Shipped, Version
from cloudedge.release.kubernetes._cluster_state import Site
from cloudedge.release.kubernetes._names import named
from cloudedge.release.kubernetes._pods import Pods
from cloudedge.release.kubernetes._revision import Carried, endpoint_of, service_of
from cloudedge.release.places import loaded_state, require_probed
from cloudedge.serving import AdminClient
from cloudedge.serving.knative import Endpoint, PaddleServices, ServiceStatus

__all__ = ["KnativePlace"]

_BYTES_PER_S = 100e6
_START_S = 60.0
"""The delay before Knative first asks whether a pod of a PaddleService is ready."""
_ALL = 100
Role = Literal["default", "canary"]
_ROLES: tuple[Role, ...] = ("default", "canary")


class KnativePlace:
    """The PaddleService of a target."""

    leg: Leg = "dense"

    def __init__(self, site: Site, *, hub: LocalHub) -> None:
        self._service = named("serving", site.name)
        self.name = f"dense/{self._service}"
        self._site = site
        self._hub = hub
        self._pods = {
            role: Pods(
                site,
                f"PaddleService={self._service},serving.knative.dev/revision={self._service}-{role}",
                place=self.name,
            )
            for role in _ROLES
        }

    def observe(self) -> Observed:
        """See `Place`: before the first release nothing is loaded."""
        status = self._status()
        if status is None:
            return Observed(self.name, self.leg)
        carried, services = self._carried(status), self._services()
        versions: dict[str, Loaded] = {}
        for role, each in carried.items():
            state, why = services.revision(self._service, role)
            if each.pin not in versions or state == "ready":
                versions[each.pin] = Loaded(state=loaded_state(state), error=why)
        active = _active(status, carried)
        live = max(active, key=lambda pin: active[pin], default="")
        ref = next((each.ref for each in carried.values() if each.pin == live), "")
        return Observed(
            self.name,
            self.leg,
            versions=versions,
            active=active,
            signature=Bundle.open(ref, hub=self._hub).signature if ref else None,
        )

    def estimate(self, version: Version) -> Estimate:
        """See `Place`: every new pod fetches the whole program."""
        knative = self._site.config.pods and self._site.config.pods.serving.knative
        ship = version.dense_bytes * max(1, knative.min_scale if knative else 1)
        return Estimate(ship_bytes=ship, seconds=_START_S + ship / _BYTES_PER_S)

    def load(self, version: Version, *, order: int) -> Shipped:
        """See `Place`."""
        services, shipped = self._services(order), Shipped(self.estimate(version).ship_bytes, "base")
        endpoint = endpoint_of(version, self._site.config, cube=self._site.cube_conf())
        service = service_of(self._site.name, self._site.config, endpoint)
        status = self._status()
        if status is None:
            services.deploy(service)
            return shipped
        services.claim(self._service)
        if not services.is_like(service):
            raise Conflict(
                f"{self.name} has other resources or another scale than cloudedge.yaml says",
                hint="A change rebuilds both revisions at once and interrupts service. If that is acceptable, run "
                "`cloudedge down`, `cloudedge up` and `cloudedge resume`.",
            )
        carried = self._carried(status)
        if any(each.is_for(version) for each in carried.values()):
            services.wait(self._service)
            return Shipped(0, "nothing")
        if "canary" in carried:
            self._free(status, services)
        services.canary(self._service, endpoint, 0)
        return shipped

    def verify(self, version: Version) -> None:
        """See `Place`: asks every pod of its revision."""
        status = self._status()
        for role, each in self._carried(status).items() if status is not None else ():
            if each.pin == version.pin:
                found = self._pods[role].answers(lambda admin: _probed(admin, version.pin))
                for answered in self._pods[role].require(found).values():
                    require_probed(self.name, version, answered)
                return
        raise NotFound(f"{self.name} does not have {version.pin}", hint="Load it first.")

    def activate(self, shares: Shares, *, order: int) -> None:
        """See `Place`: shares are rounded to whole percents."""
        services, status = self._services(order), self._status()
        if status is None:
            if shares:
                raise NotFound(f"{self.name} is not there", hint="Load it first.")
            return
        services.claim(self._service)
        if not shares:
            services.delete(self._service)
            return
        pins = {role: each.pin for role, each in self._carried(status).items()}
        missing = shares.keys() - pins.values()
        if missing:
            raise NotFound(f"{self.name} does not have {', '.join(sorted(missing))}", hint="Load it first.")
        if "canary" in pins and pins["canary"] in shares:
            percent = _percent(shares[pins["canary"]])
            if status.canary_percent == percent:
                services.wait(self._service)
            else:
                services.shift(self._service, percent)
        elif "canary" in pins:
            services.rollback(self._service)
        else:
            services.wait(self._service)

    def unload(self, pin: str, *, order: int) -> None:
        """See `Place`."""
        services, status = self._services(order), self._status()
        if status is None:
            return
        services.claim(self._service)
        carried = self._carried(status)
        roles = [role for role, each in carried.items() if each.pin == pin]
        if pin in _active(status, carried):
            raise Conflict(f"{self.name} answers with {pin}")
        if "canary" in roles:
            services.rollback(self._service)
        elif roles and "canary" in carried:
            services.promote(self._service)  # the canary is live: it becomes the default
        elif roles:
            services.delete(self._service)  # it never answered
        for pods in self._pods.values():
            pods.wait_left()  # a shard may unload the rows once this returns

    def watch(self) -> Health:
        """See `Place`: the traffic of the pods that run; without pods there is none."""
        return Health({pin: each for pods in self._pods.values() for pin, each in pods.watch().traffic.items()})

    def _free(self, status: ServiceStatus, services: PaddleServices) -> None:
        """Free the canary for another version.

        Raises:
            Conflict: it answers a share of requests, and so does the default.
        """
        if status.canary_percent == _ALL:
            services.promote(self._service)
        elif status.canary_percent == 0:
            services.rollback(self._service)
        else:
            raise Conflict(
                f"{self.name}: the canary answers {status.canary_percent} % of requests",
                hint="It was changed by hand. Give the canary 0 or 100 %.",
            )

    def _services(self, order: int = 0) -> PaddleServices:
        return self._site.paddle_services(order)

    def _status(self) -> ServiceStatus | None:
        try:
            return self._services().status(self._service)
        except NotFound:
            return None

    def _carried(self, status: ServiceStatus) -> dict[Role, Carried]:
        """Return the version of each revision.

        Raises:
            Conflict: a revision runs what no release put there.
        """
        endpoints: dict[Role, Endpoint | None] = {"default": status.default, "canary": status.canary}
        found: dict[Role, Carried] = {}
        for role, endpoint in endpoints.items():
            if endpoint is not None:
                carried = Carried.read(endpoint)
                if carried is None:
                    raise Conflict(
                        f"{self.name}: revision {self._service}-{role} runs what no release put there",
                        hint="Give the target another name or another namespace.",
                    )
                found[role] = carried
        return found


def _probed(admin: AdminClient, pin: str) -> Mapping[str, Any] | None:
    """Ask a pod its probes; None for a pod of an earlier revision of the same name."""
    if pin not in {each["pin"] for each in admin.versions()["versions"]}:
        return None
    return admin.probe(pin)


def _active(status: ServiceStatus, carried: Mapping[Role, Carried]) -> dict[str, float]:
    found: dict[str, float] = {}
    for role, each in carried.items():
        percent = status.traffic.get(f"{status.name}-{role}", 0)
        if percent:
            found[each.pin] = found.get(each.pin, 0.0) + percent / _ALL
    return found


def _percent(share: float) -> int:
    """Return a share in whole percents; a share between 0 and 1 stays between 1 and 99."""
    return round(share * _ALL) if share in (0.0, 1.0) else min(max(round(share * _ALL), 1), _ALL - 1)
