"""Downloads go on where they stopped: cuts, kills, changed files, servers that know little, full disks."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from cloudedge.clock import ManualClock
from cloudedge.edge_bie.node._download import Downloads
from cloudedge.errors import IntegrityError, NotFound, Unavailable
from cloudedge.io import Throttle
from tests.edge_bie.node.cutting_server import CuttingServer
from tests.edge_bie.node.world import ROOT, noise

pytestmark = pytest.mark.parts

SIZE = 300_000


def hexes(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def data():
    return noise(SIZE, 7)


def test_200_cuts_at_random_bytes_cost_no_byte_twice(tmp_path):
    files = {f"/{number}": noise(20_000 + 997 * number, number) for number in range(8)}
    with CuttingServer(files, cuts=200, seed=42) as server:
        downloads = Downloads(tmp_path, clock=ManualClock(seed=1))
        waiting = dict(files)
        while waiting:
            for path, content in list(waiting.items()):
                try:
                    part = downloads.fetch(hexes(content), server.url + path, size=len(content), sure=True)
                except Unavailable:
                    # What is here is a beginning of the file, and never called anything but unfinished.
                    have = (tmp_path / f"{hexes(content)}.part").read_bytes()
                    assert content.startswith(have)
                    continue
                assert part.read_bytes() == content
                del waiting[path]
        assert server.cut == 200
        end = time.monotonic() + 10  # the server notes what it sent a moment after it has arrived
        while sum(stop - start for spans in server.sent.values() for start, stop in spans) < sum(
            map(len, files.values())
        ):
            assert time.monotonic() < end
            time.sleep(0.01)
        for path, content in files.items():
            spans = [span for span in server.sent[path] if span[0] < span[1]]
            assert spans[0][0] == 0
            # Each answer begins where what had arrived ended. The server cannot know what got through; the node asks.
            assert all(later[0] == earlier[1] for earlier, later in itertools.pairwise(spans))
            assert sum(end - begin for begin, end in spans) == len(content)


def test_a_killed_process_keeps_what_came(tmp_path, data):
    program = (
        "import sys; from pathlib import Path; from cloudedge.edge_bie.node._download import Downloads\n"
        "from cloudedge.io import Throttle\n"
        "downloads = Downloads(Path(sys.argv[1]), pace=Throttle(600_000))\n"
        "downloads.fetch(sys.argv[2], sys.argv[3], size=int(sys.argv[4]), sure=True)"
    )
    rng, kills = random.Random(3), 0
    with CuttingServer({"/f": data}) as server:
        command = [sys.executable, "-c", program, str(tmp_path), hexes(data), f"{server.url}/f", str(len(data))]
        downloads = Downloads(tmp_path)
        while downloads.has(hexes(data)) < len(data):
            before = downloads.has(hexes(data))
            process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
            while process.poll() is None and downloads.has(hexes(data)) == before:
                time.sleep(0.002)
            time.sleep(0.05 + rng.random() * 0.2)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            assert data.startswith((tmp_path / f"{hexes(data)}.part").read_bytes())
            assert server.requests[-1][1] == (f"bytes={before}-" if before else None)
        assert kills > 1
        assert downloads.fetch(hexes(data), f"{server.url}/f", size=len(data), sure=True).read_bytes() == data


def test_a_file_that_changed_meanwhile_is_fetched_anew_and_not_mixed(tmp_path, data):
    with CuttingServer({"/f": data}, cuts=1, seed=1) as server:
        downloads = Downloads(tmp_path, clock=ManualClock(), stop=lambda: True)
        with pytest.raises(Unavailable):
            downloads.fetch("name", f"{server.url}/f")
        assert 0 < downloads.has("name") < len(data)
        other = noise(SIZE, 8)
        server.files["/f"] = other
        downloads = Downloads(tmp_path, clock=ManualClock())
        assert downloads.fetch("name", f"{server.url}/f").read_bytes() == other
        assert server.requests[-1][2]


@pytest.mark.parametrize("knows", ["no tags", "no ranges", "neither", "no lengths"])
def test_servers_that_know_less(tmp_path, data, knows):
    options = {"tags": knows == "no ranges", "ranges": knows == "no tags", "lengths": knows != "no lengths"}
    with CuttingServer({"/f": data}, cuts=5, seed=2, **options) as server:
        for sure in (True, False):
            downloads = Downloads(tmp_path / str(sure), clock=ManualClock())
            got = downloads.fetch("name", f"{server.url}/f", size=len(data) if sure else None, sure=sure)
            assert got.read_bytes() == data


def test_more_bytes_than_promised_are_refused_as_they_come(tmp_path, data):
    with CuttingServer({"/f": data}) as server:
        with pytest.raises(IntegrityError):
            Downloads(tmp_path).fetch("name", f"{server.url}/f", size=1000, sure=True)
        assert Downloads(tmp_path).has("name") <= 1000
        with pytest.raises(NotFound):
            Downloads(tmp_path).fetch("other", f"{server.url}/none")


def test_the_pace_is_kept(tmp_path, data):
    clock = ManualClock()
    with CuttingServer({"/f": data}) as server:
        Downloads(tmp_path, pace=Throttle(100_000, clock), clock=clock).fetch("name", f"{server.url}/f")
    assert clock.elapsed == pytest.approx(SIZE / 100_000)
