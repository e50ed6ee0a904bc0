"""The node calls of `Bie`: labels, properties, reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cloudedge.clock import Clock
from cloudedge.edge_bie.client._http import Transport
from cloudedge.edge_bie.client._nodes import Node
from cloudedge.edge_bie.client._resources import PAGE, Resources, read_as, require_found
from cloudedge.edge_bie.client._rules import check_labels, check_node
from cloudedge.edge_bie.client._writes import Writer, Written
from cloudedge.errors import Conflict, InputError

__all__ = ["NodeCalls", "Properties"]

_REPAIRS: Final = 5


@dataclass(frozen=True)
class Properties:
    """A node's shadow properties: the desired and the reported ones."""

    desired: Mapping[str, str]
    reported: Mapping[str, Any]


class NodeCalls:
    """Calls about nodes."""

    def __init__(self, transport: Transport, writer: Writer, clock: Clock, *, namespace: str) -> None:
        self._clock = clock
        self._transport = transport
        self._writer = writer
        self._resources = Resources(transport, writer, namespace=namespace)

    def nodes(self, *, selector: str = "", page_size: int = PAGE) -> list[Node]:
        """List nodes with their reports; lists do not name the apps a node should run, see `node`."""
        return [read_as(Node, item) for item in self._resources.every("nodes", selector, page_size)]

    def node(self, name: str) -> Node | None:
        """Read a node, or return None."""
        found = self._resources.get("node", name, f"nodes/{name}")
        return None if found is None else read_as(Node, found)

    def stats(self, name: str) -> Node:
        """Read a node's report, without the apps it should run.

        Raises:
            NotFound: the node does not exist.
        """
        return read_as(Node, self._resources.read("node", name, f"nodes/{name}/stats"))

    def put_node(self, node: Node) -> Node:
        """Create a node. An existing one is returned unchanged: `set_labels` moves labels."""
        check_node(node)
        with self._writer.alone("node", node.name):
            if (current := self.node(node.name)) is not None:
                return current
            write = Written("create", "node", node.name, "POST", "nodes", node.to_json())
            self._writer.create(write, lambda: self.node(node.name))
            found = self._writer.read_back(
                write, lambda: self.node(node.name), lambda it: "" if it else "it does not exist"
            )
        return require_found(found, "node", node.name)

    def delete_node(self, name: str) -> None:
        """Delete a node's record; a missing one is no error. The machine itself goes on running its apps."""
        self._resources.delete("node", name, f"nodes/{name}")

    def set_labels(
        self, name: str, changes: Mapping[str, str | None], *, apps: Collection[str] | Mapping[str, str] = ()
    ) -> Node:
        """Change labels of a node and leave everything else unchanged.

        An update replaces the whole node, and of two concurrent updates one is lost silently. So the node is read back,
        and the change is repeated if it is missing.

        Args:
            name: The node.
            changes: Label to value; None removes the label.
            apps: Apps (or app to version) that the node must be assigned afterwards; if the control plane missed one,
                it is made to match apps and nodes again.

        Raises:
            NotFound: the node does not exist.
            Conflict: another writer keeps changing it.
        """
        check_labels({k: v for k, v in changes.items() if v is not None}, f"node {name}")

        def amiss(node: Node | None) -> str:
            if node is None:
                return "it does not exist"
            assigned = node.desire_apps
            versions = apps if isinstance(apps, Mapping) else {app: assigned.get(app, "?") for app in apps}
            lost = [f"label {key}" for key, value in changes.items() if node.labels.get(key) != value]
            return ", ".join(
                [*lost, *(f"app {app}" for app, version in versions.items() if assigned.get(app) != version)]
            )

        with self._writer.alone("node", name):
            for _ in range(_REPAIRS):
                node = require_found(self.node(name), "node", name)
                if not amiss(node):
                    return node
                labels = {k: v for k, v in {**node.labels, **changes}.items() if v is not None}
                body = replace(node, labels=labels).to_json()
                write = Written("update", "node", name, "PUT", f"nodes/{name}", body, node.version)
                self._writer.write(write)
                try:
                    found = self._writer.read_back(write, lambda: self.node(name), amiss)
                except Conflict:
                    self._clock.sleep(0.2 + 0.3 * self._clock.random())
                else:
                    return require_found(found, "node", name)
        raise Conflict(
            f"labels of node {name} were written {_REPAIRS} times and lost each time",
            hint="Another writer changes the same node. Let only one of the two write it.",
            node=name,
        )

    def properties(self, name: str) -> Properties:
        """Read a node's shadow properties.

        Raises:
            NotFound: the node does not exist.
        """
        state = self._resources.read("node", name, f"nodes/{name}/properties").get("state") or {}
        return Properties(state.get("desire") or {}, state.get("report") or {})

    def set_properties(self, name: str, changes: Mapping[str, str | None]) -> Properties:
        """Change a node's desired properties; None removes a property.

        Raises:
            NotFound: the node does not exist.
            InputError: a value is not a string.
        """
        for key, value in changes.items():
            if value is not None and not isinstance(value, str):
                raise InputError(f"property {key} of node {name} is {value!r}; BIE accepts only strings")
        with self._writer.alone("node", name):
            current = self.properties(name).desired
            wanted = {k: v for k, v in {**current, **changes}.items() if v is not None}
            if wanted == current:
                return self.properties(name)
            path, body = f"nodes/{name}/properties", {"state": {"desire": wanted}}
            write = Written("update", "properties", name, "PUT", path, body)
            self._writer.write(write)
            return self._writer.read_back(
                write, lambda: self.properties(name), lambda p: "" if p.desired == wanted else "it differs"
            )

    def install_command(self, name: str, *, mode: str = "kube", method: str = "curl") -> str:
        """Return the command that makes a machine this node. It holds a token, valid for one hour: do not log it.

        Raises:
            NotFound: the node does not exist.
        """
        query = {"mode": mode, "method": method}
        reply = self._transport.call("GET", f"nodes/{name}/init", what=f"reading the installer of {name}", query=query)
        return str(reply.get("cmd") or "")
