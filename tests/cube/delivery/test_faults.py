"""What may be wrong on the way: each is one error that says where and what to do, and what was active stays active."""

from __future__ import annotations

import json
import threading

import pytest

from cloudedge.cube.delivery import ArtifactCache, CubeReplica, Delivery, DeliveryPolicy, TableVersion
from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound, Rejected, Unavailable
from tests.cube.delivery.fleet import TOKEN, Fleet
from tests.cube.delivery.tables import Tables, changed

pytestmark = pytest.mark.parts

SHARDS = REPLICAS = 2


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with Fleet(tmp_path_factory.mktemp("fleet"), SHARDS, REPLICAS) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return Tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture
def delivery(fleet, tmp_path):
    with Delivery(fleet.replicas(), ArtifactCache(tmp_path / "work"), policy=quick()) as delivery:
        yield delivery


@pytest.fixture
def live(delivery, tables):
    """A version that is active everywhere."""
    version = tables.fresh()
    delivery.deliver([version])
    return version


def quick(**more) -> DeliveryPolicy:
    return DeliveryPolicy(attempts=2, pause_s=0.05, **more)


def actives(fleet) -> set[str | None]:
    return {replica.status().active for replica in fleet.replicas()}


def test_damaged_artifacts_are_refused_where_they_arrive(delivery, fleet, tables, live):
    version = tables.fresh()
    artifact = delivery.workshop.base(version, SHARDS)[1]
    data = artifact.directory / "data.0"
    raw = bytearray(data.read_bytes())
    raw[-1] ^= 1
    data.write_bytes(raw)
    with pytest.raises(
        IntegrityError, match=r"to stage version \w+ on emb/1/0, shard 1 of table 'emb', failed.*SHA-256"
    ) as found:
        delivery.deliver([version])
    assert (found.value.table, found.value.shard) == ("emb", 1)
    assert found.value.hint
    assert actives(fleet) == {live.version}


def test_rows_that_are_not_the_promised_ones_are_refused_when_loaded(delivery, fleet, tables, live):
    version = tables.fresh()
    artifact = delivery.workshop.base(version, SHARDS)[0]
    note = artifact.directory / "artifact.json"
    other = delivery.workshop.base(tables.fresh(), SHARDS)[0]
    for file in other.files:
        (artifact.directory / file.name).write_bytes((other.directory / file.name).read_bytes())
    note.write_text(json.dumps({**json.loads(note.read_text()), "files": other.as_json()["files"]}))
    with pytest.raises(IntegrityError, match=r"to load version \w+ on emb/0/\d.*expected checksum"):
        delivery.deliver([version])
    assert actives(fleet) == {live.version}


def test_a_replica_that_is_away_is_named_and_the_rest_follows_once_it_is_back(delivery, fleet, tables, live):
    version = tables.fresh()
    fleet.servers[2].kill()
    with pytest.raises(Unavailable, match=r"emb/1/0 is away.*does not answer") as found:
        delivery.deliver([version])
    assert "run the same command" in found.value.hint
    with fleet.client() as client:
        assert client.seek(list(tables.rows[live.version])[:50], pin=live.version).found.all()
    fleet.servers[2].start().wait()
    assert actives(fleet) == {live.version}
    delivery.deliver([version])
    assert actives(fleet) == {version.version}


def test_restarted_servers_have_what_they_had(delivery, fleet, tables, live):
    second = tables.version(changed(tables.rows[live.version], 5), live)
    third = tables.version(changed(tables.rows[second.version], 6), second)
    delivery.deliver([second], [live])
    delivery.deliver([third], [second])
    before = [replica.status() for replica in fleet.replicas()]
    assert list(before[0].loaded()) == [second.version, third.version]
    assert before[0].loaded()[third.version].deltas == 2
    fleet.close()
    for server in fleet.servers:
        server.start()
    for server, status in zip(fleet.servers, before, strict=True):
        now = server.wait().replica().status()
        assert (now.active, now.previous) == (status.active, status.previous)
        assert {n: (v.rows, v.checksum, v.deltas) for n, v in now.loaded().items()} == {
            n: (v.rows, v.checksum, v.deltas) for n, v in status.loaded().items()
        }
    delivery.rollback()
    assert actives(fleet) == {second.version}


