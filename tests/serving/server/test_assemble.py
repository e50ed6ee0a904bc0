"""A whole replica from its settings: what it follows is known before it loads, and what it lost it loads again."""

from __future__ import annotations

import threading

import pytest

from cloudedge.serving import BundleRows, Desired, DesiredVersion, Follower, RuntimeConfig, ServerConfig
from cloudedge.serving.server import ReplicaHooks, ReplicaSettings, run_replica
from cloudedge.serving.server._assemble import pause_before_restore


@pytest.mark.parts
def test_the_first_load_of_a_follower_asks_for_the_rows_of_its_document(tmp_path, models, monkeypatch):
    """A follower that loads before the replica knows it would take rows from the bundle, not from the shards."""
    version = DesiredVersion(pin=models.ctr.pin, bundle=models.ref(models.ctr))
    document = Desired(order=3, cube="the shards", versions=(version,), shares={version.pin: 1.0})
    file = tmp_path / "document.json"
    file.write_text(document.model_dump_json())
    asked = []
    has_asked, stop = threading.Event(), threading.Event()
    start = Follower.start

    def start_and_load(follower):
        """Return late: the thread of the follower is ahead of the one that started it."""
        start(follower)
        assert has_asked.wait(120)
        return follower

    def rows(desired, bundle, _tables):
        asked.append(desired)
        has_asked.set()
        return BundleRows(bundle.sparse)

    monkeypatch.setattr(Follower, "start", start_and_load)
    run_replica(
        ReplicaSettings(
            ServerConfig(port=0), RuntimeConfig(workers=1), admin_port=0,
            follow=file, state=tmp_path / "state" / "kept.json", listen_when_loaded=True,
        ),
        ReplicaHooks(models.hub, stop, desired_rows=rows, on_listening=lambda *_: stop.set()),
    )  # fmt: skip
    assert asked == [document]


@pytest.mark.rules
def test_lost_versions_are_tried_again_soon_and_then_less_often():
    """When everything is restarted at once, a replica is there before its shards are, by a second or so."""
    pauses = [pause_before_restore(tries) for tries in range(8)]
    assert sum(pauses[:3]) < 2
    assert pauses == sorted(pauses)
    assert pauses[-1] == pause_before_restore(10_000) == 5.0
