"""Delivery to upstream's servers, whose answers are not believed."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from cloudedge.clock import ManualClock
from cloudedge.cube import Client, ClientConfig
from cloudedge.cube.formats import Artifact, ArtifactFile, Source
from cloudedge.cube.formats._transfer_conf import CubeAddress
from cloudedge.cube.server import FileServer
from cloudedge.cube.upstream import AtomicSwitch, UpstreamReplica, UpstreamTimes, VersionIds, journal_memory
from cloudedge.cube.upstream.servers._calls import UpstreamCalls
from cloudedge.errors import Conflict, DeadlineExceeded, InputError, NotFound, Rejected, Unavailable
from cloudedge.journal import Journal
from cloudedge.testing.upstream_cube import UpstreamCluster
from tests.cube.upstream.tables import build_rows, table, value

pytestmark = pytest.mark.parts

SCALE = 0.001
TIMES = UpstreamTimes(stage_s=20, load_s=10, call_s=5, refused_s=1.5 * SCALE)


class Facts(dict):
    recall = dict.get
    remember = dict.__setitem__


@contextmanager
def running(tmp_path, *, shards=1, copies=1, token=None, **more):
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    with (
        UpstreamCluster(tmp_path / "cluster", shards=shards, copies=copies, time_scale=SCALE, **more) as cluster,
        FileServer(out, token=token) as files,
    ):
        ids = VersionIds("ctr", Facts())
        here = SimpleNamespace(cluster=cluster, files=files, ids=ids, tmp=tmp_path, shards=shards, token=token)
        here.replicas = [replica(here, each) for each in cluster.instances]
        yield here
        for each in here.replicas:
            each.close()


def replica(here, instance, **more):
    conf = here.cluster.conf(donefile_address="/nowhere")
    place = (instance.shard, instance.copy)
    return UpstreamReplica(
        table="ctr", shard=instance.shard, copy=instance.copy, agent=conf.agents[place], cube=conf.cubes[place],
        ids=here.ids, **{"times": TIMES} | more,
    )  # fmt: skip


def artifact(here, directory, shard, rows):
    tar = f"ctr_part{shard}.tar"
    files = [ArtifactFile(name, (directory / name).stat().st_size, "0" * 64) for name in (tar, f"{tar}.md5")]
    return Artifact(
        kind="base", shard=shard, shards=here.shards, width=8, rows=rows, checksum="0" * 32, files=tuple(files),
        directory=directory, sources=(Source(here.files.url(directory), here.token or ""),),
    )  # fmt: skip


def artifacts(here, name, rows):
    report = build_rows(here.tmp, here.ids.number(name), rows, shards=here.shards)
    return [artifact(here, report.directory, part.shard, part.added) for part in report.parts]


def prepare(here, name, rows):
    parts = artifacts(here, name, rows)
    for each in here.replicas:
        each.stage(name, parts[each.shard])
        each.load(name)


def deliver(here, name, rows):
    prepare(here, name, rows)
    return AtomicSwitch(here.replicas).switch(name)


def test_names_and_numbers_are_one_to_one(tmp_path):
    clock = ManualClock()
    with Journal(tmp_path / "j") as journal, journal.writing("a test") as writer:
        ids = VersionIds("ctr", journal_memory(journal, writer), clock=clock)
        first, second = ids.number("monday"), ids.number("tuesday")
        assert first < second < 2**31
        assert ids.number("1562000400") == 1562000400
        assert ids.number(str(first)) != first  # taken by monday
        names = ["99999999999", "2147483648", "100", "1000", "0123456789", "2147483647", "thursday"]
        numbers = [ids.number(name) for name in names]
        assert len(set(numbers)) == len(names)
        assert all(len(str(number)) == 10 and number < 2**31 for number in numbers)
        again = VersionIds("ctr", journal_memory(journal, None), clock=clock)
        assert again.number("monday") == first
        assert [again.name(str(n)) for n in (first, second)] == ["monday", "tuesday"]
        assert again.name("77") == "77"
        assert again.name("") is None
        with pytest.raises(NotFound):
            again.number("wednesday")


def test_a_version_is_staged_loaded_switched_and_probed(tmp_path):
    with running(tmp_path, token="s3cret") as here:
        (one,) = here.replicas
        assert one.status().active is None
        (part,) = artifacts(here, "monday", table(10))
        assert one.stage("monday", part) == part.size
        assert one.stage("monday", part) == 0
        one.load("monday")
        assert one.status().active is None
        with pytest.raises(NotFound, match="not the one that answers"):
            one.probe("monday", [1])
        one.deactivate()  # there is nothing to take away yet
        one.activate("monday")
        with pytest.raises(Rejected, match="cannot go back to none"):
            one.deactivate()
        assert one.probe("monday", [1, 99]) == [value(1, -1), None]
        status = one.status()
        assert (status.active, status.can_pin, status.can_delta, status.form) == ("monday", False, False, "tar")
        with pytest.raises(Conflict):
            one.unload("monday")


def test_every_step_may_be_repeated(tmp_path):
    with running(tmp_path) as here:
        (instance,) = here.cluster.instances
        (part,) = artifacts(here, "monday", table(10))
        for _ in range(2):
            one = replica(here, instance)  # as another process would
            one.stage("monday", part)
            one.load("monday")
        one.activate("monday")
        one.activate("monday")
        one = replica(here, instance)
        assert one.stage("monday", part) == 0
        one.load("monday")
        one.activate("monday")
        assert one.status().active == "monday"


def test_a_restarted_server_serves_what_was_delivered(tmp_path):
    with running(tmp_path) as here:
        deliver(here, "monday", table(10))
        deliver(here, "tuesday", table(10, 2))
        here.cluster.instances[0].server.restart()
        (one,) = here.replicas
        assert one.status().active == "tuesday"
        assert one.warnings == []


def test_a_disk_out_of_reach_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("cloudedge.cube.upstream.servers._disk.is_loopback", lambda _: False)
    with running(tmp_path) as here:
        deliver(here, "monday", table(10))
        (one,) = here.replicas
        assert len(one.warnings) == 1
        assert "data/VERSION" in one.warnings[0]


def test_going_back_works_while_the_old_version_is_in_the_other_slot(tmp_path):
    with running(tmp_path, shards=2, copies=2) as here:
        deliver(here, "monday", table(10))
        deliver(here, "tuesday", table(10, 2))
        assert all(each.status().previous == "monday" for each in here.replicas)
        AtomicSwitch(here.replicas).switch("monday")
        assert here.replicas[0].probe("monday", [2]) == [value(2, -2)]
        assert any("gone from its disk" in each for each in here.replicas[0].warnings)
        AtomicSwitch(here.replicas).switch("tuesday")
        prepare(here, "wednesday", table(10, 3))
        with pytest.raises(NotFound):
            here.replicas[0].activate("monday")
        assert here.cluster.versions() == [str(here.ids.number("tuesday"))] * 4


def test_a_damaged_download_is_fetched_under_another_name(tmp_path):
    with running(tmp_path) as here:
        here.cluster.instances[0].agent.corrupt_downloads = 1
        deliver(here, "monday", table(10))
        (instance,) = here.cluster.instances
        (one,) = here.replicas
        assert one.status().active == "monday"
        instance.server.restart()
        deliver(here, "tuesday", table(10))
        (part,) = artifacts(here, "wednesday", table(10))
        instance.agent.corrupt_downloads = 1
        one.stage("wednesday", part)
        replica(here, instance).stage("wednesday", part)  # another process finds the name that worked
        fetched = [work["source"].rpartition("/")[2] for work in instance.agent.works]
        damaged, whole = "ctr_part0.tar", "ctr_part0.1.tar"
        assert fetched == [damaged, whole, damaged, damaged, whole, whole]


def test_a_download_in_progress_is_waited_for(tmp_path):
    with running(tmp_path) as here:
        (instance,) = here.cluster.instances
        (part,) = artifacts(here, "monday", table(10))
        instance.agent.time_scale = 0.2  # the first download waits 0.4 s
        first = threading.Thread(target=replica(here, instance).stage, args=("monday", part))
        first.start()
        time.sleep(0.1)
        patient = replica(here, instance, times=UpstreamTimes(stage_s=20, call_s=5, refused_s=0.2))
        patient.stage("monday", part)
        first.join()
        assert {work["source"] for work in instance.agent.works} == {here.files.url(part.directory / "ctr_part0.tar")}


def test_an_agent_that_never_gets_it_is_given_up(tmp_path):
    with running(tmp_path) as here:
        (instance,) = here.cluster.instances
        (part,) = artifacts(here, "monday", table(10))
        instance.agent.corrupt_downloads = 1000
        with pytest.raises(DeadlineExceeded, match="ctr/0/0: the agent could not download"):
            here.replicas[0].stage("monday", part)
        instance.agent.close()
        hurried = replica(here, instance, times=UpstreamTimes(stage_s=0.5))
        with pytest.raises(DeadlineExceeded, match="did not answer"):
            hurried.stage("monday", part)


def test_what_upstream_cannot_take_is_refused(tmp_path):
    with running(tmp_path) as here:
        (one,) = here.replicas
        (part,) = artifacts(here, "monday", table(10))
        empty = Artifact(**{**part.__dict__, "rows": 0})
        with pytest.raises(InputError, match="empty"):
            one.stage("monday", empty)
        delta = Artifact(**{**part.__dict__, "kind": "delta"})
        with pytest.raises(InputError, match="whole shard"):
            one.stage("monday", delta)
        with pytest.raises(InputError, match="whole versions"):
            one.load("monday", base="sunday")
        with pytest.raises(InputError, match="did not load"):
            one.load("never staged")


def test_a_load_under_way_is_waited_for(tmp_path):
    with running(tmp_path, load_s=0.4) as here:
        prepare(here, "monday", table(10))
        (instance,) = here.cluster.instances
        number = str(here.ids.number("monday"))
        foreign = threading.Thread(
            target=here.replicas[0]._calls.control, args=({"cmd": "bg_load_base", "version_path": f"/{number}"},)
        )
        foreign.start()
        time.sleep(0.1)
        replica(here, instance).load("monday")
        foreign.join()
        assert instance.server.background == number
        assert not any(command["cmd"] == "enable" for command in instance.server.commands)


@pytest.mark.parametrize("through_agent", [False, True])
def test_an_enable_that_was_refused_is_noticed(tmp_path, through_agent):
    with running(tmp_path) as here:
        deliver(here, "monday", table(10))
        (instance,) = here.cluster.instances
        one = replica(here, instance, through_agent=through_agent)
        (part,) = artifacts(here, "tuesday", table(10, 2))
        one.stage("tuesday", part)
        one.load("tuesday")
        instance.server.refuse["enable"] = 1000
        with pytest.raises(NotFound, match="was not switched to"):
            one.activate("tuesday")
        assert one.status().active == "monday"
        instance.server.refuse.clear()
        one.load("tuesday")
        one.activate("tuesday")
        assert one.status().active == "tuesday"


def test_what_an_agent_repeats_of_its_address_is_not_shown(tmp_path, monkeypatch):
    with running(tmp_path, token="s3cret/x") as here:
        (part,) = artifacts(here, "monday", table(10))
        (instance,) = here.cluster.instances
        monkeypatch.setattr(
            instance.agent, "_download", lambda work: (_ for _ in ()).throw(KeyError(f"wget {work['source']} failed"))
        )
        with pytest.raises(DeadlineExceeded) as caught:
            replica(here, instance, times=UpstreamTimes(stage_s=0.5)).stage("monday", part)
        assert "***" in str(caught.value)
        assert "s3cret" not in str(caught.value)


def test_a_dead_server_is_unavailable_by_name(tmp_path):
    with running(tmp_path) as here:
        here.cluster.instances[0].server.kill()
        with pytest.raises(Unavailable):
            here.replicas[0].status()
        with pytest.raises(Unavailable, match="ctr/0/0 cannot be reached"):
            AtomicSwitch(here.replicas).switch("monday")


def test_a_guarded_switch_moves_everything_and_measures(tmp_path):
    with running(tmp_path, shards=2, copies=2) as here:
        deliver(here, "monday", table(100))
        report = deliver(here, "tuesday", table(100, 2))
        assert (report.replicas, report.changed) == (4, 4)
        assert 0 <= report.mixed_at_least_s <= report.mixed_at_most_s
        again = AtomicSwitch(here.replicas).switch("tuesday")
        assert (again.changed, again.mixed_at_most_s) == (0, 0.0)


def test_a_guarded_switch_that_is_refused_goes_back_everywhere(tmp_path):
    with running(tmp_path, shards=2, copies=2) as here:
        deliver(here, "monday", table(100))
        prepare(here, "tuesday", table(100, 2))
        here.cluster.instances[2].server.refuse["enable"] = 1
        with pytest.raises(NotFound, match="ctr/1/0 did not switch to tuesday; all are on what they had"):
            AtomicSwitch(here.replicas).switch("tuesday")
        assert here.cluster.versions() == [str(here.ids.number("monday"))] * 4
        AtomicSwitch(here.replicas).switch("tuesday")
        assert here.cluster.versions() == [str(here.ids.number("tuesday"))] * 4


def test_an_answer_without_an_end_is_read_to_its_limit(tmp_path):
    class Endless(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"total_key_num : 5\n" + b"x" * 65536 + b"\n")

        do_POST = do_GET  # noqa: N815 - the name it is called by

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        here = ("127.0.0.1", server.server_address[1])
        calls = UpstreamCalls("emb/0/0", here, CubeAddress(*here, "/"), call_s=30)
        assert calls.counters() == {"total_key_num": 5}
        assert calls.is_loading() is False
        with pytest.raises(Unavailable, match="does not answer like a cube-agent"):
            calls.agent({"command": "download"}, within_s=30)
        calls.close()
        server.shutdown()


def test_a_server_that_dies_while_switching_brings_the_others_back(tmp_path):
    with running(tmp_path, shards=2) as here:
        deliver(here, "monday", table(100))
        prepare(here, "tuesday", table(100, 2))
        dying = here.cluster.instances[1].server
        real = dying._do
        dying._do = lambda command, asked: dying.kill() or real(command, asked)
        with pytest.raises(Conflict) as caught:
            AtomicSwitch(here.replicas).switch("tuesday")
        assert caught.value.versions == {"ctr/0/0": str(here.ids.number("monday")), "ctr/1/0": None}
        assert here.cluster.instances[0].server.version == str(here.ids.number("monday"))


def test_our_readers_never_see_a_mixture(tmp_path):
    with running(tmp_path, shards=2, copies=2) as here:
        deliver(here, "0", table(100, 0))
        addresses = [
            [f"127.0.0.1:{each.server.port}" for each in here.cluster.instances if each.shard == shard]
            for shard in (0, 1)
        ]
        stop, seen, errors = threading.Event(), set(), []

        def read():
            keys = list(range(1, 40))
            with Client(ClientConfig(addresses, timeout_ms=5000)) as client:
                while not stop.is_set():
                    try:
                        values = client.seek(keys).values[:, 0] / keys
                        seen.add(frozenset(values.tolist()))
                    except Unavailable as error:  # a mixture is an error, not an answer
                        errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        for scale in (1, 2, 3):
            deliver(here, str(scale), table(100, scale))
        stop.set()
        reader.join()
        assert all(len(each) == 1 for each in seen)
        assert len(seen) >= 2
