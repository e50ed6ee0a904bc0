"""The objects of a target in its cluster: read them, apply what cloudedge.yaml defines, delete them."""

from __future__ import annotations

import base64
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from http import HTTPStatus
from pathlib import Path

from cloudedge.config import CubePods, PodsConfig, ServingPods, TargetConfig, home
from cloudedge.cube import CubeConf
from cloudedge.errors import Conflict, NotFound, Rejected, Unavailable
from cloudedge.kube import Cluster, Kind, Object, identity
from cloudedge.release.core import Shards
from cloudedge.release.kubernetes._names import (
    ADMIN,
    CUBE_ADMIN,
    CUBE_PORT,
    Part,
    labels,
    named,
    parts_of,
    selector,
)
from cloudedge.release.kubernetes._objects import Facts, check, conf_map, objects, services
from cloudedge.release.kubernetes._reach import Reach, is_direct
from cloudedge.release.places import live_shards
from cloudedge.serving.knative import PaddleServices

__all__ = ["ServerPod", "Site"]

_TOKEN_BYTES = 32
_DELETED_S = 300.0
_POLICY_V1 = (1, 21)
_WRITES = 16


@dataclass(frozen=True)
class ServerPod:
    """A shard replica in a pod; a `TargetServer`."""

    place: str
    table: str
    shard: int
    shards: int
    address: str
    admin: str


