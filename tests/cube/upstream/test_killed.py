"""`cube transfer` to our own servers, killed with SIGKILL: the next run finishes what was begun, by itself."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
import yaml

from cloudedge import seqfile
from cloudedge.config import load
from cloudedge.cube import DoneEntry, append_donefile
from cloudedge.cube.upstream import ConfiguredTransfer
from cloudedge.errors import CloudEdgeError
from cloudedge.journal import Journal
from tests.cube.delivery.fleet import TOKEN
from tests.cube.delivery.server_kinds import SHARDS, running
from tests.cube.delivery.tables import rows_of

pytestmark = pytest.mark.parts

FIRST, SECOND, THIRD = (rows_of(seed, 200) for seed in (1, 2, 3))


class Gate:
    """Passes an admin API's connections on, but for activations while it is shut."""

    def __init__(self, behind):
        host, _, port = behind.rpartition(":")
        self._behind = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_shut = False
        self.reached = threading.Event()
        self._held = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._pass, args=(self._listener.accept()[0],), daemon=True).start()

    def _pass(self, near):
        head = near.recv(1 << 16)
        if self.is_shut and b"/activate " in head.partition(b"\r\n")[0]:
            self._held.append(near)
            self.reached.set()
            return
        with contextlib.suppress(OSError), near, socket.create_connection(self._behind) as far:
            far.sendall(head)
            threading.Thread(target=self._copy, args=(near, far), daemon=True).start()
            self._copy(far, near)

    @staticmethod
    def _copy(source, target):
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                target.sendall(piece)

    def close(self):
        self._listener.close()
        for each in self._held:
            each.close()


class Place:
    """Two shards with two replicas, the last one's admin API behind a gate, and a trainer's folder."""

    def __init__(self, folder, servers):
        self.folder, self.servers = folder, servers
        replicas = servers.replicas()
        self.gate = Gate(replicas[-1].admin)
        shards = [[] for _ in range(SHARDS)]
        for replica in replicas:
            admin = self.gate.address if replica is replicas[-1] else replica.admin
            shards[replica.shard].append({"address": replica.address, "admin": admin})
        table = {"shards": shards, "donefiles": str(folder / "done")}
        entry = {"tables": {"emb": table}, "work": str(folder / "work"), "token": "env:FLEET", "jobs": 1, "keep": 3}
        (folder / "done").mkdir()
        (folder / "cloudedge.yaml").write_text(yaml.safe_dump({"transfers": {"ctr": entry}}))

    def train(self, number, rows, *, folder="", announce=True):
        part = self.folder / "trained" / (folder or str(number)) / "part-0"
        part.parent.mkdir(parents=True)
        with seqfile.Writer(part) as out:
            for key, row in rows.items():
                out.append(key, row.tobytes())
        if announce:
            append_donefile(self.folder / "done" / "base.txt", DoneEntry(number, number, str(part.parent)))
        return part

    def transfer(self):
        return ConfiguredTransfer("ctr", load(self.folder / "cloudedge.yaml")).transfer()

    def run_once(self):
        with self.transfer() as transfer:
            return transfer.run_once()

    @contextlib.contextmanager
    def victim(self):
        """Run the command in a process of its own and kill it at the end of the block."""
        command = [sys.executable, "-m", "cloudedge", "cube", "transfer", "ctr", "--once"]
        with subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def entries(self, version):
        """Count what the journal says of a delivery, from outside."""
        with Journal(self.folder / "work" / "cloudedge-emb" / "journal.db") as journal:
            found = [each for each in journal.operations() if each.subject == f"emb={version}"]
            return len(journal.entries(found[0].number)) if found else -1


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEET", TOKEN)
    with running("cube", tmp_path / "fleet") as servers:
        place = Place(tmp_path, servers)
        place.train(10, FIRST)
        assert place.run_once().version == "10"
        yield place
        place.gate.close()


def cut_between_pointers(place):
    """Kill -9 once three of four servers answer from version 20."""
    place.train(20, SECOND)
    place.gate.is_shut = True
    with place.victim() as victim:
        while not place.gate.reached.wait(0.05):
            assert victim.poll() is None
    place.gate.is_shut = False
    assert place.servers.actives() == {"10", "20"}


def test_pointers_left_apart_are_brought_together_before_a_newer_line(place):
    cut_between_pointers(place)
    place.train(30, THIRD)
    with place.transfer() as transfer:
        assert transfer.run_once().version == "30"
        assert [each["name"] for each in transfer.history] == ["10", "20", "30"]
        assert place.servers.serves(THIRD, "30")
        assert transfer.rollback().version == "20"
    assert place.servers.serves(SECOND, "20")


def test_pointers_left_apart_are_brought_together_although_no_line_says_so(place):
    cut_between_pointers(place)
    (place.folder / "done" / "base.txt").unlink()
    report = place.run_once()
    assert (report.version, report.delivered) == ("20", True)
    assert place.servers.serves(SECOND, "20")


def test_pointers_left_apart_go_back_where_the_rows_are_gone(place):
    cut_between_pointers(place)
    for each in (place.folder / "work" / "cloudedge-emb-rows").glob("20-*"):
        each.unlink()
    (place.folder / "done" / "base.txt").unlink()
    assert place.run_once().version == "10"
    assert place.servers.serves(FIRST, "10")


@pytest.mark.parametrize("entries", [0, 6, 14, 20, 26])
def test_killed_at_any_moment_the_next_run_ends_whole(place, entries):
    """Kill -9 once the journal has so many entries; a delivery to four servers writes about 34."""
    place.train(20, SECOND)
    with place.victim() as victim:
        deadline = time.monotonic() + 100
        while place.entries(20) < entries and victim.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert place.servers.actives() <= {"10", "20"}
    place.train(30, THIRD)
    assert place.run_once().version == "30"
    assert place.servers.serves(THIRD, "30")


def test_a_corrected_line_with_the_same_id_never_goes_out_with_the_rows_it_had(place):
    """What servers may have loaded under the id stays apart from what the corrected line means."""
    place.train(20, SECOND)
    place.servers.kill(0)
    with pytest.raises(CloudEdgeError, match="is away"):
        place.run_once()
    place.servers.start(0)
    right = place.train(20, THIRD, folder="right", announce=False)
    donefile = place.folder / "done" / "base.txt"
    lines = [line for line in donefile.read_text().splitlines(keepends=True) if '"20"' not in line]
    donefile.write_text("".join([*lines, DoneEntry(20, 20, str(right.parent)).line()]))
    report = place.run_once()
    assert place.servers.serves(THIRD, report.version)
    assert report.version == "20.2"
    assert not place.run_once().delivered
