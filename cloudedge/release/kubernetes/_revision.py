"""A version as a revision of a PaddleService. Pure.

A PaddleService defines of a container only its image, its port and its bash command. So the command carries the
document that a serving pod follows, with one version that answers everything: the pin comes from the revision, and a
pod can have no other. It listens once that version is loaded, because Knative takes an open port for a ready pod.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from cloudedge.config import KnativeConfig, PodsConfig, TargetConfig
from cloudedge.errors import ConfigError
from cloudedge.release.core import Version
from cloudedge.release.kubernetes._names import ADMIN, SERVING_ADMIN, SERVING_PORT, labels, named
from cloudedge.release.kubernetes._resources import pod_resources
from cloudedge.release.places import tables_of
from cloudedge.serving import Desired, DesiredVersion
from cloudedge.serving.knative import Autoscale, Endpoint, PaddleService

__all__ = ["Carried", "check_knative", "desired", "endpoint_of", "service_of"]

_MOUNTS = "/etc/cloudedge"
_ANYWHERE = "0.0.0.0"  # noqa: S104 - a pod has to listen; its admin API needs the token
_STATE = "/tmp/state.json"  # noqa: S108 - the pod's own
_MARK = "# cloudedge "
_DRAIN_S = 10


@dataclass(frozen=True)
class Carried:
    """The version that a revision answers with."""

    pin: str
    ref: str
    """The one exact bundle: name@digest."""
    document: Desired

    @classmethod
    def read(cls, endpoint: Endpoint) -> Carried | None:
        """Read it from the revision's command; None if cloudedge did not write that."""
        first, _, rest = endpoint.arg.partition("\n")
        words = first.removeprefix(_MARK).split()
        if not first.startswith(_MARK) or len(words) != len(("pin", "ref")):
            return None
        text = next((line for line in shlex.split(rest) if line.startswith("{")), "{}")
        pin, ref = words
        return cls(pin, ref, Desired.parse(text))

    def is_for(self, version: Version) -> bool:
        """Tell whether this is a certain version, reading the layout that it lives in."""
        return self.document.versions == (desired(version),)


def desired(version: Version) -> DesiredVersion:
    """Return a version's entry in the document that replicas follow."""
    rows = {name: (table.dtype, table.dim) for name, table in version.tables.items()}
    return DesiredVersion(pin=version.pin, bundle=version.ref, tables=tables_of(version), rows=rows)


def endpoint_of(version: Version, config: TargetConfig, *, cube: str) -> Endpoint:
    """Return the container of a revision that runs a version.

    Args:
        version: The version.
        config: The target's section of cloudedge.yaml.
        cube: cube.conf.
    """
    serving = (config.pods or PodsConfig()).serving
    # Always the same order: a revision's command must not differ from one release to the next.
    document = Desired(order=1, versions=(desired(version),), shares={version.pin: 1.0}, cube=cube)
    options = {
        "host": _ANYWHERE,
        "port": SERVING_PORT,
        "admin-host": _ANYWHERE,
        "admin-port": SERVING_ADMIN,
        "token-file": f"{_MOUNTS}/admin/{ADMIN}",
        "service": config.dense.service if config.dense else "model",
        "follow": _STATE,
        "state": "/tmp/desired.json",  # noqa: S108 - the pod's own
        "pull": "serving",
        "drain-s": _DRAIN_S,
    }
    words = [
        "exec",
        "cloudedge",
        "serve",
        "--listen-when-loaded",
        "--open",
        *(f"--{key}={each}" for key, each in options.items()),
    ]
    lines = [
        f"{_MARK}{version.pin} {version.ref}",
        "set -e",
        f"export CLOUDEDGE_CONFIG={_MOUNTS}/serving/cloudedge.yaml CLOUDEDGE_HOME=/tmp/models HOME=/tmp",
        # A PaddleService has no environment variables; a Secret can be mounted.
        *(
            [f'for each in {_MOUNTS}/hub/*; do export "${{each##*/}}=$(cat "$each")"; done']
            if serving.hub_secret
            else []
        ),
        f"printf %s {shlex.quote(document.model_dump_json())} > {_STATE}",
        shlex.join(words),
    ]
    return Endpoint(serving.image, SERVING_PORT, "\n".join(lines))


def service_of(target: str, config: TargetConfig, endpoint: Endpoint) -> PaddleService:
    """Return the PaddleService that a target's first release makes."""
    serving = (config.pods or PodsConfig()).serving
    secrets = {"admin": named("cloudedge", target, dotted="admin")}
    secrets |= {"hub": serving.hub_secret} if serving.hub_secret else {}
    asked, most = serving.requests or serving.limits, serving.limits
    if serving.version_size is not None:
        found = pod_resources("serving", serving)
        asked, most = {"memory": found["requests"]["memory"], **asked}, {"memory": found["limits"]["memory"], **most}
    return PaddleService(
        named("serving", target),
        endpoint,
        cpu=asked.get("cpu", PaddleService.cpu),
        memory=asked.get("memory", PaddleService.memory),
        cpu_limit=most.get("cpu", ""),
        memory_limit=most.get("memory", ""),
        autoscale=_autoscale(serving.knative or KnativeConfig()),
        volumes=[
            *({"name": name, "secret": {"secretName": secret}} for name, secret in secrets.items()),
            {"name": "serving", "configMap": {"name": named("serving", target)}},
        ],
        volume_mounts=[
            {"name": name, "mountPath": f"{_MOUNTS}/{name}", "readOnly": True} for name in (*secrets, "serving")
        ],
        labels=labels("serving", target),
    )


def check_knative(target: str, config: TargetConfig) -> None:
    """Refuse settings that a PaddleService has no field for.

    Raises:
        ConfigError: there are such settings; the message names them.
    """
    serving = (config.pods or PodsConfig()).serving
    if serving.knative is None:
        return
    extra = [name for name in ("node_selector", "ingress_host", "ingress_class") if getattr(serving, name)]
    if extra:
        raise ConfigError(
            f"target {target!r}: a PaddleService has no {', '.join(f'pods.serving.{each}' for each in extra)}",
            hint="Knative has routes and hosts of its own; a Deployment (no `pods.serving.knative`) has all of these.",
        )
    if "none" in (*serving.requests.values(), *serving.limits.values()):
        raise ConfigError(
            f"target {target!r}: pods.serving.requests and pods.serving.limits cannot be `none`: "
            "the controller of PaddleServices sets what is left out"
        )
    wrong = [
        finding
        for finding in service_of(target, config, Endpoint(serving.image, SERVING_PORT, "exec cloudedge")).findings()
        if finding.severity == "error"
    ]
    if wrong:
        raise ConfigError(f"target {target!r} as a PaddleService: {'; '.join(map(str, wrong))}")


def _autoscale(knative: KnativeConfig) -> Autoscale:
    return Autoscale(
        min_scale=knative.min_scale,
        max_scale=knative.max_scale,
        metric=knative.metric,
        target=knative.target,
        autoscaler="hpa" if knative.metric == "cpu" else "kpa",
        utilization_percent=knative.utilization,
        window_s=int(knative.window.total_seconds()) if knative.window else None,
        panic_window_percent=knative.panic_window,
        panic_threshold_percent=knative.panic_threshold,
    )
