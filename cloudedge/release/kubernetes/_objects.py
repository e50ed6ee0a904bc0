"""The Kubernetes objects of a target, made from its section of cloudedge.yaml and a few facts. Pure.

Each shard of a table is a StatefulSet, and each of its replicas has a Service of its own, selected by the pod's name:
readers get addresses that outlive pods, and need no cluster DNS. Serving is a Deployment that follows a ConfigMap.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import yaml

from cloudedge.config import CubePods, PodsConfig, ServingPods, TargetConfig
from cloudedge.errors import ConfigError
from cloudedge.kube import Object
from cloudedge.release.kubernetes._names import (
    ADMIN,
    CUBE_ADMIN,
    CUBE_PORT,
    SERVING_ADMIN,
    SERVING_PORT,
    STATE_FILE,
    Part,
    labels,
    named,
    parts_of,
    wanted_file,
)
from cloudedge.release.kubernetes._network import network_policies
from cloudedge.release.kubernetes._resources import TMP_SIZE, pod_resources
from cloudedge.release.kubernetes._revision import check_knative
from cloudedge.release.places import cube_conf

__all__ = ["Facts", "check", "conf_map", "objects", "services"]

_USER = 10001
"""The user of our images."""
_DRAIN_S, _NOTICE_S = 10, 5
_GRACE_S = 2 * (_DRAIN_S + _NOTICE_S)
"""Longer than a server takes to drain; before that it keeps answering while proxies learn that it ends."""
_SECURED = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
}
_MOUNTS = "/etc/cloudedge"
_ANYWHERE = "0.0.0.0"  # noqa: S104 - a pod has to listen; its admin API needs the token


@dataclass(frozen=True)
class Facts:
    """The facts from the cluster that its objects depend on."""

    token: str
    """The token of the admin APIs; made once, and kept in the cluster."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """By Service: its cluster address."""
    earlier: Sequence[Part] = ()
    """Shards of layouts that cloudedge.yaml no longer defines and that still exist, in order."""
    live: Mapping[str, int] = field(default_factory=dict)
    """By table: the number of shards of the layout that readers without a pin get."""
    policy: str = "policy/v1"
    """The version of PodDisruptionBudgets; before Kubernetes 1.21 there is only policy/v1beta1."""
    direct: bool = False
    """True if cloudedge reaches pods by their addresses: NetworkPolicies apply to it then."""
    unlimited: Collection[str] = ()
    """StatefulSets and Deployments that exist without a memory limit; they get no default limits."""


def check(target: str, config: TargetConfig) -> PodsConfig:
    """Return the settings of a target's pods.

    Raises:
        ConfigError: a setting is missing; the message names it.
    """
    pods = config.pods or PodsConfig()
    lacking = []
    if config.sparse and not pods.cube.image:
        lacking.append("pods.cube.image")
    if config.dense and not pods.serving.image:
        lacking.append("pods.serving.image")
    if config.dense and pods.serving.hub is None:
        lacking.append("pods.serving.hub")
    if lacking:
        raise ConfigError(
            f"target {target!r} does not say {', '.join(lacking)}",
            hint="See docs/how-to/release-kubernetes.md for a complete one.",
        )
    hub = pods.serving.hub
    for name in ("secret_key", "password") if hub is not None else ():
        if (getattr(hub, name) or "env:").startswith("file:"):
            raise ConfigError(
                f"target {target!r}: pods have no such file: pods.serving.hub.{name}",
                hint="Write `env:NAME`, and name a Secret with that key in `pods.serving.hub_secret`.",
            )
    check_knative(target, config)
    return pods


def objects(target: str, config: TargetConfig, facts: Facts) -> list[Object]:
    """List a target's objects, each after those that it needs.

    Raises:
        ConfigError: the section lacks a setting.
    """
    pods = check(target, config)
    found: list[Object] = []
    if not pods.service_account:
        found.append(_account(target))
    data = {ADMIN: base64.b64encode(facts.token.encode()).decode()}
    found.append(
        {**_head("v1", "Secret", named("cloudedge", target, dotted="admin"), labels("admin", target)), "data": data}
    )
    found += network_policies(target, config, direct=facts.direct)  # before the first pod
    if config.sparse:
        found += services(target, config)
        found.append(conf_map(target, config, facts))
        # Without data: releases write the version that makes a pod ready, and `up` leaves it alone.
        found.append(_head("v1", "ConfigMap", named("cube", target, dotted="state"), labels("cube", target)))
        parts = [*parts_of(config), *facts.earlier]
        found += chain.from_iterable(_shard(target, part, pods, facts) for part in parts)
    if config.dense:
        found += _serving(target, config, pods, facts)
    return found


def services(target: str, config: TargetConfig) -> list[Object]:
    """List the Services of the shards, which come first because cube.conf needs their addresses."""
    found = [
        {
            **_head("v1", "Service", named("cube", target), labels("cube", target)),
            "spec": {
                "clusterIP": "None",
                "selector": labels("cube", target),
                "publishNotReadyAddresses": True,
                "ports": _ports(data=CUBE_PORT, admin=CUBE_ADMIN),
            },
        }
    ]
    for part in parts_of(config):
        for replica in range(part.replicas):
            pod = part.pod(target, replica)
            spec = {
                "type": "ClusterIP",
                "selector": {"statefulset.kubernetes.io/pod-name": pod},
                # Pinned reads and admin calls reach a shard before its first version is active.
                "publishNotReadyAddresses": True,
                "ports": _ports(data=CUBE_PORT, admin=CUBE_ADMIN),
            }
            found.append({**_head("v1", "Service", pod, labels("cube", target) | part.labels), "spec": spec})
    return found


def _conf_text(target: str, config: TargetConfig, facts: Facts) -> str:
    """Return cube.conf for the shards of every layout; a Service without an address yet is named."""
    cuts: dict[tuple[str, int], list[list[str]]] = {}
    for part in [*parts_of(config), *facts.earlier]:
        pods = [part.pod(target, replica) for replica in range(part.replicas)]
        addresses = [f"{_bracketed(facts.addresses.get(pod, pod))}:{CUBE_PORT}" for pod in pods]
        cuts.setdefault((part.table, part.shards), []).append(addresses)
    leg = config.sparse
    now = dict.fromkeys(leg.tables, leg.shards) if leg else {}
    return cube_conf(cuts, {**now, **facts.live}).to_text()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def conf_map(target: str, config: TargetConfig, facts: Facts) -> Object:
    """Return the ConfigMap with cube.conf."""
    head = _head("v1", "ConfigMap", named("cloudedge", target, dotted="cube"), labels("cube", target))
    return {**head, "data": {"cube.conf": _conf_text(target, config, facts)}}


def _account(target: str) -> Object:
    head = _head("v1", "ServiceAccount", named("cloudedge", target), labels("pods", target))
    return {**head, "automountServiceAccountToken": False}


def _shard(target: str, part: Part, pods: PodsConfig, facts: Facts) -> Iterator[Object]:
    name, own = part.name(target), labels("cube", target) | part.labels
    limited = name not in facts.unlimited
    yield _budget(name, own, facts)
    volumes = [
        _own_disk("tmp", TMP_SIZE if limited else ""),
        _from_secret("admin", named("cloudedge", target, dotted="admin")),
        _from_state(named("cube", target, dotted="state")),
    ]
    claims = []
    if pods.cube.storage_class:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": pods.cube.storage_class,
            "resources": {"requests": {"storage": pods.cube.storage}},
            "volumeMode": "Filesystem",
        }
        claims.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec})
    else:
        volumes.append(_own_disk("data", pods.cube.storage if limited else ""))
    container = {
        "name": "cube",
        "image": pods.cube.image,
        "imagePullPolicy": pods.pull_policy,
        "args": [
            f"--token-file={_MOUNTS}/admin/{ADMIN}",
            f"--wanted={_MOUNTS}/state/{wanted_file(part.table, part.shards)}",
            f"--drain-s={_DRAIN_S}",
        ],
        "ports": [{"name": "data", "containerPort": CUBE_PORT}, {"name": "admin", "containerPort": CUBE_ADMIN}],
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *({"name": each, "mountPath": f"{_MOUNTS}/{each}", "readOnly": True} for each in ("admin", "state")),
        ],
        **_probes("admin", slow_s=600),  # it loads the rows of its volume before it answers
        **_SECURED,
        "resources": pod_resources("cube", pods.cube, limited=limited),
    }
    yield {
        **_head("apps/v1", "StatefulSet", name, labels("cube", target) | part.labels),
        "spec": {
            "replicas": part.replicas,
            "serviceName": named("cube", target),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {"labels": own},
                "spec": _pod(target, pods, pods.cube, own=own, container=container, volumes=volumes),
            },
            **({"volumeClaimTemplates": claims} if claims else {}),
        },
    }


def _serving(target: str, config: TargetConfig, pods: PodsConfig, facts: Facts) -> Iterator[Object]:
    name, own, settings = named("serving", target), labels("serving", target), pods.serving
    if config.dense is None or settings.hub is None:
        raise AssertionError  # checked before
    hub = settings.hub.model_dump(mode="json", exclude_unset=True)
    text = yaml.safe_dump({"hubs": {"serving": hub}})
    yield {**_head("v1", "ConfigMap", name, labels("serving", target)), "data": {"cloudedge.yaml": text}}
    if settings.knative is not None:
        return  # the first release makes the PaddleService: without a version it has nothing to run
    # Without data: releases write what serving shall have, and `up` leaves it alone.
    yield _head("v1", "ConfigMap", named("serving", target, dotted="state"), labels("serving", target))
    limited = name not in facts.unlimited
    yield _budget(name, own, facts)
    yield {
        **_head("v1", "Service", name, labels("serving", target)),
        "spec": {"type": "ClusterIP", "selector": own, "ports": _ports(http=SERVING_PORT)},
    }
    options = {
        "host": _ANYWHERE,
        "port": SERVING_PORT,
        "admin-host": _ANYWHERE,
        "admin-port": SERVING_ADMIN,
        "token-file": f"{_MOUNTS}/admin/{ADMIN}",
        "service": config.dense.service,
        "follow": f"{_MOUNTS}/state/{STATE_FILE}",
        "state": "/models/desired.json",
        "pull": "serving",
        "drain-s": _DRAIN_S,
    }
    container = {
        "name": "serving",
        "image": settings.image,
        "imagePullPolicy": pods.pull_policy,
        "args": ["--open", *(f"--{name}={value}" for name, value in options.items())],
        "env": [
            {"name": "CLOUDEDGE_CONFIG", "value": f"{_MOUNTS}/serving/cloudedge.yaml"},
            {"name": "CLOUDEDGE_HOME", "value": "/models"},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the pod's own
        ],
        **({"envFrom": [{"secretRef": {"name": settings.hub_secret}}]} if settings.hub_secret else {}),
        "ports": [{"name": "http", "containerPort": SERVING_PORT}, {"name": "admin", "containerPort": SERVING_ADMIN}],
        "volumeMounts": [
            {"name": "models", "mountPath": "/models"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *(
                {"name": each, "mountPath": f"{_MOUNTS}/{each}", "readOnly": True}
                for each in ("admin", "state", "serving")
            ),
        ],
        # Proxies still send requests here for a moment after the pod got the signal to end.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_NOTICE_S)]}}},
        **_probes("admin", slow_s=300),
        **_SECURED,
        "resources": pod_resources("serving", settings, limited=limited),
    }
    volumes = [
        _own_disk("models", settings.storage if limited else ""),
        _own_disk("tmp", TMP_SIZE if limited else ""),
        _from_secret("admin", named("cloudedge", target, dotted="admin")),
        _from_state(named("serving", target, dotted="state")),
        {"name": "serving", "configMap": {"name": name}},
    ]
    noted = {"cloudedge.io/config": hashlib.sha256(text.encode()).hexdigest()[:16]}
    yield {
        **_head("apps/v1", "Deployment", name, labels("serving", target)),
        "spec": {
            "replicas": config.dense.replicas,
            "selector": {"matchLabels": own},
            # A new pod answers before an old one ends.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": own, "annotations": noted},
                "spec": _pod(target, pods, settings, own=own, container=container, volumes=volumes),
            },
        },
    }
    if settings.ingress_host:
        yield _ingress(target, settings)


def _ingress(target: str, settings: ServingPods) -> Object:
    name = named("serving", target)
    to = {"service": {"name": name, "port": {"number": SERVING_PORT}}}
    rule = {"host": settings.ingress_host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": to}]}}
    spec = {"rules": [rule]} | ({"ingressClassName": settings.ingress_class} if settings.ingress_class else {})
    return {**_head("networking.k8s.io/v1", "Ingress", name, labels("serving", target)), "spec": spec}


def _pod(
    target: str,
    pods: PodsConfig,
    settings: CubePods | ServingPods,
    *,
    own: Mapping[str, str],
    container: Object,
    volumes: Sequence[Object],
) -> Object:
    apart = {"labelSelector": {"matchLabels": dict(own)}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "serviceAccountName": pods.service_account or named("cloudedge", target),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Preferred, not required: on a cluster with few nodes two replicas on one are better than one.
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]
            }
        },
        **({"nodeSelector": dict(settings.node_selector)} if settings.node_selector else {}),
        **({"imagePullSecrets": [{"name": name} for name in pods.pull_secrets]} if pods.pull_secrets else {}),
        "containers": [container],
        "volumes": list(volumes),
    }


def _probes(port: str, *, slow_s: int) -> Object:
    """Return the probes: alive if the process answers, ready if a version does; it may start for `slow_s` seconds.

    They ask the admin port, which NetworkPolicies close to other pods and which keeps connections free for them. A busy
    pod is not restarted: only one that has not answered in a whole minute is, each question waiting for 10 s.
    """
    every = 2
    alive = {"httpGet": {"path": "/health", "port": port, "scheme": "HTTP"}, "timeoutSeconds": 10}
    ready = {"httpGet": {"path": "/ready", "port": port, "scheme": "HTTP"}, "timeoutSeconds": 10}
    return {
        "startupProbe": {**alive, "periodSeconds": every, "failureThreshold": slow_s // every},
        "livenessProbe": {**alive, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**ready, "periodSeconds": every, "failureThreshold": 3},
    }


def _budget(name: str, own: Mapping[str, str], facts: Facts) -> Object:
    # At most one away: where there is one replica, a node can still be emptied.
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": dict(own)}}
    return {**_head(facts.policy, "PodDisruptionBudget", name, own), "spec": spec}


def _head(version: str, kind: str, name: str, own: Mapping[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "labels": dict(own)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _ports(**ports: int) -> list[Object]:
    return [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports.items()]


def _own_disk(name: str, size: str) -> Object:
    """Return a volume that goes with its pod; a pod that writes more than `size` is evicted."""
    return {"name": name, "emptyDir": {"sizeLimit": size} if size else {}}


def _from_state(name: str) -> Object:
    return {"name": "state", "configMap": {"name": name, "optional": True}}


def _from_secret(name: str, secret: str) -> Object:
    return {"name": name, "secret": {"secretName": secret}}
