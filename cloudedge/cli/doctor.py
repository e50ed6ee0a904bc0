"""`cloudedge doctor`: the components a cluster has, their uses, and how to install the missing ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from cloudedge.cli._context import configuration
from cloudedge.cli._output import JSON, json_out, say, table_out
from cloudedge.errors import ConfigError

if TYPE_CHECKING:
    from cloudedge.kube import Cluster

__all__ = ["doctor"]


def doctor(
    target: str = typer.Option("", "--target", help="A target of cloudedge.yaml, of the kind kubernetes."),
    context: str = typer.Option("", "--context", help="A context of the kubeconfig; the current one if left out."),
    as_json: bool = JSON,
) -> None:
    """List the components of a Kubernetes cluster with their versions, and how to install the missing ones.

    Changes nothing. It reports components that it has no permission to read.

    Example: cloudedge doctor --target prod
    """
    try:
        from cloudedge.kube.doctor import diagnose, examine  # noqa: PLC0415 - slow to import
    except ModuleNotFoundError as error:
        raise ConfigError(f"clusters need {error.name}", hint="Run `pip install 'cloudedge[k8s]'`.") from error

    with _connect(target, context) as cluster:
        examined = examine(cluster)
        address, namespace = cluster.address, cluster.namespace
    findings = diagnose(examined)
    if as_json:
        about = {"address": address, "namespace": namespace, "server": examined.capabilities.server}
        json_out(about | {"components": [asdict(finding) for finding in findings]})
        return
    say("{}, Kubernetes {}, namespace {}", address, examined.capabilities.server, namespace)
    rows = [(each.name, each.version or each.state, each.enables, each.note) for each in findings]
    table_out(("component", "version", "enables", "note"), rows)
    for each in findings:
        if each.state == "missing":
            say("to install {}: {}", each.name, each.install)
        elif each.state == "unknown":
            say("{}: unknown, since these credentials may not read it", each.name)


def _connect(target: str, context: str) -> Cluster:
    from cloudedge.kube import Cluster  # noqa: PLC0415

    if not target:
        return Cluster.connect(context=context or None)
    targets = configuration().targets
    section = targets.get(target)
    if section is None:
        raise ConfigError(
            f"the target {target!r} does not exist", hint=f"Targets: {', '.join(sorted(targets)) or 'none'}."
        )
    if section.kind != "kubernetes":
        raise ConfigError(f"target {target!r} is of the kind {section.kind}, which runs on no cluster")
    return Cluster.connect(
        kubeconfig=section.kubeconfig or None,
        context=context or section.context or None,
        namespace=section.namespace or None,
        paddle_service_group=section.paddle_service_group,
    )
