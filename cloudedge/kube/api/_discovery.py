"""Discovery of a cluster's API groups, versions, kinds and operator flavours.

Names prove nothing: two groups have a PaddleService, two a PaddleJob, and one of the PaddleJobs drops `sampleSetRef`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from cloudedge.errors import NotFound, Rejected
from cloudedge.kube.api._session import Session
from cloudedge.kube.objects import Kind, not_served, root

__all__ = ["PADDLE_SERVICES", "Capabilities", "Discovery", "schema_has"]

PADDLE_SERVICES = tuple(
    Kind(group, "v1", "paddleservices", "PaddleService")
    for group in ("elasticserving.paddlepaddle.org", "serving.paddlepaddle.org")
)
"""In the order of the search."""

_STRICT_SINCE = (1, 25)


@dataclass(frozen=True)
class Capabilities:
    """The API kinds and version found on a cluster."""

    server: str
    """The server's version as it reports it: ``v1.20.2``."""
    version: tuple[int, int]
    """The version for comparison: ``(1, 20)``."""
    kinds: frozenset[Kind] = field(default_factory=frozenset)
    """The kinds cloudedge can use that the cluster serves."""
    paddle_service: Kind | None = None
    """PaddleService with the group that this cluster's operator serves."""
    sample_set_ref: bool | None = None
    """True if a PaddleJob may name a SampleSet; None: neither the definition nor the server's schema may be read."""

    @property
    def paddle_flavour(self) -> Literal["operator", "sampleset", "paddlecloud"] | None:
        """The origin of the PaddleJob: paddle-operator, its branch with sample sets, or PaddleCloud.

        The fields of a job decide. The presence of sample sets means little: their definitions may be left over or
        belong to another operator. The last two define the same jobs; PaddleCloud's chart brings a PaddleService along.
        """
        if Kind.PADDLE_JOB not in self.kinds:
            return None
        takes_samples = Kind.SAMPLE_SET in self.kinds if self.sample_set_ref is None else self.sample_set_ref
        if not takes_samples:
            return "operator"
        return "paddlecloud" if PADDLE_SERVICES[1] in self.kinds else "sampleset"

    def has(self, *kinds: Kind) -> bool:
        """Return whether the cluster serves all of these kinds."""
        return self.kinds.issuperset(kinds)


class Discovery:
    """Queries a server for its kinds and version, and caches the answers.

    Args:
        session: The server.
        paddle_service_group: The group of its PaddleService, if configured; else it is discovered.
    """

    def __init__(self, session: Session, paddle_service_group: str = "") -> None:
        self._session = session
        self._paddle_service_group = paddle_service_group
        self._versions: dict[str, dict[str, Kind]] = {}
        self._server: tuple[str, tuple[int, int]] | None = None
        self._capabilities: Capabilities | None = None

    def kinds(self, version: str) -> Mapping[str, Kind]:
        """Return the kinds of a group and version by name; empty if the server does not serve it."""
        if version not in self._versions:
            found = self._ask(version)
            if not found:
                return {}  # not cached: it may be installed any moment
            self._versions[version] = found
        return self._versions[version]

    def kind(self, version: str, name: str) -> Kind:
        """Return a kind as this cluster serves it.

        Raises:
            NotFound: the cluster does not serve it.
        """
        if name not in self.kinds(version):
            self._versions.pop(version, None)  # it may be new in a known group
        found = self.kinds(version).get(name)
        if found is None:
            raise not_served(self._session.host, name, version)
        return found

    def capabilities(self, *, again: bool = False) -> Capabilities:
        """Return what the cluster can do; cached, unless `again` is set."""
        if self._capabilities is None or again:
            self._versions = {}
            self._capabilities = self._look()
        return self._capabilities

    def server(self) -> tuple[str, tuple[int, int]]:
        """Return the server's version, as it reports it and for comparison."""
        if self._server is None:
            found = self._session.call("GET", "/version", what=f"asking {self._session.host} for its version")
            self._server = (
                str(found.get("gitVersion") or ""),
                (_number(found.get("major")), _number(found.get("minor"))),
            )
        return self._server

    @property
    def validates_strictly(self) -> bool:
        """True if the server itself refuses unknown fields."""
        return self.server()[1] >= _STRICT_SINCE

    def _look(self) -> Capabilities:
        server, version = self.server()
        wanted = (
            Kind.PADDLE_JOB,
            Kind.SAMPLE_SET,
            Kind.SAMPLE_JOB,
            Kind.KNATIVE_SERVICE,
            Kind.VOLCANO_JOB,
            Kind.POD_GROUP,
            Kind.QUEUE,
            *PADDLE_SERVICES,
        )
        there = frozenset(kind for kind in wanted if self.kinds(kind.api_version).get(kind.kind) == kind)
        return Capabilities(
            server,
            version,
            kinds=there,
            paddle_service=self._paddle_service(there),
            sample_set_ref=self._takes_sample_sets() if Kind.PADDLE_JOB in there else False,
        )

    def _paddle_service(self, there: frozenset[Kind]) -> Kind | None:
        if self._paddle_service_group:
            return self.kinds(f"{self._paddle_service_group}/v1").get("PaddleService")
        return next((kind for kind in PADDLE_SERVICES if kind in there), None)

    def _takes_sample_sets(self) -> bool | None:
        kind = Kind.PADDLE_JOB
        name = f"{kind.plural}.{kind.group}"
        with suppress(NotFound, Rejected):
            definition = self._session.call("GET", Kind.CRD.path(name=name), what=f"reading the definition {name}")
            return schema_has(definition, kind.version, "spec", "sampleSetRef")
        # Definitions are cluster-wide and may be hidden. The server's schema repeats them and is open to every user:
        # by group since 1.24, all in one document before.
        for path in (f"/openapi/v3/apis/{kind.api_version}", "/openapi/v2"):
            with suppress(NotFound, Rejected):
                document = self._session.call("GET", path, what=f"reading the schema of {kind.api_version}")
                if (schema := _schema_of(document, kind)) is not None:
                    return _has(schema, "spec", "sampleSetRef")
        return None

    def _ask(self, version: str) -> dict[str, Kind]:
        try:
            found = self._session.call("GET", root(version), what=f"listing the kinds of {version}")
        except NotFound:
            return {}
        group, _, short = version.rpartition("/")
        return {
            str(each["kind"]): Kind(group, short, str(each["name"]), str(each["kind"]), bool(each.get("namespaced")))
            for each in found.get("resources") or []
            if "/" not in each["name"]
        }


def schema_has(definition: Mapping[str, Any], version: str, *path: str) -> bool:
    """Return whether a custom resource definition has a field in one of its versions."""
    for each in definition["spec"].get("versions") or []:
        if each.get("name") == version:
            return _has((each.get("schema") or {}).get("openAPIV3Schema") or {}, *path)
    return False


def _has(schema: Mapping[str, Any], *path: str) -> bool:
    node: Any = schema
    for step in path:
        node = (node.get("properties") or {}).get(step)
        if node is None:
            return False
    return True


def _schema_of(document: Mapping[str, Any], kind: Kind) -> Mapping[str, Any] | None:
    """Return a kind's schema from an OpenAPI document of either version; None if it is missing or incomplete."""
    schemas = (document.get("components") or {}).get("schemas") or document.get("definitions") or {}
    own = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    for schema in schemas.values():
        if own in (schema.get("x-kubernetes-group-version-kind") or []):
            return schema if _has(schema, "spec") else None
    return None


def _number(text: Any) -> int:
    digits = "".join(character for character in str(text or "") if character.isdecimal())
    return int(digits or 0)
