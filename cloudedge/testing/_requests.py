"""Simulated clients: requests that pass through a serving replica and its shards while everything else moves.

A request takes a step at a time: it picks a replica and, with it, a version by the replica's shares; then it reads rows
of every table from every shard; then it is answered. Pinned, it asks each shard for exactly its own version, tries a
shard's other replicas and, if the cube client does not take what came, another serving replica. As upstream does it
(`pinned=False`), it reads whatever a shard has active and takes zeros where a shard does not answer.

Rows say whose they are, and so does the dense part: an answer is judged by the bytes it was computed from, and not by
what anybody calls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloudedge.errors import CloudEdgeError, Unavailable
from cloudedge.testing._copies import DAMAGED, ZEROS
from cloudedge.testing._simulated_cube import Readers, SimCube

if TYPE_CHECKING:
    from cloudedge.testing._simulated_places import SimPlace
    from cloudedge.testing._simulated_world import SimulatedWorld

__all__ = ["Clients", "Request"]

_UNDER_WAY = 4
"""Requests at the same time."""
_TRIES = 6
"""Serving replicas asked before a client gives up, each once before any is asked again."""


class Request:
    """One request on its way."""

    __slots__ = ("is_excused", "pin", "read", "replica", "todo", "tried")

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.replica: SimPlace | None = None
        self.is_excused = False
        """Its replica came back with an old memory; it may fail there, and has to be answered by another."""
        self.pin = ""
        self.todo: list[SimCube] = []
        """Tables it has still to read, the last one first."""
        self.read: list[str] = []
        """Whose rows it got."""


class Clients:
    """Everybody who sends requests, and the judge of what they get."""

    def __init__(self, world: SimulatedWorld, *, pinned: bool = True) -> None:
        self._world = world
        self._pinned = pinned
        self._under_way: list[Request] = []
        self.answered: dict[str, int] = {}
        self.scores: dict[str, float] = {}
        self.readers = Readers()
        self.look()
        world.clients = self

    def look(self) -> None:
        """See which places there are."""
        places = list(self._world.places.values())
        self._dense = [place for place in places if place.leg == "dense"]
        self._edge = [place for place in places if place.leg == "edge"]
        self._cuts: dict[tuple[str, int], list[list[SimPlace]]] = {}
        groups: dict[tuple[str, int, int], list[SimPlace]] = {}
        for place in places:
            if place.leg == "sparse":
                if place.group not in groups:
                    groups[place.group] = []
                    self._cuts.setdefault((place.table, place.shards), []).append(groups[place.group])
                groups[place.group].append(place)

    def groups(self) -> list[list[SimPlace]]:
        """Return all shards there are, each with its replicas."""
        return [group for cut in self._cuts.values() for group in cut]

    def _groups(self, shards: Mapping[str, int]) -> list[list[SimPlace]]:
        """Return the shards of a layout, each with its replicas; a shard that is nowhere has none."""
        return [group for cut in shards.items() for group in self._cuts.get(cut, [[]])]

    def live(self) -> None:
        """Let a request begin, or one that is under way take a step."""
        rng = self._world.rng
        if self._under_way and rng.random() < 0.7:  # noqa: PLR2004
            # The newest first, mostly: so some are slow, and meet more than one change on their way.
            self._step(self._under_way[-1 - int(len(self._under_way) * rng.random() ** 3)])
        elif len(self._under_way) < _UNDER_WAY and any(place.active for place in self._dense):
            self._under_way.append(Request())
        if self._edge and rng.random() < 0.1:  # noqa: PLR2004
            self._ask_edge(self._edge[rng.randrange(len(self._edge))])

    def finish(self, replica: SimPlace | None = None, pin: str = "") -> None:
        """Let the requests under way end, all of them or those of one version at one replica."""
        for request in list(self._under_way):
            if replica is None or (request.replica is replica and request.pin == pin):
                while request in self._under_way and (replica is None or request.replica is replica):
                    self._step(request)

    def lost(self, place: SimPlace) -> None:
        """A process died: requests it was working on go to another replica."""
        for request in self._under_way:
            if request.replica is place:
                self._elsewhere(request)

    def in_use(self) -> list[str]:
        """List the versions that some request has, or may get."""
        pins = [request.pin for request in self._under_way if request.pin]
        return list(dict.fromkeys([*pins, *(pin for place in self._dense for pin in place.active)]))

    def probe(self, replica: SimPlace, pin: str, shards: Mapping[str, int]) -> None:
        """Ask a replica a probe of one version: every shard of its layout has to have its rows.

        Raises:
            Unavailable: one does not.
        """
        for group in self._groups(shards):
            if not any(place.holds(pin) and replica.sees(place) for place in group):
                raise Unavailable(f"no replica of {_shard(group)} has {pin}")

    def check_reach(self, place: SimPlace) -> None:
        """Whatever a serving replica was just told to answer with has to have its rows everywhere."""
        if place.leg != "dense" or not self._pinned:
            return
        for pin in place.active:
            for group in self._groups(place.copies[pin].shards):
                if not any(p.holds(pin) for p in group):
                    what = f"{place.name} answers with {pin}, which no replica of {_shard(group)} has"
                    self._world.broken("failed", what)

    def check_deleted(self, place: SimPlace, pin: str) -> None:
        """What a replica may still ask for must not have been deleted."""
        if place.leg != "sparse":
            return
        for replica in self._dense:
            copy = replica.copies.get(pin) if pin in replica.active and not replica.is_stale else None
            if copy is not None and copy.shards.get(place.table) == place.shards:
                self._world.broken("deleted", f"{place.name} forgot {pin}, which {replica.name} answers with")

    def _step(self, request: Request) -> None:
        if request.replica is None:
            self._pick(request)
        elif request.todo:
            self._read(request, request.todo[-1])
        else:
            self._answer(request)

    def _pick(self, request: Request) -> None:
        rng = self._world.rng
        able = [p for p in self._dense if p.is_up and p.active]
        able = [p for p in able if p.name not in request.tried] or able
        if not able or len(request.tried) >= _TRIES:
            self._world.broken(
                "failed", f"no serving replica could answer (tried {', '.join(request.tried) or 'none'})"
            )
            self._under_way.remove(request)
            return
        replica = able[rng.randrange(len(able))]
        request.tried.append(replica.name)
        request.replica = replica
        request.is_excused = replica.is_stale
        chance = rng.random()
        for pin, share in replica.active.items():
            request.pin = pin
            chance -= share
            if chance < 0:
                break
        # Unpinned readers have one cube.conf; a pinned version reads the layout it was loaded for.
        copy = replica.copies.get(request.pin)
        cuts = copy.shards.items() if copy is not None else ()
        request.todo = [SimCube(self.readers, self._cuts.get(cut, [[]]), replica) for cut in cuts]
        request.read = []

    def _read(self, request: Request, table: SimCube) -> None:
        """Ask one shard more, and have the client judge once all of a table's were asked."""
        first = int(2 * self._world.rng.random())
        if not self._pinned:
            request.read += table.rows_unpinned(first)
            request.todo.pop()
            return
        table.ask_next(request.pin, first)
        if table.left:
            return
        request.todo.pop()
        try:
            request.read += table.rows(request.pin)
        except CloudEdgeError as error:
            if not request.is_excused and not table.is_cut_off:
                self._world.broken("failed", f"{request.replica} asked for {request.pin}: {error.message}")
            self._elsewhere(request)

    def _elsewhere(self, request: Request) -> None:
        if request.replica is not None:
            request.replica.count(request.pin, score=0.0, failed=True)
        request.replica, request.pin, request.todo, request.read = None, "", [], []

    def _answer(self, request: Request) -> None:
        self._under_way.remove(request)
        replica, pin = request.replica, request.pin
        if replica is None:
            return
        self.answered[pin] = self.answered.get(pin, 0) + 1
        replica.count(pin, score=self.scores.get(pin, 0.0) + self._world.rng.random())
        copy = replica.copies.get(pin)
        self._judge(replica, pin, [copy.bytes if copy is not None else DAMAGED, *request.read])

    def _judge(self, place: SimPlace, pin: str, found: list[str]) -> None:
        """Compare whose bytes an answer was computed from with what it was asked of."""
        if found.count(pin) == len(found):
            return
        if ZEROS in found:
            self._world.broken("zeros", f"{place.name} took zeros for rows of {pin}")
        if DAMAGED in found:
            self._world.broken("wrong", f"{place.name} answered with damaged bytes of {pin}")
        others = [each for each in dict.fromkeys(found) if each not in (pin, ZEROS, DAMAGED)]
        if others:
            self._world.broken("mixed", f"{place.name} answered as {pin} with bytes of {', '.join(others)}")

    def _ask_edge(self, node: SimPlace) -> None:
        if not node.is_up or not node.active or node.is_stale:
            return  # a node that is off serves nobody
        for pin in node.active:
            copy = node.copies.get(pin)
            if copy is None or not copy.is_ready:
                self._world.broken("failed", f"{node.name} is to answer with {pin} and does not have it")
            else:
                self._judge(node, pin, [copy.bytes])


def _shard(group: list[SimPlace]) -> str:
    return f"{group[0].table}/{group[0].shard}of{group[0].shards}" if group else "a shard that is gone"