def test_a_version_damaged_on_a_servers_disk_is_left_out_and_delivered_again(delivery, fleet, tables, live):
    server = fleet.servers[0]
    server.kill()
    data = server.folder / "versions" / live.version / "data.0"
    data.write_bytes(data.read_bytes()[:-4])
    server.start().wait()
    assert server.replica().status().active is None
    assert live.version not in server.replica().status().versions
    delivery.deliver([live])
    assert actives(fleet) == {live.version}


def test_a_delta_for_a_base_nobody_has_is_refused_and_a_base_is_planned(delivery, fleet, tables, live):
    first = tables.fresh()
    second = tables.version(changed(tables.rows[first.version], 1))
    assert {step.how for step in delivery.plan([second], [first]).of("stage")} == {"base"}
    replica = delivery.replicas["emb/0/0"]
    artifact = delivery._offer(delivery.workshop.delta(first, second, SHARDS)[0], ())
    replica.stage(second.version, artifact)
    with pytest.raises(InputError, match="no loaded version has them") as found:
        replica.load(second.version)
    assert found.value.hint == "Deliver it as a base."
    delivery.deliver([second], [first])  # what was staged there is replaced
    assert actives(fleet) == {second.version}


def test_a_long_chain_is_cut_by_a_base(fleet, tables, live, tmp_path):
    with Delivery(fleet.replicas(), ArtifactCache(tmp_path / "w"), policy=quick(max_deltas=1)) as delivery:
        before, kinds = live, []
        for seed in range(3):
            version = tables.version(changed(tables.rows[before.version], seed, 0.01), before)
            kinds.append({step.how for step in delivery.plan([version], [before]).of("stage")})
            delivery.deliver([version], [before])
            before = version
    assert kinds == [{"delta"}, {"base"}, {"delta"}]


def test_neither_the_active_nor_the_previous_version_goes(delivery, fleet, tables, live):
    delivery.deliver([tables.fresh()])
    for replica in fleet.replicas():
        status = replica.status()
        for name in (status.active, status.previous):
            with pytest.raises(Conflict, match="cannot be unloaded"):
                replica.unload(name)
        replica.unload("never-there")


def test_rows_under_a_name_that_is_taken_are_refused(delivery, fleet, tables, live):
    other = TableVersion("emb", live.version, tables.fresh().rows)
    with pytest.raises(IntegrityError, match=r"has a version \w+ with rows"):
        delivery.deliver([other])
    assert actives(fleet) == {live.version}


def test_a_wrong_token_is_said_to_be_one(fleet, tables, live, tmp_path):
    server = fleet.servers[0]
    wrong = CubeReplica("emb", 0, address=server.address, admin=f"127.0.0.1:{server.admin_port}", token="wrong")
    with pytest.raises(Rejected, match="does not accept the token") as found:
        wrong.status()
    assert "wrong" not in str(found.value)


def test_one_delivery_at_a_time(delivery, fleet, tables):
    with (
        delivery.journal.writing("somebody else"),
        Delivery(fleet.replicas(), delivery.workshop, policy=quick()) as second,
        pytest.raises(Conflict, match="somebody else"),
    ):
        second.deliver([tables.fresh()])


class Stubborn(CubeReplica):
    """A server whose pointer does not move."""

    def activate(self, name: str) -> None:
        raise Unavailable("the pointer is stuck")


def test_where_one_pointer_does_not_move_the_others_go_back(fleet, tables, live, tmp_path):
    version = tables.fresh()
    stuck = fleet.servers[3]
    admin = f"127.0.0.1:{stuck.admin_port}"
    replicas = [*fleet.replicas()[:3], Stubborn("emb", 1, replica="1", address=stuck.address, admin=admin, token=TOKEN)]
    with Delivery(replicas, ArtifactCache(tmp_path / "w"), policy=quick()) as delivery:
        with pytest.raises(Unavailable, match=r"to activate version \w+ on emb/1/1.*2 times.*pointer is stuck"):
            delivery.deliver([version])
        assert actives(fleet) == {live.version}
        assert delivery.journal.unfinished() is None
        assert delivery.abort() is False


