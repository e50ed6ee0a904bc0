"""`Cluster`: get, list, apply, create, patch, delete, watch and wait on Kubernetes objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import CloudEdgeError, Conflict, InputError, NotFound, Unavailable
from cloudedge.kube.api import APPLY, MERGE, Capabilities, Discovery, Session, Write, configured, listed
from cloudedge.kube.objects import Kind, Notice, Object, api_version, identity, read_events, selector_of
from cloudedge.kube.streams import WINDOW_S, Event, Forward, LogLine, Logs, Ran, Waiting, Watch, run_in_pod

__all__ = ["FIELD_MANAGER", "Cluster"]

FIELD_MANAGER = "cloudedge"
"""The name under which the API server records our fields."""

_GONE = 410


class Cluster:
    """A connection to one cluster, working in one namespace by default; threads may share it.

    Every call has a time limit and raises only `cloudedge.errors`. Requests that are safe to repeat are retried.
    """

    def __init__(self, session: Session, namespace: str, *, paddle_service_group: str = "") -> None:
        self.namespace = namespace
        self._session = session
        self._discovery = Discovery(session, paddle_service_group)

    @classmethod
    def connect(
        cls,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
        timeout_s: float = 30.0,
        paddle_service_group: str = "",
    ) -> Cluster:
        """Find the cluster and the credentials; sends nothing yet.

        Args:
            kubeconfig: A file; else ``KUBECONFIG``, ``~/.kube/config``, or a pod's service account.
            context: One of the file's contexts; the current one if left out.
            namespace: The namespace to work in; the context's own if left out.
            clock: Time and jitter.
            timeout_s: The time limit of one request.
            paddle_service_group: The API group of its PaddleService, if there are several; discovered if left out.

        Raises:
            ConfigError: there is no usable kubeconfig or service account.
        """
        configuration, own = configured(kubeconfig, context)
        session = Session(configuration, clock or SystemClock(), timeout_s=timeout_s)
        return cls(session, namespace or own, paddle_service_group=paddle_service_group)

    @property
    def address(self) -> str:
        """The API server's ``host:port``."""
        return self._session.host

    @property
    def clock(self) -> Clock:
        """The clock that times the waits."""
        return self._session.clock

    def capabilities(self, *, again: bool = False) -> Capabilities:
        """Return what the cluster can do; cached, unless `again` is set."""
        return self._discovery.capabilities(again=again)

    def groups(self) -> frozenset[str]:
        """Return the names of the API groups the cluster serves."""
        found = self._session.call("GET", "/apis", what=f"listing the API groups of {self.address}")
        return frozenset(str(group.get("name")) for group in found.get("groups") or [])

    def kind_of(self, obj: Mapping[str, Any]) -> Kind:
        """Return the kind of an object, as this cluster serves it.

        Raises:
            NotFound: the cluster does not serve that kind.
        """
        return self._discovery.kind(*api_version(obj))

    def served(self, kind: str, versions: Sequence[str]) -> Kind:
        """Return a kind in the first of these versions that the cluster serves: ``("batch/v1", "batch/v1beta1")``.

        Raises:
            NotFound: it serves none of them.
        """
        found = (self._discovery.kinds(version).get(kind) for version in versions)
        return next((each for each in found if each is not None), None) or self._discovery.kind(versions[0], kind)

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, or None if it does not exist."""
        with suppress(NotFound):
            where = self._path(kind, namespace, name)
            found: Object = self._session.call("GET", where, what=f"reading {self._named(kind, name, namespace)}")
            return found
        return None

    def list(
        self,
        kind: Kind,
        *,
        selector: str = "",
        fields: str = "",
        namespace: str | None = None,
        everywhere: bool = False,
    ) -> list[Object]:
        """List objects.

        Args:
            kind: Their kind.
            selector: Labels they must have: ``app=ctr,role in (ps)``.
            fields: Fields they must have: ``status.phase=Running``.
            namespace: A namespace other than the cluster's own.
            everywhere: List across all namespaces.

        Raises:
            NotFound: the cluster does not serve that kind.
        """
        where = None if everywhere else namespace or self.namespace
        for last in (False, True):
            try:
                query = _selectors(selector, fields)
                return listed(self._session, kind, where, query, what=f"listing {kind.plural}")[0]
            except Unavailable as error:
                # The list changed so much during the read that the server no longer knows our position.
                if last or error.facts.get("status") != _GONE:
                    raise
        raise AssertionError  # the second round returns or raises

    def apply(self, obj: Mapping[str, Any], *, dry_run: bool = False, force: bool = False) -> Object:
        """Make an object as given: server-side apply under our field manager. Idempotent.

        Args:
            obj: The wanted state; fields it does not mention stay with their managers.
            dry_run: Let the server validate it and change nothing.
            force: Take over fields that another manager owns.

        Raises:
            InputError: the server refuses it, or would drop fields; `fields` names them.
            Conflict: another manager owns a field.
            NotFound: the cluster has no such kind or namespace.
        """
        kind, body = self._with_namespace(obj)
        path = kind.path(body["metadata"].get("namespace"), body["metadata"]["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
        what = f"applying {identity(body)}"
        return self._write(Write("PATCH", path, kind, body, what, query, APPLY), dry_run=dry_run)

    def create(self, obj: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object.

        It is retried only if it certainly did not arrive: after a broken connection the caller checks whether the
        object exists. `apply` needs no such care.

        Raises:
            Conflict: an object of that name exists.
            InputError: the server refuses it, or would drop fields; `fields` names them.
        """
        kind, body = self._with_namespace(obj)
        path = kind.path(body["metadata"].get("namespace"))
        what = f"creating {identity(body)}"
        query = {"fieldManager": FIELD_MANAGER}
        return self._write(Write("POST", path, kind, body, what, query, repeat=False), dry_run=dry_run)

    def patch(
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Change fields of an object by a merge patch: None removes a field, lists are replaced whole.

        Raises:
            NotFound: the object does not exist.
            InputError: the server refuses it, or would drop fields; `fields` names them.
        """
        path = self._path(kind, namespace, name, subresource)
        what = f"patching {self._named(kind, name, namespace)}"
        query = {"fieldManager": FIELD_MANAGER}
        return self._write(Write("PATCH", path, kind, patch, what, query, MERGE), dry_run=dry_run)

    def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        wait_s: float | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
    ) -> None:
        """Delete an object; one that does not exist counts as deleted.

        Args:
            kind: Its kind.
            name: Its name.
            namespace: A namespace other than the cluster's own.
            uid: Delete only this object, not a later one of the same name.
            wait_s: How long to wait until it is gone; None: do not wait.
            propagation: The fate of the objects it owns.

        Raises:
            DeadlineExceeded: it still exists; the message names the finalizers it waits for.
        """
        found = self.get(kind, name, namespace)
        if found is None or (uid is not None and found["metadata"]["uid"] != uid):
            return
        # Bound to the uid, so that a retried request never deletes an object made in between.
        own = found["metadata"]["uid"]
        body = {"propagationPolicy": propagation, "preconditions": {"uid": own}}
        what = f"deleting {self._named(kind, name, namespace)}"
        with suppress(NotFound, Conflict):
            self._session.call("DELETE", self._path(kind, namespace, name), what=what, body=body)
        if wait_s is not None:
            self.wait(
                kind,
                name,
                lambda now: now is None or now["metadata"]["uid"] != own,
                timeout_s=wait_s,
                what=what,
                namespace=namespace,
            )

    def watch(
        self,
        kind: Kind,
        *,
        timeout_s: float,
        selector: str = "",
        name: str = "",
        namespace: str | None = None,
        everywhere: bool = False,
    ) -> Iterator[Event]:
        """Yield the existing objects (as ADDED), then every change, until the time is over.

        It survives broken connections, server restarts and expired versions, and reports nothing twice.

        Raises:
            Unavailable: the server did not answer at the end.
        """
        query = _selectors(selector, f"metadata.name={name}" if name else "")
        where = None if everywhere or not kind.namespaced else namespace or self.namespace
        end = self.clock.monotonic() + timeout_s
        return (event for event in Watch(self._session, kind, where, query, end) if event is not None)

    def wait(
        self,
        kind: Kind,
        name: str,
        until: Callable[[Object | None], bool | None],
        *,
        timeout_s: float,
        what: str,
        namespace: str | None = None,
        pods: str = "",
        every_s: float = 10.0,
    ) -> Object | None:
        """Wait until an object meets a condition.

        Args:
            kind: Its kind.
            name: Its name.
            until: The condition. It is evaluated at every change and every few seconds; None stands for no object. An
                exception from it ends the wait.
            timeout_s: The time limit.
            what: The goal, for the error: "starting ctr".
            namespace: A namespace other than the cluster's own.
            pods: A selector of the pods whose warnings belong into the error.
            every_s: Time between two evaluations when nothing changes.

        Returns:
            The object; None if the condition held for no object.

        Raises:
            DeadlineExceeded: the condition does not hold; with the object's `state` and the `events` about it.
        """
        where = (namespace or self.namespace) if kind.namespaced else None
        query = _selectors("", f"metadata.name={name}")
        end = self.clock.monotonic() + timeout_s
        watch = Watch(self._session, kind, where, query, end, window_s=min(WINDOW_S, every_s))
        waiting = Waiting(watch, until)
        if waiting.run():
            return waiting.now
        notices = () if waiting.silence else self._events_for_error(waiting.now, namespace, pods)
        raise waiting.failure(what, timeout_s, notices) from waiting.silence

    def events(self, obj: Mapping[str, Any]) -> Sequence[Notice]:
        """Return the cluster's events about an object, the oldest first."""
        # Events about objects without a namespace are kept in this one.
        namespace = (obj.get("metadata") or {}).get("namespace") or "default"
        return read_events(self.list(Kind.EVENT, fields=selector_of(dict(obj)), namespace=namespace))

    def logs(
        self,
        selector: str = "",
        *,
        pods: Sequence[str] = (),
        namespace: str | None = None,
        container: str = "",
        follow: bool = False,
        tail: int | None = None,
        timeout_s: float = 3600.0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Iterator[LogLine]:
        """Read the logs of several pods at once, line by line as they come.

        Args:
            selector: Labels of the pods.
            pods: Or their names.
            namespace: A namespace other than the cluster's own.
            container: One of their containers; the first if left out.
            follow: Go on until every pod has ended: each named pod, even one that has not started yet, or every pod
                with the labels, including pods that appear later.
            tail: Only this many earlier lines of each pod.
            timeout_s: The time limit.
            is_over: Polled while named pods have not started; returns whether they never will.

        Raises:
            InputError: neither pods nor a selector is given.
        """
        if not selector and not pods:
            raise InputError("cannot read logs: neither pods nor a selector is given")
        reader = Logs(
            self._session,
            namespace or self.namespace,
            selector=selector,
            pods=tuple(pods),
            container=container,
            tail=tail,
            end=self.clock.monotonic() + timeout_s,
            is_over=is_over,
        )
        return reader.follow() if follow else reader.read()

    @contextmanager
    def port_forward(self, pod: str, port: int, *, namespace: str | None = None) -> Iterator[int]:
        """Forward a local port, on loopback only, to a pod's port for the duration of the block; yields the local port.

        Connections are independent: one that breaks leaves the others alone.
        """
        path = Kind.POD.path(namespace or self.namespace, pod, "portforward")
        with Forward(self._session, path, port, what=f"reaching port {port} of pod {pod}") as local:
            yield local

    def run(
        self,
        pod: str,
        command: Sequence[str],
        *,
        container: str = "",
        namespace: str | None = None,
        timeout_s: float = 60.0,
    ) -> Ran:
        """Run a command in a pod, without a shell, and return its output and exit code.

        Raises:
            DeadlineExceeded: the command has not ended in time; it may still run there.
        """
        path = Kind.POD.path(namespace or self.namespace, pod, "exec")
        return run_in_pod(self._session, path, command, container=container, timeout_s=timeout_s, pod=pod)

    def close(self) -> None:
        """Close every connection."""
        self._session.close()

    def __enter__(self) -> Cluster:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, write: Write, *, dry_run: bool) -> Object:
        return write.send(self._session, dry_run=dry_run, is_strict=self._discovery.validates_strictly)

    def _with_namespace(self, obj: Mapping[str, Any]) -> tuple[Kind, Object]:
        """Return an object's kind, and the object with a namespace if its kind has one."""
        kind = self.kind_of(obj)
        metadata = dict(obj["metadata"])
        if kind.namespaced:
            metadata.setdefault("namespace", self.namespace)
        return kind, {**obj, "metadata": metadata}

    def _path(self, kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
        return kind.path(namespace or self.namespace, name, subresource)

    def _named(self, kind: Kind, name: str, namespace: str | None) -> str:
        return f"{kind} {namespace or self.namespace}/{name}" if kind.namespaced else f"{kind} {name}"

    def _events_for_error(self, obj: Object | None, namespace: str | None, pods: str) -> Sequence[Notice]:
        """Collect events for an error message; failing to read them raises nothing."""
        found: list[Notice] = []
        with suppress(CloudEdgeError):
            found += self.events(obj) if obj is not None else []
        with suppress(CloudEdgeError):
            for pod in self.list(Kind.POD, selector=pods, namespace=namespace) if pods else []:
                found += [notice for notice in self.events(pod) if notice.type != "Normal"]
        return sorted(found, key=lambda notice: notice.at)


def _selectors(labels: str, fields: str) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
