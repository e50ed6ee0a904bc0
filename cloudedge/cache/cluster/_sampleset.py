"""SampleSets: data sets cached on nodes of a cluster, as a custom resource."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cloudedge.cache.cluster._fields import SECRET_REF, check_object
from cloudedge.errors import InputError
from cloudedge.findings import Finding, error, refuse_errors, warning
from cloudedge.kube import Kind, metadata

__all__ = ["MOUNT_OPTIONS", "SOURCES", "Level", "SampleSet", "SecretRef"]

MOUNT_OPTIONS: Mapping[str, type] = {
    "metrics": str,
    "attr-cache": int,
    "entry-cache": int,
    "dir-entry-cache": int,
    "enable-xattr": bool,
    "get-timeout": int,
    "put-timeout": int,
    "io-retries": int,
    "max-uploads": int,
    "buffer-size": int,
    "prefetch": int,
    "writeback": bool,
    "cache-dir": str,
    "cache-size": int,
    "free-space-ratio": str,
    "cache-partial-only": bool,
    "open-cache": int,
    "sub-dir": str,
}
"""The names and types of ``csi.juiceFSMountOptions``."""

SOURCES = frozenset(
    (
        *("b2", "bos", "ceph", "cos", "eos", "file", "gs", "hdfs", "ibmcos", "jss", "ks3", "minio", "mss", "nos"),
        *("obs", "oos", "oss", "qingstor", "qiniu", "redis", "s3", "scs", "scw", "space", "speedy", "swift", "tikv"),
        *("ufile", "wasabi", "wasb", "webdav"),
    )
)
"""Schemes of sources that the controller knows; it stalls on any other."""

_SPEC = {
    "partitions": int,
    "source": {"uri": str, "secretRef": SECRET_REF},
    "secretRef": SECRET_REF,
    "noSync": bool,
    "csi": {"driver": str, "juiceFSMountOptions": dict},
    "cache": {"levels": [{"mediumType": str, "path": str, "cacheSize": int}]},
    "nodeAffinity": dict,
    "tolerations": [dict],
}
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_CACHE_PATH = re.compile(r"(/[a-z0-9-]+)+")
_NAME_MAX, _PORT_NAME_MAX, _VOLUME_MAX, _URI_MIN = 44, 15, 63, 10
_DRIVER = "juicefs"
_SAMPLESET_BRANCH = "sampleset"
_MEDIA = ("MEM", "SSD", "HDD")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""kubectl's record of its last apply, which it prints with the object; it says nothing about the data set."""


@dataclass(frozen=True)
class SecretRef:
    """A secret of the cluster, in the object's own namespace unless another is named."""

    name: str
    namespace: str = ""

    def manifest(self) -> dict[str, str]:
        """Return the reference for a manifest."""
        return {"name": self.name} | ({"namespace": self.namespace} if self.namespace else {})

    @classmethod
    def from_manifest(cls, value: Mapping[str, Any]) -> SecretRef:
        """Read a reference from a manifest."""
        return cls(value.get("name") or "", value.get("namespace") or "")


@dataclass(frozen=True)
class Level:
    """A cache of a data set on its nodes.

    Args:
        path: One or more folders of the host, joined with a colon.
        size_mib: The most space it may use; 0: JuiceFS's own limit.
        medium: MEM, SSD or HDD; informative only.
    """

    path: str
    size_mib: int
    medium: Literal["MEM", "SSD", "HDD"] = "SSD"

    def manifest(self) -> dict[str, Any]:
        """Return the level for a manifest."""
        return {"mediumType": self.medium, "path": self.path, "cacheSize": self.size_mib}


