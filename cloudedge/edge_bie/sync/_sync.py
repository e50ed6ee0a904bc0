"""`Sync`: makes a control plane match documents. Observes, plans, writes in order, and records what it applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudedge.clock import Clock
from cloudedge.edge_bie.client import App, Bie, File, Mountable, Objects, put_file, state_folder
from cloudedge.edge_bie.sync._desired import DesiredAccount, app_of, desired_state
from cloudedge.edge_bie.sync._history import AppliedState, History
from cloudedge.edge_bie.sync._sync_documents import AppDocument
from cloudedge.edge_bie.sync._sync_plan import Kind, ObservedAccount, SyncPlan, SyncStep, filled, mounted, owner, plan
from cloudedge.errors import InputError, NotFound
from cloudedge.journal import Writer

__all__ = ["Applied", "Sync"]

OnStep = Callable[[SyncStep], None]


@dataclass(frozen=True)
class Applied:
    """The result of an apply."""

    plan: SyncPlan
    number: int | None
    """The number of the state in the history; None if it was applied already."""
    sent_bytes: int = 0
    """Bytes of uploaded files."""


class Sync:
    """Keeps one control plane in the state of a folder of documents.

    Args:
        bie: The control plane.
        objects: The storage of uploaded files.
        folder: The folder of the history; by default in cloudedge's own.
        clock: Time.
    """

    def __init__(
        self, bie: Bie, *, objects: Objects | None = None, folder: Path | None = None, clock: Clock | None = None
    ) -> None:
        self.bie = bie
        self.objects = objects
        self.history = History(folder or state_folder(bie.settings), clock)

    def close(self) -> None:
        """Close the history."""
        self.history.close()

    def __enter__(self) -> Sync:  # noqa: PYI034 - typing.Self is newer than 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self, desired: DesiredAccount, *, adopt: bool = False, delete: bool = False) -> SyncPlan:
        """Plan the changes, and change nothing."""
        return plan(desired, self.observe(desired), adopt=adopt, delete=delete)

    def apply(
        self, desired: DesiredAccount, *, adopt: bool = False, delete: bool = False, on_step: OnStep = lambda _: None
    ) -> Applied:
        """Apply the changes: configs, secrets, registries, apps, labels, then deletes. Writes only differences.

        Raises:
            InputError: the plan has problems; nothing was written.
            CloudEdgeError: a write failed; those before it are made, and the same call continues from there.
        """
        # Observe only after other writers are done; an earlier observation would be outdated.
        with self.history.writing() as writer, self.bie.turn():
            observed = self.observe(desired)
            planned = plan(desired, observed, adopt=adopt, delete=delete)
            return self._apply(writer, desired, observed, planned, on_step)

    def _apply(
        self, writer: Writer, desired: DesiredAccount, observed: ObservedAccount, planned: SyncPlan, on_step: OnStep
    ) -> Applied:
        if planned.problems:
            raise InputError(
                f"set {desired.set} cannot be applied: {'; '.join(planned.problems)}",
                hint="Look at the whole plan with `cloudedge bie plan`. Nothing was written.",
                problems=planned.problems,
            )
        last = self.history.last(desired.set)
        if not planned.steps and last is not None and last.documents == desired.documents:
            return Applied(planned, None)
        with self.history.applying(writer, planned, desired.documents) as attempt:
            sent = self._upload(desired, planned)
            for step in planned.steps:
                on_step(step)
                with attempt.step(step):
                    self._make_step(step, desired, observed)
                if step.kind == "registry" and step.verb in ("create", "refresh"):
                    attempt.applied_password(desired.registries[step.name])
            self._assign_nodes(desired)
            return Applied(planned, attempt.number, sent)

    def drift(self, named: str) -> SyncPlan:
        """Plan the changes back to the state applied last, which shows what others changed.

        Raises:
            NotFound: none was applied from this machine.
        """
        last = self.history.last(named)
        if last is None:
            raise NotFound(
                f"set {named} was never applied from this machine",
                hint="Compare with the documents with `cloudedge bie plan`.",
            )
        return self.plan(self.recall(last))

    def recall(self, state: AppliedState) -> DesiredAccount:
        """Return an applied state as a desired one."""
        # Paths were resolved when it was applied, except those of probes.
        return desired_state([(document, Path()) for document in state.documents])

    def observe(self, desired: DesiredAccount) -> ObservedAccount:
        """Read everything that a plan needs."""
        summaries = {app.name: app for app in self.bie.apps()}
        whole = {name: app for name in desired.apps if name in summaries and (app := self.bie.app(name)) is not None}
        secrets = {each.name: each for each in self.bie.secrets()}
        opened = {name: s for name in desired.secrets if name in secrets and (s := self.bie.secret(name)) is not None}
        configs = {each.name: each for each in self.bie.configs()}
        registries = {each.name: each for each in self.bie.registries()}
        nodes = {name: node for name in desired.labels if (node := self.bie.node(name)) is not None}
        known = {name: self.history.knows_password(each) for name, each in desired.registries.items() if each.password}
        before = self.history.other_than(desired.set, desired.documents)
        groups: tuple[tuple[Mountable, Any, Any], ...] = (
            ("config", configs, desired.configs),
            ("secret", secrets, desired.secrets),
            ("registry", registries, desired.registries),
        )
        return ObservedAccount(
            configs=configs,
            secrets=secrets | opened,
            registries=registries,
            apps=summaries | whole,
            labels={name: node.labels for name, node in nodes.items()},
            users={
                (kind, name): frozenset(app.name for app in self.bie.apps_of(kind, name))
                for kind, found, named in groups
                for name in set(found) - set(named)
                if owner(found[name]) == desired.set
            },
            passwords={name: is_it for name, is_it in known.items() if is_it is not None},
            untold=self._unassigned_nodes(whole.values()),
            previous=frozenset() if before is None else self._mounted_by(before),
        )

    def _unassigned_nodes(self, apps: Iterable[App]) -> dict[str, tuple[str, ...]]:
        """Return by app the matching nodes without its version; reads each node, since lists leave that out."""
        assigned: dict[str, Mapping[str, str]] = {}
        found: dict[str, tuple[str, ...]] = {}
        for app in apps:
            names = [node.name for node in self.bie.nodes(selector=app.selector)] if app.selector else []
            for name in names:
                if name not in assigned:
                    node = self.bie.node(name)
                    assigned[name] = node.desire_apps if node is not None else {}
            found[app.name] = tuple(name for name in names if assigned[name].get(app.name) != app.version)
        return found

    def _mounted_by(self, state: AppliedState) -> frozenset[tuple[Kind, str]]:
        apps = [app_of(each) for each in state.documents if isinstance(each, AppDocument)]
        return frozenset(pair for app in apps for pair in mounted(app))

    def _upload(self, desired: DesiredAccount, planned: SyncPlan) -> int:
        written = {step.name for step in planned.steps if step.kind == "config" and step.verb != "delete"}
        needed = {
            f"sha256:{item.sha256}"
            for name in written
            for item in desired.configs[name].items.values()
            if isinstance(item, File)
        }
        sent = 0
        for upload in desired.uploads:
            if upload.digest in needed and self.objects is not None:
                sent += put_file(self.objects, upload.path, expected=upload.digest).sent_bytes
        return sent

    def _make_step(self, step: SyncStep, desired: DesiredAccount, observed: ObservedAccount) -> None:
        if step.verb == "delete":
            self.bie.delete(step.kind, step.name)
        elif step.kind == "node":
            self.bie.set_labels(step.name, desired.labels[step.name])
        elif step.verb == "tell":
            pass  # done for every app at the end
        elif step.verb == "repin":
            self.bie.repin(step.name)
        elif step.verb == "refresh":
            self.bie.refresh_registry(step.name, desired.registries[step.name].password)
        else:
            self._put(step, desired, observed)

    def _assign_nodes(self, desired: DesiredAccount) -> None:
        """Make sure that every matching node was assigned its apps, whether the app or the node was written.

        The control plane misses an assignment when two writes meet; writing the node makes it match again.
        """
        apps = [app for name in sorted(desired.apps) if (app := self.bie.app(name)) is not None]
        for name, nodes in self._unassigned_nodes(apps).items():
            version = next(app.version for app in apps if app.name == name)
            for node in nodes:
                self.bie.set_labels(node, {}, apps={name: version})

    def _put(self, step: SyncStep, desired: DesiredAccount, observed: ObservedAccount) -> None:
        groups: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
            "config": (desired.configs, observed.configs, self.bie.put_config),
            "secret": (desired.secrets, observed.secrets, self.bie.put_secret),
            "registry": (desired.registries, observed.registries, self.bie.put_registry),
            "app": (desired.apps, observed.apps, self.bie.put_app),
        }
        wanted, found, put = groups[step.kind]
        put(filled(wanted[step.name], found.get(step.name))[0])
