"""The whole way: donefiles, rows, artifacts, agents, servers, by upstream's own transfer.conf."""

from __future__ import annotations

import http.server
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import requests

from cloudedge.cube import DoneEntry, append_donefile
from cloudedge.cube.delivery import DeliveryPolicy
from cloudedge.cube.upstream import Transfer, TransferOptions, UpstreamTimes
from cloudedge.errors import CloudEdgeError, Conflict, InputError, IntegrityError, NotFound, Unavailable
from cloudedge.journal import Journal
from cloudedge.testing.upstream_cube import UpstreamCluster
from tests.cube.upstream.tables import table, value, write_rows

pytestmark = pytest.mark.parts

SCALE = 0.001
OPTIONS = TransferOptions(
    times=UpstreamTimes(stage_s=20, load_s=10, call_s=5, refused_s=1.5 * SCALE),
    policy=DeliveryPolicy(attempts=2, pause_s=0.01, deadline_s=60),
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def here(tmp_path):
    with UpstreamCluster(tmp_path / "cluster", shards=2, copies=2, time_scale=SCALE) as cluster:
        (tmp_path / "donefile").mkdir()
        conf = cluster.conf(donefile_address=str(tmp_path / "donefile"), mode="base_delta", wget_port=free_port())
        yield SimpleNamespace(cluster=cluster, conf=conf, tmp=tmp_path, options=OPTIONS)


def trained(here, number, rows, key=None):
    place = write_rows(here.tmp / "trained" / str(number) / "part-0", rows).parent
    entry = DoneEntry(number, key or number, str(place))
    append_donefile(here.tmp / "donefile" / ("base.txt" if key is None else "patch.txt"), entry)


def transfer(here, **more):
    return Transfer(here.conf, options=here.options, **more)


def read(here, key):
    return {each.server.seek([key])[0][0] for each in here.cluster.instances if each.shard == key % 2}


def test_bases_and_patches_are_delivered_once_each(here):
    with transfer(here) as daemon:
        nothing = daemon.run_once()
        assert (nothing.version, nothing.delivered) == (None, False)
        assert "neither base.txt nor patch.txt" in nothing.warnings[0]
        trained(here, 10, table(100))
        first = daemon.run_once()
        assert (first.version, first.delivered, first.problems, first.warnings) == ("10", True, (), ())
        assert first.switch.changed == 4
        assert read(here, 3) == {value(3, -3)}
        assert not daemon.run_once().delivered
        trained(here, 11, {3: (9.0, 9.0), 500: (5.0, 5.0)}, key=10)
        trained(here, 12, {4: (8.0, 8.0)}, key=10)
        second = daemon.run_once()
        assert second.version == "10_12"
        assert [read(here, key) for key in (3, 4, 5, 500)] == [
            {value(9, 9)}, {value(8, 8)}, {value(5, -5)}, {value(5, 5)}
        ]  # fmt: skip
    assert len(set(here.cluster.versions())) == 1
    with transfer(here) as again:  # a restart neither repeats nor forgets
        assert not again.run_once().delivered
        assert [entry["name"] for entry in again.history] == ["10", "10_12"]
        trained(here, 20, table(100, 2))
        assert again.run_once().version == "20"
        assert read(here, 500) == {None}
        for each in here.cluster.instances:
            each.server.restart()
        assert here.cluster.versions() == [str(again.ids.number("20"))] * 4


def test_going_back_and_not_being_pushed_forward_again(here):
    with transfer(here) as daemon:
        for number in (10, 20):
            trained(here, number, table(100, number))
            daemon.run_once()
    with transfer(here) as other:
        assert other.rollback().version == "10"
        assert read(here, 2) == {value(20, -20)}
        assert not other.run_once().delivered
        trained(here, 30, table(100, 30))
        assert other.run_once().version == "30"
        for each in here.cluster.instances:
            each.server.restart()
        with pytest.raises(NotFound):
            other.rollback()
        assert read(here, 2) == {value(60, -60)}


def test_by_the_agents_where_servers_take_no_commands(here):
    here.options = replace(OPTIONS, through_agent=True)
    with transfer(here) as daemon:
        for number in (10, 20):
            trained(here, number, table(100, number))
            report = daemon.run_once()
            assert (report.version, report.switch.changed) == (str(number), len(here.cluster.instances))
            assert report.switch.mixed_at_most_s > 0
        assert read(here, 2) == {value(40, -40)}
        trained(here, 30, table(100, 30))
        here.cluster.instances[1].server.refuse["enable"] = 3
        with pytest.raises(CloudEdgeError):
            daemon.run_once()
        here.cluster.instances[1].server.refuse.clear()
        assert daemon.run_once().version == "30"
        assert read(here, 2) == {value(60, -60)}
        assert len(set(here.cluster.versions())) == 1
    assert all(each.server.commands[-1] == {"cmd": "bg_unload"} for each in here.cluster.instances)


def test_a_plan_changes_nothing(here):
    trained(here, 10, table(100))
    with transfer(here) as daemon:
        plan = daemon.plan()
        assert (plan["deliver"], plan["delivered"]) == ("10", None)
        assert [each["replica"] for each in plan["replicas"]] == ["ctr/0/0", "ctr/0/1", "ctr/1/0", "ctr/1/1"]
    assert here.cluster.versions() == [""] * 4
    assert all(each.agent.works == [] for each in here.cluster.instances)


def test_an_empty_shard_is_delivered_with_its_reserved_row(here):
    trained(here, 10, {2: (1.0, 1.0), 4: (2.0, 2.0)})
    with transfer(here) as daemon:
        daemon.run_once()
    assert read(here, 2) == {value(1, 1)}
    assert len(set(here.cluster.versions())) == 1


def test_a_server_that_is_away_stops_everything_before_it_begins(here):
    trained(here, 10, table(100))
    here.cluster.instances[3].server.kill()
    with transfer(here) as daemon:
        with pytest.raises(Unavailable, match="ctr/1/1 is away"):
            daemon.run_once()
        assert here.cluster.versions() == [""] * 4
        here.cluster.instances[3].server.start()
        assert daemon.run_once().delivered


def test_a_server_that_refuses_the_switch_takes_all_back(here):
    with transfer(here) as daemon:
        trained(here, 10, table(100))
        daemon.run_once()
        before = here.cluster.versions()
        trained(here, 20, table(100, 2))
        here.cluster.instances[2].server.refuse["enable"] = 1
        with pytest.raises(NotFound, match="ctr/1/0 did not switch"):
            daemon.run_once()
        assert here.cluster.versions() == before
        assert daemon.run_once().version == "20"


def test_rows_that_turn_out_wrong_after_the_switch_are_taken_back(here, monkeypatch):
    with transfer(here) as daemon:
        trained(here, 10, table(100))
        daemon.run_once()
        before = here.cluster.versions()
        trained(here, 20, table(100, 2))
        broken = here.cluster.instances[1].server
        real = broken.seek
        wrong = str(daemon.ids.number("20"))
        monkeypatch.setattr(
            broken, "seek", lambda keys: ([None for _ in keys], wrong) if broken.version == wrong else real(keys)
        )
        with pytest.raises(IntegrityError, match="ctr/0/1"):
            daemon.run_once()
        assert here.cluster.versions() == before
        monkeypatch.undo()
        assert daemon.run_once().version == "20"


def test_damaged_downloads_and_refused_loads_do_not_stop_it(here):
    trained(here, 10, table(100))
    here.cluster.instances[0].agent.corrupt_downloads = 1
    here.cluster.instances[1].server.refuse["bg_load_base"] = 1
    with transfer(here) as daemon:
        assert daemon.run_once().delivered


def test_problems_are_told_and_do_not_keep_good_lines_back(here):
    trained(here, 10, table(100))
    append_donefile(here.tmp / "donefile" / "patch.txt", DoneEntry(99, 98, "/nowhere"))
    with transfer(here) as daemon:
        report = daemon.run_once()
        assert report.delivered
        assert "patch 99 is for base 98" in report.problems[0]
        append_donefile(here.tmp / "donefile" / "base.txt", DoneEntry(20, 20, "/nowhere"))
        with pytest.raises(NotFound, match="entry 20 points to /nowhere"):
            daemon.run_once()
        trained(here, 30, table(100, 3))
        assert daemon.run_once().version == "30"


def test_it_runs_until_stopped_and_when_told(here):
    with transfer(here) as daemon:
        reports: list[object] = []
        runner = threading.Thread(target=daemon.run, kwargs={"poll_s": 600, "on_report": reports.append})
        runner.start()
        wait_for(lambda: len(reports) == 1)
        (here.tmp / "donefile" / "base.txt").write_text("nonsense}\n")
        daemon.notify()
        wait_for(lambda: len(reports) == 2)
        assert isinstance(reports[1], InputError)
        (here.tmp / "donefile" / "base.txt").unlink()
        trained(here, 10, table(100))
        daemon.notify()
        wait_for(lambda: len(reports) == 3)
        daemon.stop()
        runner.join()
        assert reports[2].delivered


def test_a_stop_just_before_it_begins_to_wait_is_not_slept_through(here):
    """As a SIGTERM that comes when the loop has looked whether to stop and not yet forgotten its last wake-up."""
    with transfer(here) as daemon:
        forget = daemon._wake.clear

        def forget_and_stop():
            daemon.stop()
            forget()

        daemon._wake.clear = forget_and_stop
        runner = threading.Thread(target=daemon.run, kwargs={"poll_s": 600, "on_report": lambda _: None}, daemon=True)
        runner.start()
        runner.join(60)
        assert not runner.is_alive()


def wait_for(condition, seconds=100):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_file_server_of_the_users_own_is_used_where_it_has_the_port(here, tmp_path):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    def serving(directory):
        handler = partial(Handler, directory=str(directory))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", here.conf.wget_port), handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    trained(here, 10, table(100))
    wrong = serving(tmp_path / "donefile")
    with transfer(here) as daemon:
        with pytest.raises(Conflict, match="does not serve"):
            daemon.run_once()
        wrong.shutdown()
        wrong.server_close()
        right = serving("/")
        assert daemon.run_once().delivered
        right.shutdown()
        right.server_close()
    assert here.cluster.instances[0].agent.works[0]["source"].endswith("/ctr_part0.tar")


# The command line, in a process of its own -----------------------------------------------------------------------


def run(here, *arguments, **more):
    (here.tmp / "transfer.conf").write_text(here.conf.to_text())
    command = [
        sys.executable,
        "-m",
        "cloudedge",
        "cube",
        "transfer",
        "--config",
        here.tmp / "transfer.conf",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **more)


def test_the_command(here):
    trained(here, 10, table(100))
    dry = run(here, "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    assert json.loads(dry.stdout)["deliver"] == "10"
    assert here.cluster.versions() == [""] * 4
    done = run(here, "--once", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["delivered"] is True
    assert read(here, 3) == {value(3, -3)}
    again = run(here, "--once")
    assert again.returncode == 0
    assert "nothing new" in again.stderr
    bad = run(here, "--once", "--rollback")
    assert bad.returncode == 1
    append_donefile(here.tmp / "donefile" / "base.txt", DoneEntry(20, 20, "/nowhere"))
    append_donefile(here.tmp / "donefile" / "base.txt", DoneEntry(20, 20, "/elsewhere"))
    twice = run(here, "--once")
    assert twice.returncode == 1
    assert "base.txt: id 20 stands for /nowhere and for /elsewhere; give one a new id" in " ".join(twice.stderr.split())
    assert read(here, 3) == {value(3, -3)}


def test_the_daemon_answers_as_upstreams_does(here):
    trained(here, 10, table(100))
    (here.tmp / "transfer.conf").write_text(here.conf.to_text())
    port = free_port()
    command = [sys.executable, "-m", "cloudedge", "cube", "transfer", "--config", str(here.tmp / "transfer.conf")]
    with subprocess.Popen([*command, "--port", str(port), "--poll-s", "600"], stderr=subprocess.PIPE) as daemon:
        try:
            wait_for(lambda: len(set(here.cluster.versions())) == 1 and here.cluster.versions()[0])
            url = f"http://127.0.0.1:{port}"
            info = requests.get(f"{url}/dict/info", timeout=10).json()
            assert info["success"] == "0"
            assert (info["data"]["dict_name"], info["data"]["inst_num"]) == ("ctr", 4)
            wait_for(lambda: requests.get(f"{url}/dict/deploy/history", timeout=10).json()["data"])
            (version,) = requests.get(f"{url}/dict/deploy/history", timeout=10).json()["data"]
            assert (version["id"], version["key"], version["status"]) == (10, 10, 90)
            assert str(version["version"]) == here.cluster.versions()[0]
            instances = requests.get(f"{url}/instance/status", timeout=10).json()["data"]
            assert [each["status_id"] for each in instances] == [100] * 4
            assert requests.get(f"{url}/nonsense", timeout=10).json()["success"] == "2"
            trained(here, 20, table(100, 2))
            assert requests.post(f"{url}/notify", timeout=10).json()["success"] == "0"
            wait_for(lambda: read(here, 2) == {value(4, -4)})
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(100) == 0
        finally:
            daemon.kill()


def entries_of(here, version):
    """Count what the journal says of a delivery, from outside."""
    with Journal(here.tmp / "cluster" / "output" / "cloudedge-ctr" / "journal.db") as journal:
        found = [each for each in journal.operations() if each.subject == f"ctr={version}"]
        return len(journal.entries(found[0].number)) if found else -1


@pytest.mark.parametrize("entries", [0, 3, 9, 15, 21, 26])
def test_killed_at_any_moment_it_goes_on(here, entries):
    """Kill -9 once the journal has so many entries (a delivery writes about 36); whoever runs next finishes."""
    trained(here, 10, table(2000))
    with transfer(here) as daemon:
        daemon.run_once()
    trained(here, 20, table(2000, 2))
    (here.tmp / "transfer.conf").write_text(here.conf.to_text())
    command = [sys.executable, "-m", "cloudedge", "cube", "transfer", "--config", str(here.tmp / "transfer.conf")]
    with subprocess.Popen([*command, "--once"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as victim:
        wait_for(lambda: entries_of(here, 20) >= entries or victim.poll() is not None)
        victim.kill()
    with transfer(here) as daemon:
        assert daemon.run_once().version == "20"
    assert read(here, 3) == {value(6, -6)}
    assert len(set(here.cluster.versions())) == 1
