"""The parts of a PaddleService: the container of a revision, and its autoscaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cloudedge.errors import InputError
from cloudedge.findings import Finding, error, refuse_errors, warning

__all__ = ["Autoscale", "Endpoint", "check_endpoint"]

_PORT_MAX = 65535
_CLASSES = {"kpa": "kpa.autoscaling.knative.dev", "hpa": "hpa.autoscaling.knative.dev"}


@dataclass(frozen=True)
class Endpoint:
    """The container of one revision.

    Args:
        image: ``repository:tag``, or better ``repository@sha256:hex``: a tag is looked up once and never again.
        port: The server's port.
        arg: The bash command in it; the image's own entry point is never used. End it with ``exec server ...``.
    """

    image: str
    port: int
    arg: str

    def manifest(self) -> dict[str, Any]:
        """Return the manifest's form.

        Raises:
            InputError: The image has neither tag nor digest.
        """
        name, tag = _parted(self.image)
        return {"containerImage": name, "tag": tag, "port": self.port, "arg": self.arg}

    @classmethod
    def from_manifest(cls, value: Mapping[str, Any]) -> Endpoint:
        """Read the manifest's form."""
        return cls(f"{value.get('containerImage')}:{value.get('tag')}", value.get("port", 0), value.get("arg", ""))


@dataclass(frozen=True)
class Autoscale:
    """The number of pods of a revision.

    Args:
        min_scale: Fewest pods; 0 removes the last one without requests, and the next request waits a minute or more.
        max_scale: Most pods; 0: no limit.
        metric: The measure: requests under way, requests per second, or (with hpa) processor time.
        target: The measure's value for one pod. It is also the hard limit of requests under way in a pod.
        autoscaler: Knative's own, or Kubernetes' by processor time.
        utilization_percent: Share of the target to aim at.
        window_s: Window of the measurement.
        panic_window_percent: Share of the window for sudden load.
        panic_threshold_percent: Share of the target from which load is sudden.
    """

    min_scale: int = 1
    max_scale: int = 0
    metric: Literal["concurrency", "rps", "cpu"] = "concurrency"
    target: int | None = None
    autoscaler: Literal["kpa", "hpa"] = "kpa"
    utilization_percent: int | None = None
    window_s: int | None = None
    panic_window_percent: int | None = None
    panic_threshold_percent: int | None = None

    def manifest(self) -> dict[str, Any]:
        """Return the manifest's form, in which several numbers are strings."""
        texts = {
            "targetUtilization": self.utilization_percent,
            "panicWindow": self.panic_window_percent,
            "panicThreshold": self.panic_threshold_percent,
        }
        found: dict[str, Any] = {"autoscaler": _CLASSES.get(self.autoscaler, self.autoscaler), "metric": self.metric}
        found |= {"minScale": self.min_scale, "maxScale": self.max_scale}
        found |= {"target": self.target} if self.target is not None else {}
        found |= {"window": f"{self.window_s}s"} if self.window_s is not None else {}
        return found | {key: str(value) for key, value in texts.items() if value is not None}

    @classmethod
    def from_manifest(cls, value: Mapping[str, Any]) -> Autoscale:
        """Read the manifest's form, or that of upstream's README: with numbers for texts, and ``kpa`` alone.

        Raises:
            InputError: A value is wrong, or the resource has no such field; lists all of them.
        """
        kinds = {full: short for short, full in _CLASSES.items()}
        readers: dict[str, tuple[str, Callable[[Any], Any]]] = {
            "minScale": ("min_scale", _whole),
            "maxScale": ("max_scale", _whole),
            "metric": ("metric", str),
            "target": ("target", _whole),
            "autoscaler": ("autoscaler", lambda found: kinds.get(found, found)),
            "targetUtilization": ("utilization_percent", _whole),
            "window": ("window_s", _seconds),
            "panicWindow": ("panic_window_percent", _whole),
            "panicThreshold": ("panic_threshold_percent", _whole),
        }
        found: dict[str, Any] = {"min_scale": 0}  # the controller's default
        wrong = []
        for key, given in value.items():
            try:
                name, read = readers[key]
                found[name] = read(given)
            except KeyError:
                wrong.append(error("field", f"spec.service.{key}", "There is no such field."))
            except (ValueError, TypeError):
                wrong.append(error("value", f"spec.service.{key}", f"{given!r} is no value for it."))
        refuse_errors("autoscaling", wrong)
        return cls(**found)

    def findings(self) -> Iterator[Finding]:
        """List the settings that Knative would refuse or ignore."""
        where = "spec.service"
        ranges = (
            ("targetUtilization", self.utilization_percent, 1, 100),
            ("window", self.window_s, 6, 3600),
            ("panicWindow", self.panic_window_percent, 1, 100),
            ("panicThreshold", self.panic_threshold_percent, 110, 1000),
            ("target", self.target, 1, 1_000_000),
        )
        for name, value, low, high in ranges:
            if value is not None and not low <= value <= high:
                yield error("range", f"{where}.{name}", f"{value} is not between {low} and {high}.")
        if self.min_scale < 0 or self.max_scale < 0 or (self.max_scale and self.max_scale < self.min_scale):
            yield error("scale", where, f"From {self.min_scale} to {self.max_scale} pods is no range.")
        if (self.autoscaler == "hpa") != (self.metric == "cpu"):
            yield error(
                "metric",
                f"{where}.metric",
                f"{self.autoscaler} does not scale by {self.metric}.",
                "Use concurrency or rps with kpa, cpu with hpa.",
            )
        if self.min_scale == 0:
            yield warning(
                "scale-to-zero",
                f"{where}.minScale",
                "The first request after a pause waits for a pod: a minute at least, by the fixed delay of its probe.",
                "Keep 1 for a service that a release probes.",
            )


def check_endpoint(endpoint: Endpoint, where: str) -> Iterator[Finding]:
    """List the settings with which a revision would exit at once, or never get ready."""
    try:
        _parted(endpoint.image)
    except InputError as refused:
        yield error("image", f"{where}.containerImage", refused.message + ".", refused.hint)
    else:
        if "@sha256:" not in endpoint.image:
            yield warning(
                "image", f"{where}.tag", "A tag may mean something else tomorrow.", "Name the image by digest."
            )
    if not 0 < endpoint.port <= _PORT_MAX:
        yield error("port", f"{where}.port", f"{endpoint.port} is not a port.")
    if not endpoint.arg.strip():
        yield error(
            "arg",
            f"{where}.arg",
            "The container runs bash with nothing else and would exit at once; the image's entry point is not used.",
            "Write the command of the server: `exec python3 -m ...`.",
        )
    elif "exec " not in endpoint.arg:
        yield warning(
            "exec",
            f"{where}.arg",
            "Bash stays in front of the server and swallows the signal to end.",
            "Write `exec` before the last command.",
        )


def _parted(image: str) -> tuple[str, str]:
    """Split an image at the last colon after the last slash: a registry may have a port."""
    path, slash, last = image.rpartition("/")
    name, colon, tag = last.rpartition(":")
    if not colon or not name or not tag:
        raise InputError(
            f"the image {image!r} has neither tag nor digest", hint="Write `repository@sha256:...` or `repository:tag`."
        )
    return f"{path}{slash}{name}", tag


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    return int(value)


def _seconds(value: Any) -> int:
    """Read ``60s``, which is Knative's form, or ``1m``, ``1h``; a plain number counts seconds."""
    text = str(value)
    units = {"s": 1, "m": 60, "h": 3600}
    return _whole(text[:-1]) * units[text[-1]] if text[-1:] in units else _whole(value)
