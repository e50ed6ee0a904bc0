"""A cluster: get, list, apply, create, patch, delete, watch and wait, in the words of its users."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import CloudEdgeError, Conflict, InputError, NotFound, Unavailable
from cloudedge.kube._discovery import Capabilities, Discovery
from cloudedge.kube._events import Notice, notices, selector_of
from cloudedge.kube._exec import Ran, run_in_pod
from cloudedge.kube._forward import Forward
from cloudedge.kube._kinds import Kind, Object, api_version, identity
from cloudedge.kube._listing import listed
from cloudedge.kube._logs import LogLine, Logs
from cloudedge.kube._session import Session, configured
from cloudedge.kube._waiting import Waiting
from cloudedge.kube._watch import WINDOW_S, Event, Watch
from cloudedge.kube._writes import APPLY, MERGE, Write

__all__ = ["FIELD_MANAGER", "Cluster"]

FIELD_MANAGER = "cloudedge"
"""Under which name our fields are ours."""

_GONE = 410


class Cluster:
    """A connection to one cluster, working in one namespace unless told otherwise; shared by threads.

    Every call has a time limit and raises only `cloudedge.errors`. What is safe to repeat is repeated.
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
        """Find the cluster and the credentials; nothing is sent yet.

        Args:
            kubeconfig: A file; else ``KUBECONFIG``, ``~/.kube/config``, or what a pod is given.
            context: One of its contexts; the current one if left out.
            namespace: Where to work; the context's own if left out.
            clock: Time and jitter.
            timeout_s: For one request.
            paddle_service_group: Where its PaddleService is, if there are several; else it is looked for.

        Raises:
            ConfigError: there is nothing to connect with.
        """
        configuration, own = configured(kubeconfig, context)
        session = Session(configuration, clock or SystemClock(), timeout_s=timeout_s)
        return cls(session, namespace or own, paddle_service_group=paddle_service_group)

    @property
    def address(self) -> str:
        """Where the API server is: ``host:port``."""
        return self._session.host

    @property
    def clock(self) -> Clock:
        """The clock its waits go by."""
        return self._session.clock

    def capabilities(self, *, again: bool = False) -> Capabilities:
        """Return what the cluster can do; asked once, unless told to look again."""
        return self._discovery.capabilities(again=again)

    def groups(self) -> frozenset[str]:
        """Return the names of the API groups that are there."""
        found = self._session.call("GET", "/apis", what=f"listing the API groups of {self.address}")
        return frozenset(str(group.get("name")) for group in found.get("groups") or [])

    def kind_of(self, obj: Mapping[str, Any]) -> Kind:
        """Return the kind of an object, as this cluster addresses it.

        Raises:
            NotFound: the cluster does not have that kind.
        """
        return self._discovery.kind(*api_version(obj))

    def served(self, kind: str, versions: Sequence[str]) -> Kind:
        """Return a kind in the first of some versions that the cluster has: ``("batch/v1", "batch/v1beta1")``.

        Raises:
            NotFound: it has none of them.
        """
        found = (self._discovery.kinds(version).get(kind) for version in versions)
        return next((each for each in found if each is not None), None) or self._discovery.kind(versions[0], kind)

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, or None if it is not there."""
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
            kind: Which.
            selector: Labels they must have: ``app=ctr,role in (ps)``.
            fields: Fields they must have: ``status.phase=Running``.
            namespace: Another one than the cluster's own.
            everywhere: In all namespaces.

        Raises:
            NotFound: the cluster does not have that kind.
        """
        where = None if everywhere else namespace or self.namespace
        for last in (False, True):
            try:
                query = _selectors(selector, fields)
                return listed(self._session, kind, where, query, what=f"listing {kind.plural}")[0]
            except Unavailable as error:
                # The list changed so much while it was read that the server no longer knows where we were.
                if last or error.facts.get("status") != _GONE:
                    raise
        raise AssertionError  # the second round returns or raises

    def apply(self, obj: Mapping[str, Any], *, dry_run: bool = False, force: bool = False) -> Object:
        """Have an object be as given: server-side apply under our field manager. Twice is once.

        Args:
            obj: What it shall be; fields that are not mentioned stay with whoever owns them.
            dry_run: Let the server check it and change nothing.
            force: Take over fields that somebody else manages.

        Raises:
            InputError: the server does not take it, or would drop fields; `fields` names them.
            Conflict: somebody else manages a field.
            NotFound: the cluster has no such kind, or no such namespace.
        """
        kind, body = self._placed(obj)
        path = kind.path(body["metadata"].get("namespace"), body["metadata"]["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
        what = f"applying {identity(body)}"
        return self._write(Write("PATCH", path, kind, body, what, query, APPLY), dry_run=dry_run)

    def create(self, obj: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object.

        It is sent again only if it certainly was not received: after a broken connection the caller looks whether it
        is there. `apply` needs no such care.

        Raises:
            Conflict: there is one of that name.
            InputError: the server does not take it, or would drop fields; `fields` names them.
        """
        kind, body = self._placed(obj)
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
        """Change some fields of an object by a merge patch: None removes a field, lists are replaced whole.

        Raises:
            NotFound: it is not there.
            InputError: the server does not take it, or would drop fields; `fields` names them.
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
        """Delete an object; one that is not there is deleted.

        Args:
            kind: Its kind.
            name: Its name.
            namespace: Another one than the cluster's own.
            uid: Delete only this one, and not another that got its name since.
            wait_s: How long to wait until it is gone; None: do not wait.
            propagation: What becomes of what it owns.

        Raises:
            DeadlineExceeded: it is still there; says what it waits for.
        """
        found = self.get(kind, name, namespace)
        if found is None or (uid is not None and found["metadata"]["uid"] != uid):
            return
        # Bound to the uid, so that a repeated request never deletes what somebody made in between.
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
        """Tell what is there (as ADDED), then every change, until the time is over.

        Broken connections, restarts of the server and expired versions are survived; nothing is told twice.

        Raises:
            Unavailable: the server did not answer to the end.
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
        """Wait until an object is as it should be.

        Args:
            kind: Its kind.
            name: Its name.
            until: Is asked at every change, and every few seconds; None stands for no object. What it raises ends the
                wait.
            timeout_s: How long.
            what: What is waited for, for the error: "starting ctr".
            namespace: Another one than the cluster's own.
            pods: A selector of the pods whose warnings belong into the error.
            every_s: How often to ask when nothing changes.

        Returns:
            The object; None if `until` wanted none.

        Raises:
            DeadlineExceeded: it is not; with its `state` and the `events` about it.
        """
        where = (namespace or self.namespace) if kind.namespaced else None
        query = _selectors("", f"metadata.name={name}")
        end = self.clock.monotonic() + timeout_s
        watch = Watch(self._session, kind, where, query, end, window_s=min(WINDOW_S, every_s))
        waiting = Waiting(watch, until)
        if waiting.run():
            return waiting.now
        told = () if waiting.silence else self._told(waiting.now, namespace, pods)
        raise waiting.failure(what, timeout_s, told) from waiting.silence

    def events(self, obj: Mapping[str, Any]) -> Sequence[Notice]:
        """Return what the cluster wrote down about an object, the oldest first."""
        # Those about objects without a namespace are kept in this one.
        namespace = (obj.get("metadata") or {}).get("namespace") or "default"
        return notices(self.list(Kind.EVENT, fields=selector_of(dict(obj)), namespace=namespace))

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
            namespace: Another one than the cluster's own.
            container: One of their containers; the first if left out.
            follow: Go on until every pod has ended: each of those that are named, though it has not begun yet, or
                those with the labels, pods that appear later included.
            tail: Only so many lines of each from before now.
            timeout_s: How long at most.
            is_over: Is asked now and then, while named pods have not begun, whether they never will.

        Raises:
            InputError: neither pods nor a selector was named.
        """
        if not selector and not pods:
            raise InputError("logs of which pods? Name them, or give a selector")
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
        """Let a local port lead to a pod's, as long as the block lasts; yields the local port, on loopback only.

        Each connection is forwarded by itself: one that breaks takes no other along.
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
        """Run a command in a pod and return what it wrote and how it ended; nothing is read by a shell.

        Raises:
            DeadlineExceeded: it has not ended in time; it may go on there.
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

    def _placed(self, obj: Mapping[str, Any]) -> tuple[Kind, Object]:
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

    def _told(self, obj: Object | None, namespace: str | None, pods: str) -> Sequence[Notice]:
        """Collect events for an error; that they cannot be had is no other error."""
        found: list[Notice] = []
        with suppress(CloudEdgeError):
            found += self.events(obj) if obj is not None else []
        with suppress(CloudEdgeError):
            for pod in self.list(Kind.POD, selector=pods, namespace=namespace) if pods else []:
                found += [notice for notice in self.events(pod) if notice.type != "Normal"]
        return sorted(found, key=lambda notice: notice.at)


def _selectors(labels: str, fields: str) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
