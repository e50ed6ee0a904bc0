"""SampleJobs: one operation on a SampleSet, run once. They cannot repeat or be scheduled; `scheduled` does that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cloudedge.cache.cluster._fields import SECRET_REF, check_object
from cloudedge.cache.cluster._sampleset import SOURCES, SecretRef
from cloudedge.cache.paths import check_paths
from cloudedge.errors import InputError
from cloudedge.findings import Finding, error, refuse_errors
from cloudedge.kube import Kind

__all__ = ["LEFTOVER", "SYNC_OPTIONS", "Operation", "SampleJob", "Strategy"]

Operation = Literal["sync", "warmup", "rmr", "clear"]
Strategy = Literal["sequence", "random"]
"""The order of files when they are distributed to partitions: in turn, or at random."""

LEFTOVER = ".warmup"
"""The runtime's own folder in the data set during a warm-up."""

SYNC_OPTIONS: Mapping[str, type] = {
    "source": str,
    "destination": str,
    "start": str,
    "end": str,
    "threads": int,
    "http-port": int,
    "update": bool,
    "force-update": bool,
    "perms": bool,
    "dirs": bool,
    "dry": bool,
    "delete-src": bool,
    "delete-dst": bool,
    "exclude": str,
    "include": str,
    "manager": str,
    "worker": str,
    "bwlimit": int,
    "no-https": bool,
}
"""The names and types of ``syncOptions``."""

_OPTIONS: Mapping[str, Mapping[str, type]] = {
    "sync": SYNC_OPTIONS,
    "warmup": {"paths": list, "strategyName": str, "file": str, "threads": int, "partitions": int},
    "rmr": {"paths": list},
    "clear": {"paths": list},
}
"""The names and types of each operation's options."""
_SPEC = {"type": str, "sampleSetRef": {"name": str}, "secretRef": SECRET_REF, "terminate": bool} | {
    f"{operation}Options": dict for operation in _OPTIONS
}
_STRATEGIES = ("sequence", "random")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_MAX = 53
_DANGEROUS = ("delete-src", "delete-dst")


