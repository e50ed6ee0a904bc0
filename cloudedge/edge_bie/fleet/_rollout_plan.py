"""Planning of a rollout: the nodes that move, their waves, and the unfit nodes. Reads the account, writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloudedge.config import EdgeLeg
from cloudedge.edge_bie.client import App, Bie, Node
from cloudedge.edge_bie.fleet._preflight import preflight
from cloudedge.edge_bie.fleet._publish import Publisher
from cloudedge.edge_bie.fleet._revision import Revision
from cloudedge.edge_bie.fleet._rollout import RolloutPlan, Unfit
from cloudedge.edge_bie.fleet._waves import RolloutPolicy, in_waves
from cloudedge.edge_bie.model import APP_LABEL, node_label

__all__ = ["Planner"]


class Planner:
    """Plans rollouts of one app.

    Args:
        bie: The account.
        publisher: Reads the published revisions.
        leg: The settings.
    """

    def __init__(self, bie: Bie, publisher: Publisher, leg: EdgeLeg) -> None:
        self._bie = bie
        self._publisher = publisher
        self._leg = leg
        self._label = node_label(leg.app)

    def plan(
        self,
        nodes: Sequence[Node],
        revisions: Sequence[Revision],
        app: App,
        policy: RolloutPolicy | None,
        *,
        skip_unfit: bool,
        memory_bytes: int = 0,
    ) -> RolloutPlan:
        """Decide which nodes move.

        Args:
            nodes: All nodes of the fleet.
            revisions: The revisions they move to, one after the other.
            app: The app of the last revision.
            policy: The policy instead of cloudedge.yaml's.
            skip_unfit: Leave out nodes that cannot take it, instead of listing them.
            memory_bytes: Memory that the bundle declares.
        """
        chosen, last, known = policy or RolloutPolicy.of(self._leg), revisions[-1], self._publisher.revisions()
        current = {node.name: node.labels.get(self._label, "") for node in nodes}
        same = {name for name in set(current.values()) if self._is_same(known.get(name), last, app)}
        movers = [node for node in nodes if current[node.name] not in same]
        movers.sort(key=lambda node: (node.ready != "online", node.name))  # an offline node proves nothing: last
        unfit = self._unfit(movers, last, known, memory_bytes)
        if skip_unfit:
            movers = [node for node in movers if node.name not in {each.node for each in unfit}]
        pairs = [(node.name, node.labels) for node in movers]
        waves = [wave for revision in revisions for wave in in_waves(pairs, chosen.waves, revision.name)]
        return RolloutPlan(
            app=self._leg.app,
            title=last.title,
            pin=last.statement.pin,
            revisions=tuple(revision.name for revision in revisions),
            waves=tuple(waves),
            previous={node.name: current[node.name] for node in movers},
            offline=tuple(node.name for node in movers if node.ready != "online"),
            unfit=() if skip_unfit else tuple(unfit),
            policy=chosen,
        )

    def _is_same(self, current: Revision | None, wanted: Revision, app: App) -> bool:
        """Return True if two revisions have the same content, numbers aside."""
        if current is None or current.again(0).statement != wanted.again(0).statement:
            return False
        return current.name == wanted.name or self._publisher.same_app(current.app, app)

    def _unfit(
        self, nodes: Sequence[Node], wanted: Revision, known: Mapping[str, Revision], memory_bytes: int
    ) -> list[Unfit]:
        ports: dict[str, tuple[int, ...]] = {}
        return [
            unfit
            for node in nodes
            for unfit in preflight(
                node,
                self._leg.needs,
                disk_bytes=wanted.new_bytes(known.get(node.labels.get(self._label, ""))),
                memory_bytes=memory_bytes,
                port=self._leg.port,
                taken=self._taken(node, ports),
            )
        ]

    def _taken(self, node: Node, ports: dict[str, tuple[int, ...]]) -> dict[int, str]:
        """Return the ports that other apps of a node take; `ports` caches those of each app."""
        found: dict[int, str] = {}
        for name in node.report.apps if node.report else ():
            if name not in ports:
                app = self._bie.app(name)
                is_other = app is not None and app.labels.get(APP_LABEL) != self._leg.app
                ports[name] = app.host_ports if app is not None and is_other else ()
            found.update(dict.fromkeys(ports[name], name))
        return found
