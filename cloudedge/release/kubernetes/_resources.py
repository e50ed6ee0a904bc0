"""Requests and limits of a target's pods: defaults, and what cloudedge.yaml says instead. Pure.

A release loads the next version beside the live one, and its plan reckons with twice the version's size for that
(`Place.estimate`). So a pod needs three times the size of a version, a quarter more for what a version does not account
for, and what an empty server takes. A release that does not fit under the limit is refused by its plan: a server reads
its free memory from its own control group. CPU has a request and no limit: a limit slows a server down in the very
moment of a load.
"""

from __future__ import annotations

from cloudedge.config import CubePods, ServingPods
from cloudedge.errors import ConfigError

__all__ = ["TMP_SIZE", "pod_resources"]

TMP_SIZE = "1Gi"
"""The size limit of a pod's temporary files."""

_MIB = 1 << 20
_ASSUMED = 1 << 30
"""The size of a version where cloudedge.yaml does not give one."""
_EMPTY = {"cube": 256 * _MIB, "serving": 512 * _MIB}
"""The memory of a server without a version; Paddle alone takes most of serving's."""
_VERSIONS = 3
_LOGS = 1 << 30
_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
}  # fmt: skip
_NONE = "none"


def pod_resources(
    component: str, settings: CubePods | ServingPods, *, limited: bool = True
) -> dict[str, dict[str, str]]:
    """Return the requests and limits of a container.

    Args:
        component: `cube` or `serving`.
        settings: Its section of cloudedge.yaml.
        limited: False leaves out the limits that cloudedge.yaml does not give: for pods that had none so far, and may
            hold more than a default allows.

    Raises:
        ConfigError: a size cannot be read.
    """
    requests, limits = _default_requests(component, settings), _default_limits(component, settings)
    if not limited:
        limits = {"memory": limits["memory"]} if settings.version_size is not None else {}
    for name, value in settings.requests.items():
        # A given half moves the default of the other: the API server refuses a request above its limit.
        if name in limits and value != _NONE:
            limits[name] = max(limits[name], value, key=_bytes)
    for name, value in settings.limits.items():
        if name == "cpu":
            requests.pop("cpu", None)  # Kubernetes takes the limit for the request
        elif name in requests and value != _NONE:
            requests[name] = min(requests[name], value, key=_bytes)
    found = {"requests": requests | settings.requests, "limits": limits | settings.limits}
    return {part: kept for part, values in found.items() if (kept := _without_none(values))}


def _default_requests(component: str, settings: CubePods | ServingPods) -> dict[str, str]:
    held = 2 * (settings.version_size or 0)  # the live version and the one before
    return {"cpu": "100m", "memory": _mebibytes(_EMPTY[component] + held), "ephemeral-storage": "256Mi"}


def _default_limits(component: str, settings: CubePods | ServingPods) -> dict[str, str]:
    memory = _EMPTY[component] + _VERSIONS * (settings.version_size or _ASSUMED) * 5 // 4
    has_volume = isinstance(settings, CubePods) and bool(settings.storage_class)
    written = _LOGS + _bytes(TMP_SIZE) + (0 if has_volume else _bytes(settings.storage))
    return {"memory": _mebibytes(memory), "ephemeral-storage": _mebibytes(written)}


def _without_none(values: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value != _NONE}


def _mebibytes(count: int) -> str:
    return f"{-(-count // _MIB)}Mi"


def _bytes(quantity: str) -> int:
    number = quantity.rstrip("kKMGTPEi")
    try:
        return int(float(number) * _UNITS[quantity[len(number) :]])
    except (KeyError, ValueError):
        raise ConfigError(
            f"{quantity!r} is no number of bytes", hint="Write a size such as `512Mi` or `16Gi`."
        ) from None