def test_where_a_first_version_does_not_move_everywhere_nobody_answers_from_it(tables, tmp_path):
    with Fleet(tmp_path / "fleet", 1, 2) as fresh:
        stuck = fresh.servers[1]
        admin = f"127.0.0.1:{stuck.admin_port}"
        stubborn = Stubborn("emb", 0, replica="1", address=stuck.address, admin=admin, token=TOKEN)
        with Delivery([fresh.replicas()[0], stubborn], ArtifactCache(tmp_path / "w"), policy=quick()) as delivery:
            with pytest.raises(Unavailable, match="pointer is stuck"):
                delivery.deliver([tables.fresh()])
            assert actives(fresh) == {None}
            assert delivery.journal.unfinished() is None


def test_what_was_cut_short_can_be_given_up_at_no_cost(delivery, fleet, tables, live, monkeypatch):
    version = tables.fresh()

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(delivery, "_activate_all", cut)
    with pytest.raises(KeyboardInterrupt):
        delivery.deliver([version])
    assert delivery.journal.unfinished() is not None
    assert delivery.abort() is True
    for replica in fleet.replicas():
        assert version.version not in replica.status().versions
    assert actives(fleet) == {live.version}


def test_cut_short_between_two_pointers_it_goes_on_or_back(delivery, fleet, tables, live, monkeypatch):
    version, real = tables.fresh(), CubeReplica.activate
    first = threading.Event()

    def cut(self: CubeReplica, name: str) -> None:
        if first.is_set():
            raise KeyboardInterrupt
        first.set()
        real(self, name)

    def deliver_cut() -> None:
        first.clear()
        monkeypatch.setattr(CubeReplica, "activate", cut)
        with pytest.raises(KeyboardInterrupt):
            delivery.deliver([version])
        monkeypatch.undo()
        assert actives(fleet) == {live.version, version.version}

    deliver_cut()
    with pytest.raises(Conflict, match="cut short while it activated"):
        delivery.abort()
    with pytest.raises(Conflict, match="cut short while it activated"):
        delivery.deliver([tables.fresh()])
    assert delivery.rollback().versions == {"emb": live.version}
    assert actives(fleet) == {live.version}
    deliver_cut()
    delivery.deliver([version])
    assert actives(fleet) == {version.version}


def test_nothing_to_go_back_to(delivery):
    with pytest.raises(NotFound, match="nothing to go back to"):
        delivery.rollback()


def test_replicas_of_a_shard_fetch_from_each_other(delivery, fleet, tables, live):
    version = tables.fresh()
    artifacts = delivery.workshop.base(version, SHARDS)
    delivery.deliver([version])
    for artifact in artifacts:
        for file in artifact.files:
            sent = delivery._files.bytes_sent(artifact.directory / file.name)
            assert sent == file.size, file  # once, for two replicas


def test_one_replica_at_a_time_for_those_with_a_journal_of_their_own(delivery, fleet, tables, live):
    version = tables.version(changed(tables.rows[live.version], 9))
    for replica in fleet.replicas():
        assert delivery.prepare(replica, version, [live]) > 0
        assert delivery.prepare(replica, version, [live]) == 0
    assert actives(fleet) == {live.version}
    for replica in fleet.replicas():
        delivery.activate(replica, version.version)
        delivery.forget(replica, version.version)
        assert list(replica.status().loaded()) == [live.version, version.version]


def test_tables_of_one_delivery_move_together(fleet, tables, live, tmp_path):
    other = Tables(tmp_path / "other", name="ads")
    with Fleet(tmp_path / "ads", 1, 1, table="ads") as ads:
        both = [*fleet.replicas(), *ads.replicas()]
        first, second = tables.fresh(), other.fresh()
        with Delivery(both, ArtifactCache(tmp_path / "w"), policy=quick()) as delivery:
            ads.close()
            with pytest.raises(Unavailable, match="ads/0/0 is away"):
                delivery.deliver([first, second])
            assert actives(fleet) == {live.version}
            ads.servers[0].start().wait()
            delivery.deliver([first, second])
            assert (actives(fleet), actives(ads)) == ({first.version}, {second.version})
            with pytest.raises(InputError, match="no replica serves table"):
                delivery.deliver([TableVersion("users", "v", first.rows)])