class Site:
    """The objects of one target.

    Args:
        name: The target's name.
        config: Its section of cloudedge.yaml.
        cluster: Its cluster; the one that its section names if left out.
    """

    def __init__(self, name: str, config: TargetConfig, cluster: Cluster | None = None) -> None:
        self.name = name
        self.config = config
        self.cluster = cluster or Cluster.connect(
            kubeconfig=config.kubeconfig or None,
            context=config.context or None,
            namespace=config.namespace or None,
            paddle_service_group=config.paddle_service_group,
        )
        self._direct = is_direct(config)
        self.reach = Reach(self.cluster, direct=self._direct)
        self.notices: list[str] = []
        """What the last `apply` could not do, and what the operator may do about it."""

    @property
    def folder(self) -> Path:
        """The folder of what this machine makes for the target."""
        return home() / "targets" / self.name

    @property
    def is_knative(self) -> bool:
        """True if serving is a PaddleService."""
        return bool(self.config.dense and self.config.pods and self.config.pods.serving.knative)

    def paddle_services(self, order: int = 0) -> PaddleServices:
        """Return the PaddleServices of the namespace, for changes under an order.

        Raises:
            NotFound: the cluster does not have that kind.
        """
        return PaddleServices(self.cluster, order=order)

    def now(self) -> Shards:
        """Return by table the number of its shards from now on."""
        leg = self.config.sparse
        return dict.fromkeys(leg.tables, leg.shards) if leg else {}

    @cached_property
    def token(self) -> str:
        """The token of the admin APIs.

        Raises:
            NotFound: the target was never brought up.
        """
        found = self._token()
        if not found:
            raise NotFound(
                f"target {self.name!r} is not in namespace {self.cluster.namespace} of {self.cluster.address}",
                hint=f"Start it with `cloudedge up {self.name}`.",
            )
        return found

    def parts(self) -> list[Part]:
        """List the shards: those of cloudedge.yaml, then those of other layouts that still exist."""
        return [*parts_of(self.config), *self.earlier()]

    def earlier(self) -> list[Part]:
        """List the shards of layouts that cloudedge.yaml does not define, as the cluster has them.

        A StatefulSet proves one, and so do the Services of its replicas, which stay when the target is down.
        """
        mine = selector(labels("cube", self.name))
        found: dict[Part, int] = {}
        for each in self.cluster.list(Kind.STATEFUL_SET, selector=mine):
            found[Part.read(each["metadata"]["labels"], 0)] = int(each["spec"]["replicas"])
        replicas = Counter(Part.read(each["metadata"]["labels"], 0) for each in self._services())
        found = {part: max(found.get(part, 0), replicas[part]) for part in found.keys() | replicas.keys()}
        now = {(part.table, part.shards) for part in parts_of(self.config)}
        earlier = [
            replace(part, replicas=count) for part, count in found.items() if (part.table, part.shards) not in now
        ]
        return sorted(earlier, key=lambda part: (part.table, part.shards, part.shard))

    def servers(self) -> list[ServerPod]:
        """List the shard replicas with their addresses."""
        addresses = self._addresses()
        found = []
        for part in self.parts():
            for replica in range(part.replicas):
                pod = part.pod(self.name, replica)
                data, admin = (
                    self.reach.address(pod, port, ip=addresses.get(pod, "")) for port in (CUBE_PORT, CUBE_ADMIN)
                )
                found.append(
                    ServerPod(part.place(replica), part.table, part.shard, part.shards, data, f"http://{admin}")
                )
        return found

    def cube_conf(self) -> str:
        """Return cube.conf as the cluster has it; empty if it has none."""
        found = self.cluster.get(Kind.CONFIG_MAP, named("cloudedge", self.name, dotted="cube")) or {}
        return str((found.get("data") or {}).get("cube.conf", ""))

    def publish(self, live: Shards | None = None) -> None:
        """Write cube.conf; without `live`, readers without a pin keep the layout that they have."""
        if not self.config.sparse:
            return
        wanted = conf_map(self.name, self.config, self.facts(live))
        if wanted["data"]["cube.conf"] != self.cube_conf():
            self.cluster.apply(wanted)

    def rewrite(self, name: str, key: str, change: Callable[[str], str]) -> None:
        """Change one text of a ConfigMap; of two simultaneous writers, one reads again.

        Args:
            name: The ConfigMap's name.
            key: The text's key.
            change: Takes the text, empty if there is none, and returns the new one.

        Raises:
            NotFound: there is no such ConfigMap.
        """
        for _ in range(_WRITES):
            found = self.cluster.get(Kind.CONFIG_MAP, name)
            if found is None:
                raise NotFound(f"ConfigMap {name} is not there", hint=f"Start it with `cloudedge up {self.name}`.")
            now = (found.get("data") or {}).get(key, "")
            wanted = change(now)
            if wanted == now:
                return
            version = found["metadata"]["resourceVersion"]
            try:
                self.cluster.patch(
                    Kind.CONFIG_MAP, name, {"metadata": {"resourceVersion": version}, "data": {key: wanted}}
                )
            except Conflict:
                continue  # another process wrote in between: read again
            return
        raise Unavailable(f"ConfigMap {name} changes all the time")

    def facts(self, live: Shards | None = None, *, token: str = "") -> Facts:
        """Read the facts that the objects depend on from the cluster."""
        conf = self.cube_conf() if live is None else ""
        return Facts(
            token=token or self._token() or "not made yet",
            addresses=self._addresses(),
            earlier=self.earlier(),
            live=live if live is not None else live_shards(CubeConf.from_text(conf)) if conf else {},
            policy=self._policy,
            direct=self._direct,
        )

    def plan(self) -> list[Object]:
        """Return the objects that `apply` would apply, as far as that is known now."""
        check(self.name, self.config)
        return objects(self.name, self.config, replace(self.facts(), unlimited=self._unlimited()))

    def apply(self) -> list[Object]:
        """Apply the objects that cloudedge.yaml defines and return them; what is right already stays.

        Raises:
            ConfigError: the section lacks a setting.
            Conflict: an object of that name does not belong to the target.
        """
        check(self.name, self.config)
        if self.is_knative:
            self.paddle_services()  # raises where the cluster lacks them
        token = self._token() or secrets.token_hex(_TOKEN_BYTES)
        first = services(self.name, self.config)
        for each in first:
            self._apply(each)
        facts = replace(self.facts(token=token), unlimited=self._unlimited())
        found = objects(self.name, self.config, facts)
        self.notices = _without_limits(found, self.config.pods or PodsConfig())
        named_already = {identity(each) for each in first}
        for each in found:
            if identity(each) in named_already:
                continue
            try:
                self._apply(each)
            except Rejected as error:
                if each["kind"] != _NETWORK_POLICY or error.facts.get("status") != HTTPStatus.FORBIDDEN:
                    raise
                self.notices.append(
                    f"{identity(each)} is not made, so other pods reach the ports of these pods: {error.message} "
                    "Add networkpolicies to the Role, as docs/how-to/release-kubernetes.md has it, or set "
                    "`pods.network_policies: false`."
                )
        self._trim(found)
        return found

    def owned(self, *, everything: bool = False) -> list[tuple[Kind, str]]:
        """List the target's objects in the cluster: those that make pods, or all of them."""
        policy = self.cluster.kind_of({**_EMPTY, "apiVersion": self._policy, "kind": "PodDisruptionBudget"})
        ingress = self.cluster.kind_of({**_EMPTY, "apiVersion": "networking.k8s.io/v1", "kind": "Ingress"})
        network = self.cluster.kind_of({**_EMPTY, "apiVersion": "networking.k8s.io/v1", "kind": _NETWORK_POLICY})
        kinds = [Kind.DEPLOYMENT, Kind.STATEFUL_SET, ingress, policy, network]
        if self.is_knative:
            kinds.insert(0, self.paddle_services().kind)
        kept = [Kind.SERVICE, Kind.CONFIG_MAP, Kind.SECRET, Kind.SERVICE_ACCOUNT, Kind.PVC]
        return [
            (kind, each["metadata"]["name"])
            for kind in [*kinds, *(kept if everything else ())]
            for each in self._mine(kind)
        ]

    def _mine(self, kind: Kind) -> list[Object]:
        mine = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/managed-by=cloudedge"
        try:
            return self.cluster.list(kind, selector=mine)
        except Rejected as error:
            if kind.kind == _NETWORK_POLICY and error.facts.get("status") == HTTPStatus.FORBIDDEN:
                return []  # a Role without this right cannot have made any
            raise

    def delete(self, owned: Sequence[tuple[Kind, str]]) -> None:
        """Delete objects; returns when they are gone, and their pods with them."""
        for wait_s in (None, _DELETED_S):  # all are deleted before the first is waited for
            for kind, name in owned:
                if kind.kind == "PaddleService" and wait_s is not None:
                    self.paddle_services().delete(name, wait_s=wait_s)  # Knative's part too
                makes_pods = kind in (Kind.DEPLOYMENT, Kind.STATEFUL_SET)
                self.cluster.delete(kind, name, propagation="Foreground" if makes_pods else "Background", wait_s=wait_s)

    def retire(self, parts: Sequence[Part]) -> None:
        """Delete shards that hold nothing, and their volumes."""
        policy = self.cluster.kind_of({**_EMPTY, "apiVersion": self._policy, "kind": "PodDisruptionBudget"})
        for part in parts:
            name = part.name(self.name)
            mine = selector(labels("cube", self.name) | part.labels)
            for replica in range(part.replicas):
                self.cluster.delete(Kind.SERVICE, part.pod(self.name, replica))
            self.cluster.delete(policy, name)
            for claim in self.cluster.list(Kind.PVC, selector=mine):
                self.cluster.delete(Kind.PVC, claim["metadata"]["name"])  # it goes once its pod has
            self.cluster.delete(Kind.STATEFUL_SET, name)  # last: as long as it exists, a resume finds the shard
            for replica in range(part.replicas):
                self.reach.drop(part.pod(self.name, replica))

    def _trim(self, wanted: Sequence[Object]) -> None:
        """Delete what cloudedge.yaml no longer defines and no release needs: serving, and Services of replicas."""
        names = {(each["kind"], each["metadata"]["name"]) for each in wanted}
        for kind, name in self.owned():
            if kind.kind in ("Deployment", "Ingress", _NETWORK_POLICY) and (kind.kind, name) not in names:
                self.cluster.delete(kind, name)
        pods = {part.pod(self.name, replica) for part in self.parts() for replica in range(part.replicas)}
        for each in self._services():
            if each["metadata"]["name"] not in pods:
                self.cluster.delete(Kind.SERVICE, each["metadata"]["name"])

    def _apply(self, wanted: Object) -> None:
        kind, name = self.cluster.kind_of(wanted), wanted["metadata"]["name"]
        found = self.cluster.get(kind, name)
        owner = ((found or {}).get("metadata") or {}).get("labels") or {}
        if found is not None and owner.get("app.kubernetes.io/instance") != self.name:
            raise Conflict(
                f"{identity(found)} is not one of target {self.name!r}",
                hint="Give the target another name or another namespace.",
            )
        self.cluster.apply(wanted)

    def _unlimited(self) -> frozenset[str]:
        """Return the sets of pods that have no memory limit; a default would end servers that hold more than that."""
        found = [each for kind in (Kind.STATEFUL_SET, Kind.DEPLOYMENT) for each in self._mine(kind)]
        return frozenset(each["metadata"]["name"] for each in found if "memory" not in _limits(each))

    @property
    def _policy(self) -> str:
        return "policy/v1" if self.cluster.capabilities().version >= _POLICY_V1 else "policy/v1beta1"

    def _token(self) -> str:
        found = self.cluster.get(Kind.SECRET, named("cloudedge", self.name, dotted="admin")) or {}
        return base64.b64decode((found.get("data") or {}).get(ADMIN, "")).decode()

    def _addresses(self) -> dict[str, str]:
        return {each["metadata"]["name"]: each["spec"]["clusterIP"] for each in self._services()}

    def _services(self) -> list[Object]:
        """List the Services of shard replicas; the headless Service of all shards has no table label."""
        return self.cluster.list(Kind.SERVICE, selector=f"{selector(labels('cube', self.name))},cloudedge.io/table")


def _limits(found: Object) -> Object:
    container = found["spec"]["template"]["spec"]["containers"][0]
    limits: Object = (container.get("resources") or {}).get("limits") or {}
    return limits


def _without_limits(found: Sequence[Object], pods: PodsConfig) -> list[str]:
    settings: dict[str, CubePods | ServingPods] = {"StatefulSet": pods.cube, "Deployment": pods.serving}
    names = [
        each["metadata"]["name"]
        for each in found
        if each["kind"] in settings and "memory" not in {**_limits(each), **settings[each["kind"]].limits}
    ]
    notice = (
        f"without a memory limit, as before: {', '.join(names)}. Set `version_size` in `pods.cube` and `pods.serving`, "
        "or `limits: {memory: none}`."
    )
    return [notice] if names else []


_NETWORK_POLICY = "NetworkPolicy"
_EMPTY = {"metadata": {"name": "any"}}
