"""The plan from the observed to the desired account. Pure: two states in, steps with their reasons out.

Rules:
- an object that differs only in the server's own fields is left alone, whatever its owner;
- an object that differs is changed only if it belongs to this set; one without an owner is taken over only on request,
  one of another set never;
- nothing is deleted without a request, and nothing that an app, or the previous state, still mounts;
- mounted objects come before the apps that mount them, labels come last; deletes go in reverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cloudedge.edge_bie.client import App, Config, Difference, File, Registry, Secret, Volume, compare, normal
from cloudedge.edge_bie.model import OWNER_LABEL
from cloudedge.edge_bie.sync._desired import KEEP, SET_LABEL, DesiredAccount, owner_of, owner_of_words, unmarked

__all__ = ["Kind", "ObservedAccount", "SyncPlan", "SyncStep", "Thing", "Verb", "filled", "mounted", "owner", "plan"]

Kind = Literal["config", "secret", "registry", "app", "node"]
Verb = Literal["create", "update", "adopt", "repin", "refresh", "label", "tell", "delete"]
Thing = Config | Secret | Registry | App


@dataclass(frozen=True)
class SyncStep:
    """One write."""

    verb: Verb
    kind: Kind
    name: str
    reason: str = ""
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class SyncPlan:
    """The steps, the problems that prevent them, and notes for the operator."""

    set: str
    steps: tuple[SyncStep, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_in_sync(self) -> bool:
        """True if there is nothing to do and nothing wrong."""
        return not self.steps and not self.problems


@dataclass(frozen=True)
class ObservedAccount:
    """The observed objects that a plan needs."""

    configs: Mapping[str, Config] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    registries: Mapping[str, Registry] = field(default_factory=dict)
    apps: Mapping[str, App] = field(default_factory=dict)
    """Complete if the desired state has them, summaries otherwise."""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of the existing nodes that the desired state names."""
    users: Mapping[tuple[Kind, str], frozenset[str]] = field(default_factory=dict)
    """The apps that mount an object that could be deleted."""
    passwords: Mapping[str, bool] = field(default_factory=dict)
    """By registry: True if the password applied last is the desired one; absent: none was applied from here."""
    untold: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By app: matching nodes that were not assigned this version, since the control plane misses some."""
    previous: frozenset[tuple[Kind, str]] = frozenset()
    """The objects that the apps of the previous state mount."""


def plan(desired: DesiredAccount, observed: ObservedAccount, *, adopt: bool = False, delete: bool = False) -> SyncPlan:
    """Plan the steps.

    Args:
        desired: The desired state.
        observed: The observed state.
        adopt: Take over objects without an owner that the desired state names.
        delete: Delete objects of this set that the desired state does not name.
    """
    planner = _Planner(desired, observed, adopt=adopt)
    planner.things("config", desired.configs, observed.configs)
    planner.things("secret", desired.secrets, observed.secrets)
    planner.things("registry", desired.registries, observed.registries)
    planner.things("app", desired.apps, observed.apps)
    planner.mounts()
    planner.labels()
    planner.deletes(wanted=delete)
    return SyncPlan(desired.set, tuple(planner.steps), tuple(planner.problems), tuple(planner.notes))


class _Planner:
    def __init__(self, desired: DesiredAccount, observed: ObservedAccount, *, adopt: bool) -> None:
        self._desired = desired
        self._observed = observed
        self._adopt = adopt
        self.steps: list[SyncStep] = []
        self.problems: list[str] = []
        self.notes: list[str] = []

    def things(self, kind: Kind, desired: Mapping[str, Any], observed: Mapping[str, Any]) -> None:
        for name in sorted(desired):
            found = observed.get(name)
            wanted, missing = filled(desired[name], found)
            if missing:
                self.problems.append(f"{kind} {name} has no {', '.join(missing)} to keep: give env:NAME or file:PATH")
            elif found is None:
                self._create(kind, wanted)
            else:
                self._change(kind, wanted, found)

    def _create(self, kind: Kind, wanted: Thing) -> None:
        if isinstance(wanted, Registry) and not wanted.password:
            self.problems.append(f"registry {wanted.name} does not exist and needs a password to be created")
            return
        self.steps.append(SyncStep("create", kind, wanted.name, "it does not exist", _differences(None, wanted)))

    def _change(self, kind: Kind, wanted: Thing, found: Thing) -> None:
        whose, name = owner(found), wanted.name
        differences = _differences(found, wanted)
        if not differences:
            if whose is None and self._adopt:
                self.steps.append(SyncStep("adopt", kind, name, "it has no owner, and adoption was requested"))
            elif whose == self._desired.set:
                self._plan_repairs(kind, wanted, found)
            return
        refused = _impossible_change(wanted, found)
        if refused:
            self.problems.append(refused)
        elif whose == self._desired.set or (whose is None and self._adopt):
            reason = "it differs" if whose is not None else "it has no owner and differs, and adoption was requested"
            self.steps.append(SyncStep("update", kind, name, reason, differences))
            if isinstance(wanted, Registry):
                self._password(wanted)
        elif whose is None:
            self.problems.append(f"{kind} {name} differs and is not cloudedge's; take it over with `--adopt`")
        else:
            other = f"set {whose}" if whose else "cloudedge's fleets"
            self.problems.append(f"{kind} {name} differs and belongs to {other}, not to set {self._desired.set}")

    def _plan_repairs(self, kind: Kind, wanted: Thing, found: Thing) -> None:
        if isinstance(wanted, Registry):
            self._password(wanted)
        if isinstance(found, App):
            late = [volume.config or volume.secret for volume in found.volumes if self._is_late(volume)]
            untold = self._observed.untold.get(wanted.name, ())
            if late:
                self.steps.append(
                    SyncStep("repin", kind, wanted.name, f"it is on an older version of {', '.join(late)}")
                )
            elif untold:
                why = f"{len(untold)} nodes were not assigned it, such as {untold[0]}"
                self.steps.append(SyncStep("tell", kind, wanted.name, why))

    def _is_late(self, volume: Volume) -> bool:
        kind, there = ("config", self._observed.configs) if volume.config else ("secret", self._observed.secrets)
        name = volume.config or volume.secret
        current = there.get(name)
        is_written = any(s.kind == kind and s.name == name for s in self.steps)  # which updates its apps, too
        return current is not None and not is_written and bool(volume.version) and current.version != volume.version

    def _password(self, wanted: Registry) -> None:
        known = self._observed.passwords.get(wanted.name)
        if wanted.password and not known:
            why = "its password differs" if known is False else "its password cannot be compared"
            self.steps.append(SyncStep("refresh", "registry", wanted.name, why))

    def mounts(self) -> None:
        there = {
            "config": {*self._desired.configs, *self._observed.configs},
            "secret": {*self._desired.secrets, *self._observed.secrets},
            "registry": {*self._desired.registries, *self._observed.registries},
        }
        for app in self._desired.apps.values():
            for kind, name in sorted(mounted(app)):
                if name not in there[kind]:
                    self.problems.append(f"app {app.name} needs {kind} {name}, which does not exist")

    def labels(self) -> None:
        for name, wanted in sorted(self._desired.labels.items()):
            found = self._observed.labels.get(name)
            if found is None:
                self.problems.append(f"node {name} does not exist; create it with `cloudedge bie node {name}`")
                continue
            differences = tuple(
                Difference(key, found.get(key), value)
                for key, value in sorted(wanted.items())
                if found.get(key) != value
            )
            if differences:
                self.steps.append(SyncStep("label", "node", name, "its labels differ", differences))

    def deletes(self, *, wanted: bool) -> None:
        groups: tuple[tuple[Kind, Mapping[str, Any], Mapping[str, Any]], ...] = (
            ("app", self._observed.apps, self._desired.apps),
            ("registry", self._observed.registries, self._desired.registries),
            ("secret", self._observed.secrets, self._desired.secrets),
            ("config", self._observed.configs, self._desired.configs),
        )
        going: set[str] = set()
        for kind, found, named in groups:
            for name in sorted(set(found) - set(named)):
                if owner(found[name]) != self._desired.set:
                    continue
                held = self._reason_to_stay(kind, name, going if wanted else set())
                if held:
                    self.notes.append(f"{kind} {name} is no longer in the documents and stays: {held}")
                elif wanted:
                    self.steps.append(SyncStep("delete", kind, name, "it is no longer in the documents"))
                    going |= {name} if kind == "app" else set()
                else:
                    self.notes.append(f"{kind} {name} is no longer in the documents; delete it with `--delete`")

    def _reason_to_stay(self, kind: Kind, name: str, going: set[str]) -> str:
        users = self._observed.users.get((kind, name), frozenset())
        kept = {
            app
            for app in users - going
            if app not in self._desired.apps or (kind, name) in mounted(self._desired.apps[app])
        }
        if kept:
            return f"app {min(kept)} mounts it"
        return "the previous state needs it" if (kind, name) in self._observed.previous else ""


def filled(wanted: Any, found: Any) -> tuple[Any, list[str]]:
    """Fill in current values that the desired state keeps, and return the names of missing ones."""
    missing: list[str] = []

    def keep(values: Mapping[str, str], there: Mapping[str, str], what: str) -> dict[str, str]:
        missing.extend(f"{what}{key}" for key, value in values.items() if value == KEEP and key not in there)
        return {key: there.get(key, KEEP) if value == KEEP else value for key, value in values.items()}

    if isinstance(wanted, Secret):
        wanted = replace(wanted, data=keep(wanted.data, found.data if found else {}, ""))
    elif isinstance(wanted, Config):
        items = dict(wanted.items)
        for key, item in wanted.items.items():
            if isinstance(item, File):
                there = found.items.get(key) if found else None
                extra = keep(item.extra, there.extra if isinstance(there, File) else {}, f"{key}.")
                items[key] = replace(item, extra=extra)
        wanted = replace(wanted, items=items)
    return wanted, missing


def owner(thing: Thing) -> str | None:
    """Return the set of an object; None: it has no owner that cloudedge knows."""
    return owner_of(thing.labels) if isinstance(thing, (Config, App)) else owner_of_words(thing.description)


def mounted(app: App) -> set[tuple[Kind, str]]:
    """Return the objects that an app needs."""
    return {
        *(("config", name) for name in app.configs),
        *(("secret", name) for name in app.secrets),
        *(("registry", name) for name in app.registries),
    }


def _impossible_change(wanted: Thing, found: Thing) -> str:
    """Return the reason why BIE would ignore a change; empty: it would not."""
    if isinstance(wanted, Registry) and isinstance(found, Registry):
        if (wanted.address, wanted.username) != (found.address, found.username):
            return f"registry {wanted.name}: BIE cannot change address or user; give the new one another name"
    elif isinstance(wanted, App) and isinstance(found, App) and (wanted.type, wanted.mode) != (found.type, found.mode):
        return f"app {wanted.name}: BIE cannot change type or mode; give the new one another name"
    return ""


def _differences(found: Thing | None, wanted: Thing) -> tuple[Difference, ...]:
    hide = "data" if isinstance(wanted, Secret) else ""
    return tuple(compare({} if found is None else _comparable(found), _comparable(wanted), hide=hide))


def _comparable(thing: Thing) -> dict[str, Any]:
    """Return the fields to compare: all but the owner and the server's own."""
    value = normal(thing)
    if isinstance(thing, (Secret, Registry)):
        value["description"] = unmarked(thing.description)
    else:
        value["labels"] = {k: v for k, v in (value.get("labels") or {}).items() if k not in (OWNER_LABEL, SET_LABEL)}
    return value