@dataclass(frozen=True)
class SampleJob:
    """One operation on a SampleSet.

    Args:
        name: The job's name; every run needs a new one.
        operation: The operation.
        sample_set: The SampleSet, in the same namespace.
        secret: Credentials of a sync's source. A sync needs one even for public data; its values may be empty.
        options: The operation's own options, by the resource's names.
        terminate: Cancel running and waiting operations on every runtime first.
        confirmed: The user agreed to delete data (``rmr``, ``delete-src``, ``delete-dst``).
        namespace: Its namespace; the connection's own if empty.
    """

    name: str
    operation: Operation
    sample_set: str
    secret: SecretRef | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    terminate: bool = False
    confirmed: bool = False
    namespace: str = ""

    @classmethod
    def sync(
        cls, name: str, sample_set: str, *, secret: SecretRef, source: str = "", destination: str = "", **more: Any
    ) -> SampleJob:
        """Copy from a source, the SampleSet's own by default; `more` takes the class's fields and `SYNC_OPTIONS`."""
        given = {"source": source, "destination": destination}
        return cls(
            name, "sync", sample_set, secret=secret, **_with_options(more, {k: v for k, v in given.items() if v})
        )

    @classmethod
    def warmup(
        cls,
        name: str,
        sample_set: str,
        *,
        paths: Sequence[str] = (),
        strategy: Strategy = "sequence",
        threads: int = 50,
        **more: Any,
    ) -> SampleJob:
        """Bring files into the caches of its nodes before readers need them."""
        options = {"strategyName": strategy, "threads": threads} | ({"paths": list(paths)} if paths else {})
        return cls(name, "warmup", sample_set, **_with_options(more, options))

    @classmethod
    def clear(cls, name: str, sample_set: str, *, paths: Sequence[str] = (), **more: Any) -> SampleJob:
        """Empty the caches, or some folders of them; the data stays."""
        return cls(name, "clear", sample_set, **_with_options(more, {"paths": list(paths)} if paths else {}))

    @classmethod
    def remove(cls, name: str, sample_set: str, *, paths: Sequence[str], confirmed: bool, **more: Any) -> SampleJob:
        """Delete files from the file system permanently."""
        return cls(name, "rmr", sample_set, confirmed=confirmed, **_with_options(more, {"paths": list(paths)}))

    @classmethod
    def unblock(cls, name: str, sample_set: str, **more: Any) -> SampleJob:
        """Remove the folder of a crashed warm-up, and nothing else: while it exists, every later warm-up fails."""
        return cls.remove(name, sample_set, paths=[LEFTOVER], confirmed=True, **more)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], *, confirmed: bool = False) -> SampleJob:
        """Read a job from its manifest.

        Args:
            manifest: The object.
            confirmed: The user agreed to delete data, should the job do so.

        Raises:
            InputError: it has fields that a SampleJob lacks; the message names all of them.
        """
        spec = manifest.get("spec") or {}
        if isinstance(spec, Mapping) and "schedule" in spec:
            raise InputError(
                "spec.schedule: SampleJob has no schedule, and the API server would drop it silently",
                hint="Run `cloudedge dataset schedule`, which makes a CronJob.",
            )
        refuse_errors("this SampleJob", check_object(manifest, Kind.SAMPLE_JOB, _SPEC))
        metadata, operation = manifest.get("metadata") or {}, spec.get("type")
        if operation not in _OPTIONS:
            raise InputError(
                f"spec.type: the operation {operation!r} does not exist", hint=f"Use one of {', '.join(_OPTIONS)}."
            )
        others = [f"{each}Options" for each in _OPTIONS if each != operation and spec.get(f"{each}Options")]
        if others:
            raise InputError(f"spec.{others[0]}: it does not apply to the operation {operation}", hint="Remove it.")
        ref = spec.get("secretRef")
        return cls(
            name=metadata.get("name") or "",
            namespace=metadata.get("namespace") or "",
            operation=operation,
            sample_set=(spec.get("sampleSetRef") or {}).get("name") or "",
            secret=SecretRef.from_manifest(ref) if ref else None,
            options=spec.get(f"{operation}Options") or {},
            terminate=bool(spec.get("terminate")),
            confirmed=confirmed,
        )

    def findings(self) -> list[Finding]:
        """Return the mistakes, before a runtime hangs on them or deletes more than intended."""
        mistaken = list(self._options())
        if mistaken:  # values of the wrong type cannot be checked further
            return [*self._common(), *mistaken]
        return [*self._common(), *(self._sync() if self.operation == "sync" else self._paths())]

    def manifest(self) -> dict[str, Any]:
        """Return the object for the cluster.

        Raises:
            InputError: it could not work, or would do harm; the message names every mistake.
        """
        refuse_errors(f"SampleJob {self.name!r}", self.findings())
        spec: dict[str, Any] = {"type": self.operation, "sampleSetRef": {"name": self.sample_set}}
        if self.secret is not None:
            spec["secretRef"] = self.secret.manifest()
        if self.terminate:
            spec["terminate"] = True
        if self.options:
            spec[f"{self.operation}Options"] = dict(self.options)
        metadata = {"name": self.name} | ({"namespace": self.namespace} if self.namespace else {})
        kind = Kind.SAMPLE_JOB
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}

    def _common(self) -> Iterator[Finding]:
        if not _NAME.fullmatch(self.name) or len(self.name) > _NAME_MAX:
            yield error(
                "name",
                "metadata.name",
                f"{self.name!r} becomes part of a finalizer; one that is too long can never be reconciled.",
                f"Use at most {_NAME_MAX} of a-z, 0-9 and '-', a letter first.",
            )
        if not self.sample_set:
            yield error("sample-set", "spec.sampleSetRef", "The SampleSet is missing.")
        harmful = [name for name in _DANGEROUS if self.options.get(name)] + ["rmr"] * (self.operation == "rmr")
        if harmful and not self.confirmed:
            yield error(
                "confirm",
                "spec",
                f"{', '.join(harmful)} deletes data permanently.",
                "Confirm it with `confirmed=True`.",
            )

    def _options(self) -> Iterator[Finding]:
        known: Mapping[str, type[Any]] = _OPTIONS[self.operation]
        for name, value in self.options.items():
            where, wanted = f"spec.{self.operation}Options.{name}", known.get(name)
            if wanted is None:
                yield error("option", where, "This option does not exist.", f"The options are {', '.join(known)}.")
            elif type(value) is not wanted or (wanted is list and not all(isinstance(each, str) for each in value)):
                yield error("option", where, f"{value!r} is not of type {wanted.__name__}.")
        strategy = self.options.get("strategyName", _STRATEGIES[0])
        if strategy not in _STRATEGIES:
            yield error("option", "spec.warmupOptions.strategyName", f"{strategy!r} is not one of {_STRATEGIES}.")

    def _sync(self) -> Iterator[Finding]:
        if self.secret is None or not self.secret.name:
            yield error(
                "secret",
                "spec.secretRef",
                "A sync needs a secret even for public data.",
                "Make one with empty access-key and secret-key.",
            )
        source = str(self.options.get("source", ""))
        if source and source.partition("://")[0] not in SOURCES:
            yield error("source", "spec.syncOptions.source", f"{source!r} has a scheme unknown to the controller.")
        destination = str(self.options.get("destination", ""))
        if destination:
            yield from check_paths([destination.removesuffix("/")], "spec.syncOptions.destination")

    def _paths(self) -> Iterator[Finding]:
        section = f"spec.{self.operation}Options"
        paths = self.options.get("paths", ())
        if self.operation == "rmr" and not paths:
            yield error("path", f"{section}.paths", "There are no paths to remove.", "Name at least one path.")
        # A clear names folders of the host or of the container; the other operations name paths of the data set.
        yield from check_paths(paths, f"{section}.paths", absolute=self.operation == "clear")
        if self.options.get("file"):
            yield from check_paths([self.options["file"]], f"{section}.file")


def _with_options(more: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Separate the job's own arguments from its options."""
    own = {name: more[name] for name in ("namespace", "terminate", "confirmed") if name in more}
    rest = {name.replace("_", "-"): value for name, value in more.items() if name not in own}
    return own | {"options": dict(options) | rest}
