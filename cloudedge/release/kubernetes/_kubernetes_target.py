"""A target on Kubernetes: start it, end it, and make the places of its releases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from cloudedge.config import Config, TargetConfig, load
from cloudedge.cube.delivery import ArtifactCache
from cloudedge.errors import ConfigError
from cloudedge.hub import LocalHub
from cloudedge.kube import Kind, Object
from cloudedge.release.core import Layouts, Place, Shards
from cloudedge.release.kubernetes._cluster_state import Site
from cloudedge.release.kubernetes._deployment_place import DeploymentPlace
from cloudedge.release.kubernetes._knative_place import KnativePlace
from cloudedge.release.kubernetes._names import CUBE_PORT, SERVING_PORT, Part, labels, named, selector
from cloudedge.release.kubernetes._shard_place import PodShardPlace
from cloudedge.release.places import Dispatch, shard_replica

__all__ = ["Standing", "down", "layouts", "manifests", "places", "up"]


@dataclass(frozen=True)
class Standing:
    """A target that is up: the addresses of its places inside the cluster."""

    namespace: str
    places: dict[str, str]
    notices: tuple[str, ...] = ()
    """What `up` could not do, and what the operator may do about it."""


def up(name: str, *, config: Config | None = None, within_s: float = 120.0) -> Standing:
    """Start a target's pods; what is there already stays as it is.

    Returns when every pod runs. None is ready before the first release: there is no version to answer with.

    Raises:
        ConfigError: there is no such target, or it lacks something.
        DeadlineExceeded: pods do not come up; the message has the cluster's reasons.
    """
    site = _site(name, config)
    try:
        site.apply()
        for kind, component in ((Kind.STATEFUL_SET, "cube"), (Kind.DEPLOYMENT, "serving")):
            mine = selector(labels(component, name))
            for each in site.cluster.list(kind, selector=mine):
                _wait_running(site, kind, each["metadata"]["name"], within_s)
        found = {
            part.place(r): f"{part.pod(name, r)}:{CUBE_PORT}" for part in site.parts() for r in range(part.replicas)
        }
        if site.config.dense:
            port = "" if site.is_knative else f":{SERVING_PORT}"
            found[f"dense/{named('serving', name)}"] = f"{named('serving', name)}{port}"
        return Standing(site.cluster.namespace, found, tuple(site.notices))
    finally:
        site.reach.close()


def down(name: str, *, config: Config | None = None, everything: bool = False, dry_run: bool = False) -> list[str]:
    """End a target's pods; volumes, addresses and the versions that serving shall have stay for the next `up`.

    Args:
        name: The target's name.
        config: The configuration; the one that is found if left out.
        everything: Delete those, too.
        dry_run: Only list what would be deleted.

    Returns:
        The objects that were deleted, or would be.
    """
    site = _site(name, config)
    try:
        owned = site.owned(everything=everything)
        if not dry_run:
            site.delete(owned)
        return [f"{kind.kind}/{each}" for kind, each in owned]
    finally:
        site.reach.close()


def manifests(name: str, *, config: Config | None = None) -> list[Object]:
    """Return the objects that `up` would apply, without the token."""
    site = _site(name, config)
    try:
        return [{**each, "data": {}} if each["kind"] == "Secret" else each for each in site.plan()]
    finally:
        site.reach.close()


def places(name: str, section: TargetConfig) -> Sequence[Place]:
    """Make the places of a target on Kubernetes.

    Raises:
        NotFound: it was never brought up.
    """
    site, hub = Site(name, section), LocalHub()
    token, servers = site.token, site.servers()
    artifacts = ArtifactCache(site.folder / "artifacts")
    cuts = {
        shards: Dispatch(
            [server for server in servers if server.shards == shards],
            token=token,
            artifacts=artifacts,
            hub=hub,
            push=True,
        )
        for shards in {server.shards for server in servers}
    }
    sparse: list[Place] = [PodShardPlace(server, cuts[server.shards], site) for server in servers]
    if not section.dense:
        return sparse
    return [*sparse, KnativePlace(site, hub=hub) if site.is_knative else DeploymentPlace(site, hub=hub)]


def layouts(name: str, section: TargetConfig) -> Layouts:
    """Make the layouts of a target on Kubernetes."""
    return KubernetesLayouts(Site(name, section))


class KubernetesLayouts:
    """The layouts of a target on Kubernetes: cloudedge.yaml defines the next one, and `up` has started its pods."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def now(self) -> Shards:
        """See `Layouts`."""
        return self._site.now()

    def publish(self, shards: Shards) -> None:
        """See `Layouts`: cube.conf's plain names follow what is live."""
        self._site.publish(shards or None)

    def retire(self) -> Collection[str]:
        """See `Layouts`."""
        cuts: dict[tuple[str, int], list[Part]] = {}
        for part in self._site.earlier():
            cuts.setdefault((part.table, part.shards), []).append(part)
        empty = [part for parts in cuts.values() if self._hold_nothing(parts) for part in parts]
        if empty:
            self._site.retire(empty)
            self._site.publish()
        return [part.place(replica) for part in empty for replica in range(part.replicas)]

    def _hold_nothing(self, parts: Sequence[Part]) -> bool:
        names = {part.place(replica) for part in parts for replica in range(part.replicas)}
        servers = [server for server in self._site.servers() if server.place in names]
        return not any(shard_replica(server, self._site.token).status().versions for server in servers)


def _site(name: str, config: Config | None) -> Site:
    settings = config or load()
    section = settings.targets.get(name)
    if section is None:
        known = ", ".join(sorted(settings.targets)) or "none"
        raise ConfigError(f"there is no target {name!r}", hint=f"Targets in cloudedge.yaml: {known}.")
    if section.kind != "kubernetes":
        raise ConfigError(f"target {name!r} is of the kind {section.kind}: it has no pods")
    return Site(name, section)


def _wait_running(site: Site, kind: Kind, name: str, within_s: float) -> None:
    """Wait until all pods of a StatefulSet or Deployment have started; they need not be ready."""

    def are_started(found: Object | None) -> bool:
        if found is None:
            return False
        mine = selector(found["spec"]["selector"]["matchLabels"])
        pods = [each for each in site.cluster.list(Kind.POD, selector=mine) if _is_started(each)]
        return len(pods) >= int(found["spec"]["replicas"])

    mine = selector(labels("cube" if kind is Kind.STATEFUL_SET else "serving", site.name))
    site.cluster.wait(kind, name, are_started, timeout_s=within_s, what=f"starting {name}", pods=mine, every_s=1.0)


def _is_started(pod: Object) -> bool:
    status: dict[str, Any] = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    return (
        not pod["metadata"].get("deletionTimestamp") and bool(containers) and all(c.get("started") for c in containers)
    )
