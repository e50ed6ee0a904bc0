"""Simulated clients: requests that pass through a serving replica and its shards while everything else changes.

A request takes one step at a time: it picks a replica and, by the replica's shares, a version; then it reads rows of
every table from every shard; then it is answered. Pinned, it asks each shard for exactly its own version, tries a
shard's other replicas and, if the cube client refuses the answers, another serving replica. As upstream does it
(`pinned=False`), it reads the active version of each shard and takes zeros where a shard does not answer.

Rows and dense parts carry the origin of their bytes: an answer is judged by the bytes it was computed from, not by the
names they have.
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
"""The number of requests at the same time."""
_SLOW_S = (2.0, 10.0, 25.0)
"""The time that a slow request takes before it reads its rows; a drain waits longer."""
_TRIES = 6
"""The serving replicas that a client asks before it gives up, each once before any is asked again."""


class Request:
    """One request under way."""

    __slots__ = ("is_excused", "pin", "read", "replica", "todo", "tried", "until")

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.replica: SimPlace | None = None
        self.is_excused = False
        """Its replica came back with an old state: the request may fail there, and another replica has to answer it."""
        self.pin = ""
        self.until = 0.0
        """It reads its rows after this time."""
        self.todo: list[SimCube] = []
        """The tables that it has still to read, the last one first."""
        self.read: list[str] = []
        """The origins of the rows that it got."""


class Clients:
    """All clients, and the judge of the answers they get."""

    def __init__(self, world: SimulatedWorld, *, pinned: bool = True) -> None:
        self._world = world
        self._pinned = pinned
        self._under_way: list[Request] = []
        self.answered: dict[str, int] = {}
        self.scores: dict[str, float] = {}
        self.readers = Readers()
        self._bare: SimCube | None = None
        """A read without a pin that is under way."""
        self.look()
        world.clients = self

    def look(self) -> None:
        """Notice the places that exist."""
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
        """Return all shards, each with its replicas."""
        return [group for cut in self._cuts.values() for group in cut]

    def _groups(self, shards: Mapping[str, int]) -> list[list[SimPlace]]:
        """Return the shards of a layout, each with its replicas; a missing shard has none."""
        return [group for cut in shards.items() for group in self._cuts.get(cut, [[]])]

    def live(self) -> None:
        """Begin a request, or let one take a step."""
        rng = self._world.rng
        if self._under_way and rng.random() < 0.7:  # noqa: PLR2004
            # Mostly the newest first: so some are slow, and meet more than one change on their way.
            self._step(self._under_way[-1 - int(len(self._under_way) * rng.random() ** 3)])
        elif len(self._under_way) < _UNDER_WAY and any(place.active for place in self._dense):
            self._under_way.append(Request())
        if self._edge and rng.random() < 0.1:  # noqa: PLR2004
            self._ask_edge(self._edge[rng.randrange(len(self._edge))])
        if self._pinned and rng.random() < 0.05:  # noqa: PLR2004
            self._read_bare()

    def finish(self, replica: SimPlace | None = None, pin: str = "") -> None:
        """Finish requests: all that are not slow, or those of one version at one replica."""
        now = self._world.now
        for request in list(self._under_way):
            is_meant = request.until <= now if replica is None else request.replica is replica and request.pin == pin
            if is_meant:
                request.until = 0.0
                while request in self._under_way and (replica is None or request.replica is replica):
                    if request.until > now:  # it went to another replica, and is slow there
                        break
                    self._step(request)

    def lost(self, place: SimPlace) -> None:
        """Move the requests of a process that died to another replica."""
        for request in self._under_way:
            if request.replica is place:
                self._elsewhere(request)

    def in_use(self) -> list[str]:
        """List the versions that a request has or may get, the one that passed the gate of a release included."""
        pins = [request.pin for request in self._under_way if request.pin]
        journal = self._world.journal
        pins += [journal.promises.gated] if journal is not None and journal.promises.gated else []
        return list(dict.fromkeys([*pins, *(pin for place in self._dense for pin in place.active)]))

    def probe(self, replica: SimPlace, pin: str, shards: Mapping[str, int]) -> None:
        """Ask a replica a probe of one version: every shard of its layout has to have the rows.

        Raises:
            Unavailable: a shard does not.
        """
        for group in self._groups(shards):
            if not any(place.holds(pin) and replica.sees(place) for place in group):
                raise Unavailable(f"no replica of {_shard(group)} has {pin}")

    def check_reach(self, place: SimPlace) -> None:
        """Check that every shard has the rows of the versions that a serving replica just activated."""
        if place.leg != "dense" or not self._pinned:
            return
        for pin in place.active:
            for group in self._groups(place.copies[pin].shards):
                if not any(p.holds(pin) for p in group):
                    what = f"{place.name} answers with {pin}, which no replica of {_shard(group)} has"
                    self._world.broken("failed", what)

    def check_deleted(self, place: SimPlace, pin: str) -> None:
        """Check that no serving replica still reads the rows that a shard just unloaded."""
        if place.leg != "sparse":
            return
        for replica in self._dense:
            copy = replica.copies.get(pin) if pin in replica.active and not replica.is_stale else None
            if copy is not None and copy.shards.get(place.table) == place.shards:
                self._world.broken("deleted", f"{place.name} unloaded {pin}, which {replica.name} answers with")

    def _step(self, request: Request) -> None:
        if request.until > self._world.now:
            return
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
        is_first = len(request.tried) == 1
        request.todo = [SimCube(self.readers, self._cuts.get(cut, [[]]), replica, may_stray=is_first) for cut in cuts]
        if self._world.strikes("slow", 0.1):
            request.until = self._world.now + rng.choice(_SLOW_S)
        request.read = []

    def _read(self, request: Request, table: SimCube) -> None:
        """Ask the next shard, and let the client decide once all shards of a table were asked."""
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
            if not request.is_excused and not table.is_excused:
                self._world.broken("failed", f"{request.replica} asked for {request.pin}: {error.message}")
            self._elsewhere(request)

    def _elsewhere(self, request: Request) -> None:
        if request.replica is not None:
            request.replica.count(request.pin, score=0.0, failed=True)
        request.replica, request.pin, request.todo, request.read = None, "", [], []
        request.until = 0.0

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
        """Compare the origins of an answer's bytes with its pin."""
        if found.count(pin) == len(found):
            return
        if ZEROS in found:
            self._world.broken("zeros", f"{place.name} took zeros for rows of {pin}")
        if DAMAGED in found:
            self._world.broken("wrong", f"{place.name} answered with damaged bytes of {pin}")
        others = [each for each in dict.fromkeys(found) if each not in (pin, ZEROS, DAMAGED)]
        if others:
            self._world.broken("mixed", f"{place.name} answered as {pin} with bytes of {', '.join(others)}")

    def _read_bare(self) -> None:
        """Ask the next shard of a table without a pin; the client takes one version from all shards, or refuses."""
        rng = self._world.rng
        if self._bare is None:
            cuts = list(self._cuts.values())
            self._bare = SimCube(self.readers, rng.choice(cuts), None) if cuts else None
            return
        self._bare.ask_next("", int(2 * rng.random()))
        if self._bare.left:
            return
        table, self._bare = self._bare, None
        try:
            version, rows = table.rows_of_any()
        except CloudEdgeError:
            return  # a switch is under way: it asks again later
        if any(each != version for each in rows):
            self._world.broken("mixed", f"a reader without a pin got rows of {', '.join(rows)} as {version}")

    def _ask_edge(self, node: SimPlace) -> None:
        if not node.is_up or not node.active or node.is_stale:
            return  # a node that is off gets no requests
        for pin in node.active:
            copy = node.copies.get(pin)
            if copy is None or not copy.is_ready:
                self._world.broken("failed", f"{node.name} is to answer with {pin} and does not have it")
            else:
                self._judge(node, pin, [copy.bytes])


def _shard(group: list[SimPlace]) -> str:
    return f"{group[0].table}/{group[0].shard}of{group[0].shards}" if group else "a shard that is gone"
