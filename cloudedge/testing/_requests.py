"""Simulated clients: requests that pass through a serving replica and its shards while everything else moves.

A request takes a step at a time: it picks a replica and, with it, a version by the replica's shares; then it reads rows
of every table from every shard; then it is answered. Pinned, it asks each shard for exactly its own version, tries a
shard's other replicas and, if none has it, another serving replica. As upstream does it (`pinned=False`), it reads
whatever a shard has active and takes zeros where a shard does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloudedge.errors import Unavailable

if TYPE_CHECKING:
    from cloudedge.testing._places import SimPlace
    from cloudedge.testing._world import World

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
        self.todo: list[list[SimPlace]] = []
        self.read: list[str] = []


class Clients:
    """Everybody who sends requests, and the judge of what they get."""

    def __init__(self, world: World, *, pinned: bool = True) -> None:
        self._world = world
        self._pinned = pinned
        self._under_way: list[Request] = []
        self.answered: dict[str, int] = {}
        self.scores: dict[str, float] = {}
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

    def probe(self, pin: str, shards: Mapping[str, int]) -> None:
        """Ask a probe of one version: every shard of its layout has to have its rows.

        Raises:
            Unavailable: one does not.
        """
        for group in self._groups(shards):
            if not any(place.holds(pin) for place in group):
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
            self._read(request, request.todo.pop())
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
        request.todo = self._groups(copy.shards if copy is not None else {})
        request.read = []

    def _read(self, request: Request, group: list[SimPlace]) -> None:
        rng = self._world.rng
        first = rng.randrange(len(group)) if group else 0
        if not self._pinned:
            shard = group[first]
            active = next(iter(shard.active), None) if shard.is_up else None
            request.read.append(active or "zeros")
            return
        for place in group[first:] + group[:first]:
            if place.holds(request.pin):
                copy = place.copies[request.pin]
                request.read.append(copy.pin if copy.is_intact else "damaged rows")
                return
        if not request.is_excused:
            what = f"{request.replica} asked for {request.pin}, which no replica of {_shard(group)} has"
            self._world.broken("failed", what)
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
        copy = replica.copies.get(pin)
        replica.count(pin, score=self.scores.get(pin, 0.0) + self._world.rng.random())
        found = list(dict.fromkeys(request.read))
        if "zeros" in found:
            self._world.broken("zeros", f"{replica.name} took zeros for rows of {pin}")
        if "damaged rows" in found or copy is None or not copy.is_intact:
            self._world.broken("wrong", f"{replica.name} answered with damaged bytes of {pin}")
        others = [each for each in found if each not in (pin, "zeros", "damaged rows")]
        if others:
            self._world.broken("mixed", f"{replica.name} answered with dense {pin} and rows of {', '.join(others)}")

    def _ask_edge(self, node: SimPlace) -> None:
        if not node.is_up or not node.active or node.is_stale:
            return  # a node that is off serves nobody
        for pin in node.active:
            copy = node.copies.get(pin)
            if copy is None or not copy.is_ready:
                self._world.broken("failed", f"{node.name} is to answer with {pin} and does not have it")
            elif not copy.is_intact:
                self._world.broken("wrong", f"{node.name} answered with damaged bytes of {pin}")


def _shard(group: list[SimPlace]) -> str:
    return f"{group[0].table}/{group[0].shard}of{group[0].shards}" if group else "a shard that is gone"
