"""A client that follows cube.conf: moved by a new file, by no broken one, and never in the middle of a call."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from cloudedge.clock import ManualClock
from cloudedge.cube.client._client import Client
from cloudedge.cube.client._reloading_client import FollowingClient
from cloudedge.errors import ConfigError, InputError
from tests.cube.client.test_client import write_conf
from tests.cube.memory_versions import table

pytestmark = pytest.mark.parts


def rows(shards: int, shard: int, mark: float) -> dict[int, tuple[float, ...]]:
    return dict.fromkeys(table(shards, shard, 100), (mark,))


def put(path, servers) -> None:
    """Publish a cube.conf by rename, as `write_conf` of the delivery does."""
    write_conf(path.with_suffix(".new"), [server.address for server in servers]).replace(path)


def test_it_moves_to_the_servers_of_a_new_file_and_not_before_its_time(start, tmp_path):
    conf, clock = tmp_path / "cube.conf", ManualClock()
    old, new = [start(rows(1, 0, 1.0))], [start(rows(2, shard, 2.0)) for shard in range(2)]
    put(conf, old)
    with FollowingClient(conf, "dict", clock=clock) as client:
        assert client.seek([1, 2]).values.ravel().tolist() == [1.0, 1.0]
        put(conf, new)
        assert client.seek([1, 2]).values.ravel().tolist() == [1.0, 1.0]
        clock.sleep(1.1)
        assert client.seek([1, 2]).values.ravel().tolist() == [2.0, 2.0]
        assert len(client.config.shards) == 2
        assert client.measure(callers=1, batch=2, key_space=100, seconds=0.05)["failed"] == 0
    with pytest.raises(InputError, match="closed"):
        client.seek([1])


def test_a_file_that_cannot_be_used_changes_nothing_and_is_told(start, tmp_path):
    conf, clock = tmp_path / "cube.conf", ManualClock()
    put(conf, [start(rows(1, 0, 1.0))])
    with FollowingClient(conf, "dict", clock=clock) as client:
        for broken in ("[", "[]"):
            conf.write_text(broken)
            clock.sleep(1.1)
            assert client.seek([1]).values[0, 0] == 1.0
            assert "cube.conf" in client.problem
        conf.unlink()
        clock.sleep(1.1)
        assert client.seek([1]).values[0, 0] == 1.0
        assert "cannot read" in client.problem
        put(conf, [start(rows(1, 0, 3.0))])
        clock.sleep(1.1)
        assert (client.seek([1]).values[0, 0], client.problem) == (3.0, "")
    with pytest.raises(ConfigError):
        Client.from_conf(tmp_path / "none", "dict", follow=True)


def test_calls_in_many_threads_are_each_answered_by_one_layout(start, tmp_path):
    """Both layouts hold every key with a mark of their own; an answer with both marks would be a mixture."""
    conf = tmp_path / "cube.conf"
    layouts = [[start(rows(n, shard, float(n))) for shard in range(n)] for n in (1, 2, 3)]
    put(conf, layouts[0])
    stop, seen, wrong = threading.Event(), set(), []

    class Fast(ManualClock):
        def monotonic(self) -> float:
            self.sleep(0.4)  # every third call looks
            return super().monotonic()

    def read(client: Client) -> None:
        while not stop.is_set():
            try:
                marks = set(np.unique(client.seek(range(100)).values).tolist())
            except Exception as error:  # noqa: BLE001 - any error is a failure here
                wrong.append(error)
                return
            seen.update(marks)
            if len(marks) != 1:
                wrong.append(marks)

    with FollowingClient(conf, "dict", clock=Fast()) as client:
        threads = [threading.Thread(target=read, args=(client,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(60):
            put(conf, layouts[number % 3])
            client.seek([1])
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(seen) > 1
