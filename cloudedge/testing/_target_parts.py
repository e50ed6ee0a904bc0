"""The parts of a simulated target besides its places: versions without bytes, a hub in memory, layouts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

from cloudedge.errors import InputError, IntegrityError, Interrupted, NotFound
from cloudedge.release import FixedLayout, Place, ReleaseContext, TableFacts, Target, Version
from cloudedge.testing._simulated_places import SimPlace
from cloudedge.testing._simulated_world import SimClock, SimJournal, SimulatedWorld

__all__ = ["SimBundleSource", "SimLayouts", "sim_target", "sim_version"]

_BUNDLE_BYTES = 5000


def sim_version(number: int, *, tables: Mapping[str, int] | None = None, label: str = "") -> Version:
    """Make a version without bytes; `tables` gives the number of shards of each table."""
    facts = {
        name: TableFacts(rows=10 * shards, dtype="float32", dim=4, row_bytes=16, shard_rows=(10,) * shards)
        for name, shards in (tables or {}).items()
    }
    digest = f"sha256:{number:064x}"
    return Version(f"v{number}", "ctr", digest, label or str(number), dense_bytes=1000, tables=facts)


class SimBundleSource:
    """A hub in memory whose garbage collection deletes everything without a tag."""

    def __init__(self, world: SimulatedWorld, versions: list[Version], layouts: SimLayouts | None = None) -> None:
        self._layouts = layouts
        self.versions = {version.ref: version for version in versions}
        self.roles: dict[str, str] = {}
        self.here: set[str] = set()
        """The refs whose bytes were fetched."""
        self.wanted: list[str] = []
        """The refs that their owners keep from collection: just packed, or about to be released."""
        self._world = world
        world.collect = self.collect

    def version(self, ref: str) -> Version:
        """Return a version, with its bytes if they were fetched."""
        if ref not in self.versions:
            raise NotFound(f"{ref} is not in the hub")
        found = replace(self.versions[ref], missing_bytes=0 if ref in self.here else _BUNDLE_BYTES)
        return found.cut(self._layouts.now()) if self._layouts is not None else found

    def find(self, pin: str) -> Version | None:
        """Return the version that has a pin; None if it was collected."""
        return next((self.version(ref) for ref, version in self.versions.items() if version.pin == pin), None)

    def marked(self) -> Mapping[str, str]:
        """Return the tags."""
        return dict(self.roles)

    def fetch(self, version: Version) -> int:
        """Fetch a version's bytes over a network with faults."""
        self._world.point(f"before fetching {version.pin}")
        if self._world.strikes("drop"):
            raise Interrupted(f"the hub stopped in the middle of {version.pin}")
        found = self.version(version.ref)
        if found.missing_bytes and self._world.strikes("corrupt", 0.3):
            self._world.damaged.add(version.pin)
            self._world.note("{} arrives damaged from the hub", version.pin)
        self.here.add(found.ref)
        self._world.note("fetched {}", version.pin)
        self._world.point(f"after fetching {version.pin}")
        return version.missing_bytes

    def verify(self, version: Version) -> None:
        """Check that the hub has it, and that it was fetched undamaged."""
        if self.version(version.ref).missing_bytes:
            raise NotFound(f"{version.pin} was not fetched")
        if version.pin in self._world.damaged:
            self._world.damaged.discard(version.pin)
            self.here.discard(version.ref)  # the next fetch brings it again
            raise IntegrityError(f"the bytes of {version.pin} are not those of its digest")

    def mark(self, roles: Mapping[str, str | None]) -> None:
        """Move tags, one at a time, as a real hub does."""
        for role, ref in roles.items():
            self._world.point(f"tag {role}")
            if self._world.strikes("gc", 0.2):
                self.collect()
            if ref is None:
                self.roles.pop(role, None)
            else:
                self.roles[role] = self.version(ref).ref
            if role == "live" and ref in self.wanted and self._world.rng.random() < 0.5:  # noqa: PLR2004
                self.wanted.remove(ref)  # its owner takes its tag away: from now on only the target's tags keep it

    def collect(self) -> None:
        """Delete what has no tag, and check that no place needs it."""
        kept = [*self.roles.values(), *self.wanted]
        gone = [ref for ref in self.versions if ref not in kept]
        self._world.note("collected {}", gone)
        for ref in gone:
            del self.versions[ref]
            self.here.discard(ref)
        pins = {version.pin for version in self.versions.values()}
        lives = self._world.journal.recall("lives") if self._world.journal is not None else None
        # While tags move, they are ahead of the journal, and what they let go is not gone back to.
        last = (lives or [])[:2]
        tagged = [self.roles.get(role) for role in ("live", "previous")]
        for life in last if [life["ref"] for life in last] == tagged[: len(last)] else ():
            if life["ref"] in gone:
                self._world.broken("deleted", f"{life['pin']} is live or the version to go back to, and is collected")
        for place in self._world.places.values():
            if lives and place.leg == "sparse" and lives[0]["shards"].get(place.table) != place.shards:
                continue  # a layout that was given up: it has no readers, and no repair
            for pin in place.active:
                if pin not in pins and not place.is_stale:
                    self._world.broken("deleted", f"{place.name} answers with {pin}, which the hub has lost")


