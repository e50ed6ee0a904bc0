"""The NetworkPolicies of a target: which callers reach which port of its pods. Pure.

A policy admits what it names and nothing else. Two kinds of callers need no rule. Releases come through the API
server's port-forward, which opens the connection inside the pod's own network namespace. Probes come from the kubelet
of the pod's node, and every implementation of policies admits the node itself. Shards fetch nothing from one another
here: a release sends each of them its files, so the port of their file server stays closed too.

Outgoing connections are not restricted: serving pulls from a hub whose addresses are not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudedge.config import PeerConfig, PodsConfig, TargetConfig
from cloudedge.kube import Object
from cloudedge.release.kubernetes._names import CUBE_PORT, SERVING_PORT, labels, named

__all__ = ["network_policies", "serving_labels"]

_QUEUE_PROXY = (8012, 8013, 8112, 9090, 9091)
"""The ports of Knative's proxy in a serving pod: HTTP/1, HTTP/2 and TLS; metrics for scaling and for others."""


def network_policies(target: str, config: TargetConfig, *, direct: bool) -> Iterator[Object]:
    """List the NetworkPolicies of a target: one for all shards, one for serving.

    Args:
        target: The target's name.
        config: Its section of cloudedge.yaml.
        direct: True if cloudedge reaches pods by their addresses, and is thus a pod itself.
    """
    pods = config.pods or PodsConfig()
    if not pods.network_policies:
        return
    operators = [_peer(each) for each in pods.admin_from]
    if direct and not operators:
        operators = [{"podSelector": {}}]  # which pod of the namespace cloudedge runs in is not known
    everything = [{"from": operators}] if operators else []
    if config.sparse:
        readers = [_peer(each) for each in pods.cube.data_from]
        if config.dense:
            readers.append({"podSelector": {"matchLabels": serving_labels(target, config)}})
        readers = readers or [{"podSelector": {}}]  # without serving, the readers are other pods of the namespace
        own = labels("cube", target)
        yield _policy(named("cube", target), own, own, [_rule([CUBE_PORT], readers), *everything])
    if config.dense:
        callers = [_peer(each) for each in pods.serving.data_from]
        ports = _QUEUE_PROXY if pods.serving.knative is not None else (SERVING_PORT,)
        yield _policy(
            named("serving", target),
            labels("serving", target),
            serving_labels(target, config),
            [_rule(ports, callers), *everything],
        )


def serving_labels(target: str, config: TargetConfig) -> dict[str, str]:
    """Return the labels of serving's pods; those of a PaddleService have only the ones that its controller sets."""
    is_knative = config.pods is not None and config.pods.serving.knative is not None
    return {"PaddleService": named("serving", target)} if is_knative else labels("serving", target)


def _policy(name: str, own: Mapping[str, str], pods: Mapping[str, str], rules: Sequence[Object]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": dict(own)},
        "spec": {"podSelector": {"matchLabels": dict(pods)}, "policyTypes": ["Ingress"], "ingress": list(rules)},
    }


def _rule(ports: Sequence[int], callers: Sequence[Object]) -> Object:
    """Return a rule for some ports; without callers it admits all."""
    rule: dict[str, Any] = {"from": list(callers)} if callers else {}
    return rule | {"ports": [{"protocol": "TCP", "port": port} for port in ports]}


def _peer(peer: PeerConfig) -> Object:
    if peer.cidr:
        return {"ipBlock": {"cidr": peer.cidr}}
    selectors = {"namespaceSelector": peer.namespace_labels, "podSelector": peer.pod_labels}
    return {
        name: {"matchLabels": dict(found)} if found else {} for name, found in selectors.items() if found is not None
    }
