"""A local target of real servers: its journal lost, its disk full, its token gone, a rollback while a canary bakes."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

import pytest

from cloudedge.release import Target
from cloudedge.release.local import down, up
from tests.faults import proves_fault
from tests.release.local.world import NAME, World, home, wait

pytestmark = pytest.mark.parts


def reopen(world):
    world.journal.close()
    world.target = Target.load(NAME, config=world.config)


@proves_fault(
    area="journal",
    fault="the journal is lost",
    happens="every command refuses, and names the cure; servers go on answering",
    cure="`cloudedge journal rebuild TARGET`",
)
def test_the_journal_is_lost_and_rebuilt_from_the_servers(world):
    was, new = world.live, world.fresh()
    world.release(new)
    order = world.journal.order
    world.journal.close()
    for path in world.journal.path.parent.glob(f"{NAME}.db*"):
        path.unlink()
    with world.load() as load:
        status = world.command("status", NAME)
        out, err = status.communicate(timeout=120)
        assert (status.returncode, "cloudedge journal rebuild" in err) == (1, True), out + err
        refused = world.command("release", was.ref, "--to", NAME, "--yes")
        out, err = refused.communicate(timeout=120)
        assert (refused.returncode, "cloudedge journal rebuild" in err) == (1, True), out + err
        rebuilt = world.command("journal", "rebuild", NAME, "--yes")
        out, err = rebuilt.communicate(timeout=120)
        assert rebuilt.returncode == 0, out + err
        reopen(world)
        assert world.journal.order > order
        assert world.target.status().is_whole
        assert world.live.pin == new.pin
        back = world.target.rollback()
        assert (back.state, back.bytes) == ("done", 0)
        assert world.live.pin == was.pin
        load.until(20, was.pin)
        world.release(world.fresh())
        assert world.target.status().is_whole
    assert load.broken == ([], [])


@proves_fault(
    area="release",
    fault="a canary that bakes turns out to be bad",
    happens="`rollback` ends the bake and takes the canary back",
    cure="`cloudedge rollback TARGET`",
)
def test_a_rollback_during_a_bake_takes_the_canary_back(world):
    was, new = world.live, world.fresh()
    seen = world.intended("bake")
    releasing = world.command("release", new.ref, "--to", NAME, "--canary", "50%", "--bake", "10m", "--yes")
    wait(lambda: seen() or releasing.poll() is not None, "the bake")
    assert releasing.poll() is None, releasing.stderr.read()
    rollback = world.command("rollback", NAME, "--yes", "--json")
    out, err = rollback.communicate(timeout=200)
    assert rollback.returncode in (0, 1), out + err
    assert '"state": "undone"' in out, out + err
    releasing.communicate(timeout=120)
    assert world.target.status().is_whole
    assert world.live.pin == was.pin
    assert world.target.unfinished is None


@proves_fault(
    area="servers",
    fault="the token of a local target is lost",
    happens="servers answer requests and no orders; `status` names the cure",
    cure="`cloudedge up TARGET`",
)
def test_a_lost_token_is_named_and_made_anew(world):
    with world.load() as load:
        (world.folder / "token").unlink()
        status = world.target.status()
        assert all(place.state == "away" and f"cloudedge up {NAME}" in place.error for place in status.places)
        up(NAME, config=world.config)
        assert world.target.status().is_whole
        load.until(20)
    assert load.broken == ([], [])
    assert world.release(world.fresh()).state == "done"


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own for everything that cloudedge keeps."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256m", "cloudedge-test", str(disk)], check=False, capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("no small file system can be mounted here: that takes root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill_up(path):
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@proves_fault(
    area="journal",
    fault="the disk is full, and the live version is bad",
    happens="`rollback` takes the space that the journal keeps in reserve",
    cure="`cloudedge rollback TARGET`",
)
def test_a_rollback_works_on_a_full_disk(small_disk, tmp_path):
    pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    with home(small_disk / "home"):
        world = World(tmp_path)
        world.home = small_disk / "home"
        try:
            up(NAME, config=world.config)
            first, second = world.good[:2]
            world.release(first)
            world.release(second)
            filler = small_disk / "filler"
            fill_up(filler)
            assert os.statvfs(small_disk).f_bavail == 0
            reopen(world)
            back = world.target.rollback()
            assert back.state == "done"
            assert world.live.pin == first.pin
            assert world.target.status().is_whole
            filler.unlink()
            world.release(second)
            assert (small_disk / "home" / "targets" / f"{NAME}.db.reserve").exists()
        finally:
            world.journal.close()
            down(NAME, config=world.config)
