"""What donefiles announce, on cloudedge's own servers: a base as a base, its patch as a delta."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cloudedge.cube import DoneEntry, append_donefile
from cloudedge.cube.delivery import ArtifactCache, CubeReplica, Delivery, TableVersion
from cloudedge.cube.upstream import DonefileSource, choose
from tests.cube.upstream.tables import table, value, write_rows

pytestmark = pytest.mark.parts


@pytest.fixture
def replica(tmp_path):
    command = [sys.executable, "-m", "cloudedge", "cube", "serve", str(tmp_path / "server"), "--empty", "--json"]
    command += ["--state", str(tmp_path / "server"), "--port", "0", "--admin-port", "0", "--threads", "1"]
    (tmp_path / "server").mkdir()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            said = ""
            while not said.endswith("}\n"):
                line = process.stdout.readline()
                assert line, "the server ended"
                said += line
            told = json.loads(said)
            yield CubeReplica("ctr", 0, address=told["address"], admin=told["admin"])
        finally:
            process.kill()


def test_a_patch_travels_as_a_delta(replica, tmp_path):
    donefiles = tmp_path / "donefile"
    donefiles.mkdir()
    rows = write_rows(tmp_path / "base" / "part-0", table(20_000)).parent
    append_donefile(donefiles / "base.txt", DoneEntry(10, 10, str(rows)))
    source = DonefileSource(str(donefiles))

    def version(delivered=None):
        work = choose(source.read(), patches=True, delivered=delivered).work
        return work, TableVersion("ctr", work.name, source.bring(work, tmp_path / "rows", within_s=60))

    with Delivery([replica], ArtifactCache(tmp_path / "work")) as delivery:
        work, first = version()
        whole = delivery.deliver([first]).shipped_bytes
        patch = write_rows(tmp_path / "patch" / "part-0", {3: (9.0, 9.0), 90_000: (1.0, 2.0)}).parent
        append_donefile(donefiles / "patch.txt", DoneEntry(11, 10, str(patch)))
        _, second = version(work)
        shipped = delivery.deliver([second], bases=[first]).shipped_bytes
        assert 0 < shipped < whole / 50
        assert replica.probe("10_11", [3, 4, 90_000]) == [value(9, 9), value(4, -4), value(1, 2)]
        delivery.rollback()
        assert replica.status().active == "10"
