"""The shared state of the lab: the store, names, versions, the time, and references between objects.

A version is Unix seconds and six random characters, as in database mode, or a growing number, as in Kubernetes mode.
The control plane compares both as text, and both go wrong in their own way: two versions of one second come in any
order, and `1000` is before `999`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudedge.clock import Clock, rfc3339
from cloudedge.edge_bie.lab.state import selectors
from cloudedge.edge_bie.lab.state._errors import ApiError, invalid
from cloudedge.edge_bie.lab.state._store import LabStore

__all__ = ["APP_MODE", "HIDDEN_LABELS", "NODE_NAME", "SYSTEM", "LabState", "check_name"]

SYSTEM = "baetyl-cloud-system"
"""The label of everything the control plane created for itself; lists hide it."""
NODE_NAME = "baetyl-node-name"
APP_MODE = "baetyl-app-mode"
HIDDEN_LABELS = ("baetyl-accelerator", "baetyl-cluster", "baetyl-node-mode")
"""Labels of nodes that are stored and matched but never shown."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,61}[a-z0-9]")
_SERVICE = re.compile(r"[a-z0-9][-a-z0-9]{0,61}[a-z0-9]")


def check_name(name: str, *, service: bool = False) -> None:
    """Refuse a name that the control plane does not accept.

    Raises:
        ApiError: the name is invalid.
    """
    if not (_SERVICE if service else _NAME).fullmatch(name):
        rule = "svc_name" if service else "res_name"
        raise invalid(f"Key: 'Name' Error:Field validation for 'Name' failed on the '{rule}' tag")


class LabState:
    """The lab's objects and the references between them."""

    def __init__(self, folder: Path, *, namespace: str, clock: Clock, seed: int | None = None) -> None:
        self.namespace = namespace
        self.clock = clock
        self.rate = 1.0
        """Lab seconds per real second, which decide when a node is offline."""
        self.next_version: int | None = None
        """The next version in Kubernetes mode; None in database mode."""
        self.sync_url = ""
        self.shown: dict[str, tuple[Mapping[str, Any], bool, Any]] = {}
        """Reports in the users' form by node, with the report they came from and the node's readiness."""
        self._heard: dict[str, str] = {}
        self._hearing: dict[str, str] = {}
        self._heard_at = clock.monotonic()
        self._random = random.Random(seed)  # noqa: S311 - for names, not for secrets
        self._exact: dict[tuple[str, str], dict[str, None]] = {}
        self._other: dict[str, None] = {}
        self._users: dict[tuple[str, str], dict[str, None]] = {}
        self._labelled: dict[tuple[str, str], dict[str, None]] = {}
        self.store = LabStore(folder, self._track_change)

    # -- time and versions -------------------------------------------------------------------------------------------

    def now(self) -> str:
        """Return the time in the control plane's form."""
        return rfc3339(self.clock.now())

    def version(self) -> str:
        """Return a new version."""
        if self.next_version is not None:
            self.next_version += 1
            return str(self.next_version - 1)
        return f"{int(self.clock.now().timestamp())}{self.letters(6)}"

    def letters(self, count: int) -> str:
        """Return random letters and digits."""
        return "".join(self._random.choices(_ALPHABET, k=count))

    def hear(self, node: str, time: str) -> None:
        """Record when a node reported, for lists: they read a copy that is updated once a second."""
        self._hearing[node] = time
        if self.clock.monotonic() - self._heard_at >= 1:
            self._heard_at = self.clock.monotonic()
            self._heard.update(self._hearing)
            self._hearing.clear()

    def heard(self) -> Mapping[str, str]:
        """Return by node the last report's time that lists know."""
        nodes = self.store.all("node")
        if len(self._heard) < len(nodes):
            self._heard = {
                node["name"]: (self.store.get("report", node["name"]) or {}).get("time", "") for node in nodes
            }
        return self._heard

    # -- references --------------------------------------------------------------------------------------------------

    def _track_change(self, kind: str, name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        if kind == "app":
            for place in self._places(old):
                place.pop(name, None)
            for place in self._places(new):
                place[name] = None
        elif kind == "node":
            for pair in old["labels"].items() if old else ():
                self._labelled[pair].pop(name, None)
            for pair in new["labels"].items() if new else ():
                self._labelled.setdefault(pair, {})[name] = None
            if new is None:
                self.shown.pop(name, None)
                self._heard.pop(name, None)
                self._hearing.pop(name, None)

    def _places(self, app: Mapping[str, Any] | None) -> Iterator[dict[str, None]]:
        if app is None:
            return
        for volume in app.get("volumes", ()):
            for kind in ("config", "secret"):
                if volume.get(kind):
                    yield self._users.setdefault((kind, volume[kind].get("name", "")), {})
        if app.get("selector"):
            yield self._place_of(app["selector"])

    def _place_of(self, selector: str) -> dict[str, None]:
        requirements = selectors.parse(selector) or ()
        if len(requirements) == 1 and requirements[0].operator == "in" and len(requirements[0].values) == 1:
            return self._exact.setdefault((requirements[0].key, next(iter(requirements[0].values))), {})
        return self._other

    def users(self, kind: str, name: str) -> list[str]:
        """Return the apps that mount a config or a secret."""
        return list(self._users.get((kind, name), ()))

    def apps_for(self, labels: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """Return the apps whose selector matches a node, in the order of lists."""
        found = [name for pair in labels.items() for name in self._exact.get(pair, ())]
        for name in self._other:
            app = self.store.get("app", name)
            if app is not None and selectors.matches(app["selector"], labels):
                found.append(name)
        found.sort(key=lambda name: self.store.age("app", name))
        apps = [app for name in found if (app := self.store.get("app", name)) is not None]
        return sorted(apps, key=lambda app: str(app["createTime"]), reverse=True)

    def nodes_for(self, selector: str) -> list[str]:
        """Return the nodes that a selector matches; an empty one matches none."""
        if not selector:
            return []
        requirements = selectors.parse(selector)
        if requirements is None:
            return []
        if len(requirements) == 1 and requirements[0].operator == "in" and len(requirements[0].values) == 1:
            return list(self._labelled.get((requirements[0].key, next(iter(requirements[0].values))), ()))
        return [
            str(node["name"])
            for node in self.store.all("node")
            if all(requirement.matches(node["labels"]) for requirement in requirements)
        ]

    def need(self, kind: str, name: str, *, called: str = "") -> Mapping[str, Any]:
        """Return an existing object.

        Raises:
            ApiError: it does not exist.
        """
        found = self.store.get(kind, name)
        if found is None:
            what = called or kind
            raise ApiError("ErrResourceNotFound", f"访问不存在的资源。\nThe ({what}) resource ({name}) is not found.")
        return found
