"""What tests of releases share: a target of folders with real bundles, and plain observations for plans."""

from __future__ import annotations

from cloudedge.bundle import Bundle, Probes, Signature, Variable
from cloudedge.clock import ManualClock
from cloudedge.hub import current, release_tag
from cloudedge.journal import Journal
from cloudedge.release import (
    HubBundleSource,
    Life,
    Loaded,
    Observed,
    ReleaseContext,
    ReleaseWorld,
    TableFacts,
    Target,
    Version,
)
from cloudedge.testing import FolderPlace
from tests.models import change_table, make_model, make_table

SIGNATURE = Signature(feed=(Variable(name="ids", dtype="int64", shape=(-1,)),), fetch=(Variable(name="score"),))
SHARDS = 2
NAMES = [
    *(f"sparse/emb/{shard}/{replica}" for shard in range(SHARDS) for replica in range(2)),
    "dense/0",
    "dense/1",
    "edge/a",
]


def bundles(tmp_path, hub, count=3):
    """Pack versions of one model, each a little different."""
    made, table = [], make_table(200)
    for number in range(1, count + 1):
        folder = make_model(tmp_path / f"model{number}", seed=number)
        made.append(
            Bundle.pack(folder, name="ctr", sparse={"emb": table}, signature=SIGNATURE, probes=Probes(), hub=hub)
        )
        table = change_table(table, seed=number)
    return made


def folder_places(root, **how):
    return [FolderPlace(root, name, name.split("/")[0], shards=SHARDS, **how) for name in NAMES]


def folder_target(tmp_path, hub, *, places=None, clock=None, **how):
    """Open a target as a new process would."""
    clock = clock or ManualClock()
    made = places if places is not None else folder_places(tmp_path / "places")
    shelf = HubBundleSource("prod", hub, shards={"emb": SHARDS}, clock=clock)
    journal = Journal(tmp_path / "prod.db", clock=clock)
    return Target(ReleaseContext("prod", {place.name: place for place in made}, journal, shelf, clock, by="ann", **how))


def active(target):
    return {place.name: dict(place.answers) for place in target.status().places}


def all_on(pin):
    return {name: {pin: 1.0} for name in NAMES}


def marked(hub, role):
    entry = current(hub.tags("ctr"), release_tag("prod", role))
    return entry.target.digest if entry else None


def facts(shards=(10, 10), **how):
    fields = {"rows": sum(shards), "dtype": "float32", "dim": 4, "row_bytes": 16, "shard_rows": tuple(shards)} | how
    return TableFacts(**fields)


def version(number, *, tables=None, **how):
    fields = {
        "tables": tables if tables is not None else {"emb": facts()},
        "signature": SIGNATURE,
        "label": str(number),
    }
    return Version(f"v{number}", "ctr", f"sha256:{number:064x}", **(fields | how))


def place(name, *, active="v1", pins=("v1",), **how):
    leg = name.split("/")[0]
    shard = {"table": name.split("/")[1], "shard": int(name.split("/")[2]), "shards": SHARDS} if leg == "sparse" else {}
    loaded = {pin: Loaded("ready", memory_bytes=100, shards=shard.get("shards")) for pin in pins}
    fields = {"versions": loaded, "active": {active: 1.0} if active else {}, **shard} | how
    return Observed(name, leg, **fields)


def life(number):
    made = version(number)
    return Life(made.pin, made.ref, str(made))


def world(places=None, *, lives=(1,), known=("v1", "v2", "v3"), **how):
    return ReleaseWorld(
        "prod", places or [place(name) for name in NAMES], lives=[life(n) for n in lives], known=known, **how
    )
