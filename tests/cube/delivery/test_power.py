"""Deliveries under load, and with processes killed at seeded moments: always whole after the same command again.

CLOUDEDGE_DELIVERIES and CLOUDEDGE_KILLS set how many; `make kills` runs the full numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudedge.cube.delivery import ArtifactCache
from cloudedge.journal import Journal
from tests.cube.delivery.fleet import Fleet, ShardProcess
from tests.cube.delivery.load import Readers
from tests.cube.delivery.tables import Tables, changed, rows_of

pytestmark = pytest.mark.parts

SHARDS, REPLICAS = 4, 2
DELIVERIES = int(os.environ.get("CLOUDEDGE_DELIVERIES", "12"))
KILLS = int(os.environ.get("CLOUDEDGE_KILLS", "14"))
ALL_KILLS = 200
"""With so many, every phase is hit for sure."""
PHASES = ("before", "stage", "load", "verify", "activate")
"""Of a delivery, by the last thing it set out to do."""
SEED = int(os.environ.get("CLOUDEDGE_SEED", "1"))


class Transfer:
    """Runs deliveries in processes that can be killed."""

    def __init__(self, fleet: Fleet, tables: Tables, work: Path) -> None:
        self._fleet, self._tables, self.work = fleet, tables, work
        self._zygote = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("delivery_zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, version, bases=()) -> int:
        job = {
            "fleet": self._fleet.as_json(),
            "work": str(self.work),
            "hub": str(self._tables.folder),
            "version": self._ref(version),
            "bases": [self._ref(base) for base in bases],
        }
        self._zygote.stdin.write(json.dumps(job) + "\n")
        self._zygote.stdin.flush()
        return json.loads(self._zygote.stdout.readline())["pid"]

    def end(self) -> dict:
        return json.loads(self._zygote.stdout.readline())

    def _ref(self, version) -> str:
        return f"model:{self._tables.bundles[version.version].version}"

    def close(self) -> None:
        self._zygote.stdin.close()
        self._zygote.wait(30)
        self._zygote.stdout.close()


@pytest.fixture
def fleet(tmp_path):
    with Fleet(tmp_path / "fleet", SHARDS, REPLICAS) as fleet:
        yield fleet


@pytest.fixture
def transfer(fleet, tables, tmp_path) -> Iterator[Transfer]:
    transfer = Transfer(fleet, tables, tmp_path / "work")
    yield transfer
    transfer.close()


def assert_whole(fleet, workshop, version):
    """Every replica answers from the version and has exactly its rows."""
    sums = workshop.shards(version, SHARDS)
    for replica in fleet.replicas():
        status = replica.status()
        assert status.active == version.version, replica.name
        held = status.loaded()[version.version]
        assert (held.rows, held.checksum) == (sums[replica.shard].rows, sums[replica.shard].checksum)
        assert len(status.versions) <= 2, status.versions


@pytest.mark.timeout(300 + 20 * DELIVERIES)
def test_deliveries_under_load(fleet, tables, transfer):
    rows = rows_of(SEED, 600)
    workshop = ArtifactCache(transfer.work)
    with Readers(fleet) as readers:
        before = None
        for number in range(DELIVERIES):
            rows = rows if before is None else changed(rows, number)
            as_delta = number % 2 == 1
            version = tables.version(rows, before if as_delta else None)
            readers.knows(version.version, rows)
            transfer.begin(version, [before] if as_delta else [])
            assert transfer.end() == {"code": 0, "reason": ""}
            assert_whole(fleet, workshop, version)
            readers.live, before = version.version, version
    assert readers.problems == []
    assert readers.reads > DELIVERIES
    assert len(readers.seen) > 1


def phase(journal: Journal, version) -> str:
    """Tell from outside what the delivery of a version has set out to do last."""
    newest = journal.operations(limit=1)
    if not newest or version.version not in newest[0].subject:
        return "before"
    intents = [entry.step for entry in journal.entries(newest[0].number) if entry.what == "intent"]
    last = intents[-1].split()[0] if intents else "before"
    return "activate" if last == "activation" else last


def some_moment(journal: Journal, version, pid: int, rng: random.Random, took: float) -> str:
    """Wait for any moment of a delivery, or for one in a phase that would be hit too rarely; returns its phase."""
    aim = rng.choice(("any", "stage", "load", "activate"))
    if aim == "any":
        time.sleep(rng.random() * took)
    else:
        wait_until(journal, version, aim, pid)
        time.sleep(rng.random() * 0.01)
    return phase(journal, version)


def wait_until(journal: Journal, version, aim: str, pid: int) -> None:
    """Wait for a phase, or for the delivery's end."""
    while PHASES.index(phase(journal, version)) < PHASES.index(aim):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.001)


@pytest.mark.timeout(300 + 30 * KILLS)
def test_killed_at_any_moment_it_is_whole_after_the_same_command(fleet, tables, transfer):
    rng = random.Random(SEED)
    rows = rows_of(SEED, 600)
    workshop = ArtifactCache(transfer.work)
    live = tables.version(rows)
    killed = {"transfer": 0, "shard": 0}
    hit = dict.fromkeys(PHASES, 0)
    with Readers(fleet) as readers, Journal(transfer.work / "journal.db") as journal:
        readers.knows(live.version, rows)
        transfer.begin(live)
        assert transfer.end()["code"] == 0
        readers.live, took = live.version, 1.0
        number = 0
        while sum(killed.values()) < KILLS:
            number += 1
            rows = changed(rows, number)
            as_delta = rng.random() < 0.6
            version = tables.version(rows, live if as_delta else None)
            readers.knows(version.version, rows)
            victim = rng.choice([None, rng.choice(fleet.servers)])
            begun = time.monotonic()
            pid = transfer.begin(version, [live] if as_delta else [])
            during = some_moment(journal, version, pid, rng, took)
            restart = _kill(pid if victim is None else victim)
            ended = transfer.end()
            if restart is not None:
                restart.join(60)
            if restart is not None or ended["code"] == -signal.SIGKILL:
                killed["shard" if restart is not None else "transfer"] += 1
                hit[during] += 1
            for _ in range(3):
                if ended["code"] == 0:
                    break
                if ended["code"] == 1:  # it gave up: then nothing has moved, or the journal knows what is left to do
                    actives = {each.status().active for each in fleet.replicas()}
                    assert actives == {live.version} or journal.unfinished() is not None, ended["reason"]
                transfer.begin(version, [live] if as_delta else [])
                ended = transfer.end()
            else:
                took = 0.8 * took + 0.2 * (time.monotonic() - begun)
            assert ended["code"] == 0, ended["reason"]
            assert_whole(fleet, workshop, version)
            readers.live, live = version.version, version
            assert readers.problems == []
            if number % 20 == 0:  # shown with -s: the full numbers take a quarter of an hour
                sys.stdout.write(f"killed {killed}, during {hit}, {readers.reads} reads, {number} deliveries\n")
    assert readers.reads > KILLS
    assert min(killed.values()) > 0
    if KILLS >= ALL_KILLS:
        assert min(hit[each] for each in ("stage", "load", "activate")) > 0, hit


def _kill(victim: int | ShardProcess) -> threading.Thread | None:
    """Kill the transfer, or a server that is then started again."""
    if isinstance(victim, int):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        return None
    victim.kill()
    again = threading.Thread(target=lambda: victim.start().wait())
    again.start()
    return again