@dataclass(frozen=True)
class SampleSet:
    """A data set and its cache.

    Args:
        name: Unique in the whole cluster, since its volume has no namespace.
        secret: The file system's secret; see `file_system_secret`.
        partitions: The number of nodes that cache it.
        source: The source of its data: ``bos://bucket.endpoint/prefix/``. Empty: the file system has the data.
        source_secret: Credentials for the source; the file system's if left out.
        levels: The caches. Without one the controller uses memory, practically without a limit.
        no_sync: Do not copy from the source at creation.
        mount_options: JuiceFS mount options by name; see `MOUNT_OPTIONS`.
        node_affinity: The nodes that may cache it.
        tolerations: The taints its runtime pods tolerate.
        namespace: Its namespace; the connection's own if empty.
        labels: Labels of the object.
        annotations: Annotations of the object.
    """

    name: str
    secret: SecretRef
    partitions: int = 1
    source: str = ""
    source_secret: SecretRef | None = None
    levels: Sequence[Level] = ()
    no_sync: bool = False
    mount_options: Mapping[str, Any] = field(default_factory=dict)
    node_affinity: Mapping[str, Any] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def findings(self, flavour: str | None = None) -> list[Finding]:
        """Return the mistakes and doubts, before a controller stalls on them silently.

        Args:
            flavour: The controller's flavour, as in `Capabilities.paddle_flavour`; None: unknown.
        """
        return [*self._name(flavour), *self._source(), *self._cache(), *self._mount()]

    def manifest(self, flavour: str | None = None) -> dict[str, Any]:
        """Return the object for the cluster.

        Args:
            flavour: As for `findings`.

        Raises:
            InputError: it could not work; the message names every mistake.
        """
        refuse_errors(f"SampleSet {self.name!r}", self.findings(flavour))
        spec: dict[str, Any] = {"partitions": self.partitions, "secretRef": self.secret.manifest()}
        if self.source:
            secret = {"secretRef": self.source_secret.manifest()} if self.source_secret else {}
            spec["source"] = {"uri": self.source} | secret
        if self.no_sync or not self.source:
            spec["noSync"] = True
        if self.mount_options:
            spec["csi"] = {"driver": _DRIVER, "juiceFSMountOptions": dict(self.mount_options)}
        if self.levels:
            spec["cache"] = {"levels": [level.manifest() for level in self.levels]}
        if self.node_affinity:
            spec["nodeAffinity"] = dict(self.node_affinity)
        if self.tolerations:
            spec["tolerations"] = [dict(each) for each in self.tolerations]
        kind = Kind.SAMPLE_SET
        named = metadata(self.name, self.namespace, self.labels, self.annotations)
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": named, "spec": spec}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> SampleSet:
        """Read an object from its manifest; absent fields stay absent.

        Raises:
            InputError: it has fields that a SampleSet lacks; the message names all of them.
        """
        refuse_errors("this SampleSet", check_object(manifest, Kind.SAMPLE_SET, _SPEC))
        metadata, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
        source, csi = spec.get("source") or {}, spec.get("csi") or {}
        if csi.get("driver") not in (None, _DRIVER):
            raise InputError(f"spec.csi.driver: the driver {csi['driver']!r} does not exist", hint=f"Use {_DRIVER}.")
        ref = source.get("secretRef")
        return cls(
            name=metadata.get("name") or "",
            namespace=metadata.get("namespace") or "",
            labels=metadata.get("labels") or {},
            annotations={k: v for k, v in (metadata.get("annotations") or {}).items() if k != _LAST_APPLIED},
            secret=SecretRef.from_manifest(spec.get("secretRef") or {}),
            partitions=spec.get("partitions") or 0,
            source=source.get("uri") or "",
            source_secret=SecretRef.from_manifest(ref) if ref else None,
            no_sync=bool(spec.get("noSync")),
            levels=tuple(
                Level(each.get("path") or "", each.get("cacheSize") or 0, each.get("mediumType") or "SSD")
                for each in (spec.get("cache") or {}).get("levels") or ()
            ),
            mount_options=csi.get("juiceFSMountOptions") or {},
            node_affinity=spec.get("nodeAffinity") or {},
            tolerations=tuple(spec.get("tolerations") or ()),
        )

    def _name(self, flavour: str | None) -> Iterator[Finding]:
        if not _LABEL.fullmatch(self.name) or len(self.name) > _NAME_MAX:
            yield error(
                "name",
                "metadata.name",
                f"{self.name!r} becomes the name of a Service and part of a label.",
                f"Use at most {_NAME_MAX} of a-z, 0-9 and '-', a letter first.",
            )
        elif flavour in {None, _SAMPLESET_BRANCH} and (len(self.name) > _PORT_NAME_MAX or "--" in self.name):
            found = warning if flavour is None else error
            yield found(
                "name",
                "metadata.name",
                f"The sampleset branch of paddle-operator uses {self.name!r} as a port name, which it cannot be.",
                f"Use at most {_PORT_NAME_MAX} characters and no double dash there; PaddleCloud 0.4 accepts the name.",
            )
        if not self.secret.name:
            yield error("secret", "spec.secretRef", "Without the file system's secret nothing is ever mounted.")
        if self.partitions < 1:
            yield error(
                "partitions",
                "spec.partitions",
                "The number of nodes is missing and has no default.",
                "Write 1 or more.",
            )

    def _source(self) -> Iterator[Finding]:
        if not self.source:
            if self.source_secret is not None:
                yield error("source", "spec.source.uri", "The source has a secret but no uri.", "Name its uri.")
            return
        scheme, found, rest = self.source.partition("://")
        if not found or "://" in rest or scheme not in SOURCES or not rest or len(self.source) < _URI_MIN:
            yield error(
                "source",
                "spec.source.uri",
                f"{self.source!r} is not SCHEME://BUCKET[.ENDPOINT][/PREFIX] with a scheme known to the controller.",
                f"It knows {', '.join(sorted(SOURCES))}.",
            )
        elif "@" in rest.partition("/")[0]:
            yield error(
                "source",
                "spec.source.uri",
                "Every user who may read the object can read credentials in the address.",
                "Put them into a secret and name it as source_secret.",
            )

    def _cache(self) -> Iterator[Finding]:
        for number, level in enumerate(self.levels):
            where = f"spec.cache.levels[{number}]"
            for path in level.path.split(":"):
                if not _CACHE_PATH.fullmatch(path) or len(path) - 1 > _VOLUME_MAX:
                    yield error(
                        "cache-path",
                        f"{where}.path",
                        f"{path!r} becomes the name of a volume.",
                        f"Begin with / and use a-z, 0-9, '-' and '/'; no final '/', at most {_VOLUME_MAX} characters.",
                    )
            if level.medium not in _MEDIA:
                yield error(
                    "cache-medium", f"{where}.mediumType", f"{level.medium!r} is not one of {', '.join(_MEDIA)}."
                )
            if level.size_mib < 0:
                yield error("cache-size", f"{where}.cacheSize", f"{level.size_mib} MiB is negative.")
        if not self.levels and "cache-dir" not in self.mount_options:
            yield warning(
                "cache",
                "spec.cache",
                "Without a level the data set is cached in memory (/dev/shm), practically without a limit.",
                "Add one, such as `Level('/data/cache', 102400)`.",
            )

    def _mount(self) -> Iterator[Finding]:
        for name, value in self.mount_options.items():
            where = f"spec.csi.juiceFSMountOptions.{name}"
            wanted = MOUNT_OPTIONS.get(name)
            if wanted is None:
                yield error(
                    "mount-option", where, "This option does not exist.", f"The options are {', '.join(MOUNT_OPTIONS)}."
                )
            elif type(value) is not wanted:
                yield error("mount-option", where, f"{value!r} is not of type {wanted.__name__}.")
            elif not value:
                yield warning("mount-option", where, f"{value!r} counts as not set; JuiceFS's default applies.")
            elif name == "free-space-ratio" and not _is_ratio(str(value)):
                yield error("mount-option", where, f"{value!r} is not at least 0 and below 1.", 'Write it as "0.1".')
            elif name == "cache-dir" and not self.levels and not str(value).endswith("/"):
                yield error(
                    "cache-dir",
                    where,
                    f"The controller appends the name: {value}{self.name}.",
                    "End it with '/', or use a level instead.",
                )
            elif name in ("cache-dir", "cache-size") and self.levels:
                yield warning("cache-dir", where, "The levels override it.")


def _is_ratio(value: str) -> bool:
    try:
        return 0 <= float(value) < 1
    except ValueError:
        return False