class SimLayouts:
    """The layouts of a simulated target, whose operator changes its file and starts the new shards."""

    def __init__(self, world: SimulatedWorld, tables: Mapping[str, int]) -> None:
        self._world = world
        self._tables: Mapping[str, int] = {}
        self.change(tables)

    def change(self, tables: Mapping[str, int]) -> None:
        """Cut tables into other numbers of shards from now on; `up` starts what is missing and ends nothing."""
        self._tables = dict(tables)
        self._world.note("the target is now cut into {}", dict(tables))
        for table, shards in tables.items():
            for shard in range(shards):
                for replica in range(2):
                    name = f"sparse/{table}/{shard}of{shards}/{replica}"
                    if name not in self._world.places:
                        new = SimPlace(self._world, name, "sparse", table=table, shard=shard, shards=shards)
                        new.room = self._world.room
        self._world.places_changed()

    def now(self) -> Mapping[str, int]:
        """See `Layouts`."""
        return self._tables

    def publish(self, shards: Mapping[str, int]) -> None:
        """See `Layouts`; there are no readers without a pin here."""
        self._world.point(f"publish {dict(shards)}")

    def retire(self) -> list[str]:
        """See `Layouts`: all places of a layout have to answer and hold nothing."""
        world = self._world
        world.point("before retiring")
        earlier: dict[tuple[str, int], list[SimPlace]] = {}
        for place in world.places.values():
            if place.leg == "sparse" and self._tables.get(place.table) != place.shards:
                earlier.setdefault((place.table, place.shards), []).append(place)
        gone = []
        for places in earlier.values():
            if all(place.is_up and not place.observe().versions for place in places):
                gone += [place.name for place in places]
        for name in gone:
            place = world.places.pop(name)
            if place in world.down:
                world.down.remove(place)
            world.note("{} ends", name)
        world.places_changed()
        world.point("after retiring")
        return gone


def sim_target(
    world: SimulatedWorld,
    *,
    journal: SimJournal,
    bundles: SimBundleSource | None = None,
    by: str = "ann",
    layouts: SimLayouts | None = None,
    shelf: SimBundleSource | None = None,
) -> Target:
    """Start cloudedge, as a new process would, on a simulated world; `shelf` is the old name of `bundles`."""
    if shelf is not None:
        warnings.warn("sim_target(shelf=...) is now sim_target(bundles=...)", DeprecationWarning, stacklevel=2)
    source = bundles or shelf
    if source is None:
        raise InputError("a simulated target needs bundles")
    places: dict[str, Place] = dict(world.places)
    context = ReleaseContext(
        "sim", places, journal, source, SimClock(world), world.run, by, layouts=layouts or FixedLayout()
    )
    return Target(context)
