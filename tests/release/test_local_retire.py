"""Servers of a layout that nobody reads any more end, wherever cloudedge is killed meanwhile; with real processes."""

from __future__ import annotations

import time

import pytest

from cloudedge import supervisor
from cloudedge.config import Config
from cloudedge.release.local import _local_target as _local
from cloudedge.release.local import down, find_processes, layout_of, layouts, up


def config(shards):
    sparse = {"tables": ["t"], "shards": shards, "replicas": 1}
    return Config.model_validate({"targets": {"small": {"kind": "local", "sparse": sparse}}})


@pytest.fixture
def cut_anew():
    """A target that was cut into one shard, and is now into two."""
    up("small", config=config(1))
    try:
        yield up("small", config=config(2))
    finally:
        down("small", config=config(2))


class Killed(BaseException):
    """As seen from inside."""


def now():
    return layouts("small", config(2).targets["small"])


OLD, NEW = {"sparse-t-0of1-0"}, {"sparse-t-0of2-0", "sparse-t-1of2-0"}


@pytest.mark.parametrize("where", ["specs", "told", "waited", "tidied"])
def test_killed_while_a_layout_ends(cut_anew, monkeypatch, where):
    assert set(find_processes(cut_anew.folder)) == OLD | NEW

    def die(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        if where == "specs":
            patch.setattr(supervisor, "change", die)  # nothing has happened
        elif where == "told":
            patch.setattr(supervisor._lifecycle, "_tell", die)  # written, and nobody told
        elif where == "waited":
            patch.setattr(supervisor._lifecycle, "find_processes", die)
        else:
            patch.setattr(_local.ProcessLayout, "tidy", die)
        with pytest.raises(Killed):
            now().retire()
    seats = {seat.process for seat in layout_of("small", config=config(2)).sparse()}
    assert seats == (OLD | NEW if where == "specs" else NEW)  # they are places of the target, or they end
    now().retire()  # as the next release does, or never
    end = time.monotonic() + 60
    while set(find_processes(cut_anew.folder)) != NEW:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not (cut_anew.folder / "sparse-t-0of1-0").exists()
    assert now().retire() == []
