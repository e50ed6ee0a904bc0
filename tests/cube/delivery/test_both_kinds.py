"""One suite for both kinds of servers, ours and upstream's; `server_kinds.GUARANTEES` says where they differ."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager

import pytest

from cloudedge.errors import CloudEdgeError, Conflict, InputError, NotFound, Unavailable
from cloudedge.journal import Journal
from tests.cube.delivery.server_kinds import GUARANTEES, SHARDS, running
from tests.cube.delivery.tables import Tables, changed

pytestmark = pytest.mark.parts


@pytest.fixture(scope="module", params=GUARANTEES)
def servers(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("servers")) as made:
        yield made


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return Tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def work(tmp_path_factory, servers):
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def delivery(servers, work):
    with servers.delivery(work) as delivery:
        yield delivery


@pytest.fixture
def live(delivery, tables):
    """A version that is active everywhere, and one before it."""
    delivery.deliver([tables.fresh()])
    version = tables.fresh(2000)
    delivery.deliver([version])
    return version


def test_the_next_version_and_back(servers, delivery, tables, live):
    following = tables.version(changed(tables.rows[live.version], 3, 0.01), live)
    done = delivery.deliver([following], [live])
    assert servers.serves(tables.rows[following.version], following.version)
    whole = sum(each.size for each in delivery.workshop.base(live, SHARDS))
    assert (done.shipped_bytes < whole / 5) is servers.can.deltas
    assert delivery.deliver([following], [live]).shipped_bytes == 0  # again changes nothing
    back = delivery.rollback()
    assert (back.versions, back.shipped_bytes) == ({"emb": live.version}, 0)
    assert servers.serves(tables.rows[live.version], live.version)


def test_what_is_loaded_is_read_by_nobody_who_does_not_ask_for_it(servers, delivery, tables, live):
    following = tables.fresh()
    for replica in delivery.replicas.values():
        delivery.prepare(replica, following)
    assert servers.serves(tables.rows[live.version], live.version)
    key = next(iter(tables.rows[following.version]))
    holder = next(each for each in servers.replicas() if each.shard == key % SHARDS)
    if servers.can.pins:
        assert holder.probe(following.version, [key]) == [tables.rows[following.version][key].tobytes()]
    else:
        with pytest.raises(CloudEdgeError):
            holder.probe(following.version, [key])
    delivery.deliver([following])
    assert servers.serves(tables.rows[following.version], following.version)


def test_a_server_that_is_away_stops_everything_before_it_begins(servers, delivery, tables, live):
    following = tables.fresh()
    servers.kill(2)
    with pytest.raises(Unavailable, match="emb/1/0"):
        delivery.deliver([following])
    servers.start(2)
    assert servers.serves(tables.rows[live.version], live.version)
    delivery.deliver([following])
    assert servers.serves(tables.rows[following.version], following.version)


def test_after_a_restart_of_all_servers(servers, delivery, tables, live):
    for number in range(4):
        servers.kill(number)
    for number in range(4):
        servers.start(number)
    assert servers.serves(tables.rows[live.version], live.version)
    if servers.can.back_after_restart:
        delivery.rollback()
        assert live.version not in servers.actives()
    else:
        with pytest.raises((NotFound, InputError)):
            delivery.rollback()
        assert servers.serves(tables.rows[live.version], live.version)


def test_bytes_damaged_on_their_way_are_noticed_before_anybody_reads_them(servers, delivery, tables, live):
    following = tables.fresh()
    form = delivery.observe()[0].status.form
    for artifact in delivery.workshop.base(following, SHARDS, form):
        largest = max((artifact.directory / file.name for file in artifact.files), key=lambda path: path.stat().st_size)
        raw = bytearray(largest.read_bytes())
        raw[len(raw) // 2] ^= 1
        largest.write_bytes(raw)
    with pytest.raises(CloudEdgeError, match=f"to {servers.can.damage_is_found} version"):
        delivery.deliver([following])
    assert servers.serves(tables.rows[live.version], live.version)
    assert not delivery.abort()  # it has given up by itself


class Cut(BaseException):
    """As SIGKILL: nothing after it is done or written."""


@contextmanager
def cut_after(writes, of=lambda _: True):
    """Cut short what is done in this block after so many writes of the journal that `of` counts."""
    write, left = Journal._write, [writes]

    def dying(self, sql, *values):
        if left[0] == 0:
            raise Cut
        number = write(self, sql, *values)
        left[0] -= of(values)
        if left[0] == 0:
            raise Cut
        return number

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Journal, "_write", dying)
        yield


@pytest.fixture(params=[2, 7, 18])
def writes(request):
    """Begun, loading, activating."""
    return request.param


@pytest.mark.usefixtures("live")
def test_a_delivery_that_is_cut_short_is_whole_after_the_next(servers, work, tables, writes):
    """Whole processes are killed in `make kills`."""
    (before,), following = servers.actives(), tables.fresh()
    with pytest.raises(Cut), servers.delivery(work) as cut, cut_after(writes):
        cut.deliver([following])
    assert servers.actives() <= {before, following.version}
    with servers.delivery(work) as next_one:
        next_one.deliver([following])
    assert servers.serves(tables.rows[following.version], following.version)


def test_giving_up_before_anything_moved_costs_nothing(servers, delivery, tables, live):
    following = tables.fresh()
    servers.kill(3)
    with pytest.raises(Unavailable):
        delivery.deliver([following])
    servers.start(3)
    delivery.abort()
    assert not delivery.abort()
    assert servers.serves(tables.rows[live.version], live.version)


def test_a_rollback_cut_short_at_any_write_ends_where_it_was_going(servers, work, tables, live):
    """The same command again: neither further back, nor forward to what it came from."""
    following = tables.fresh()
    for writes in range(1, 100):
        with servers.delivery(work) as delivery:
            delivery.deliver([following])
        try:
            with servers.delivery(work) as cut, cut_after(writes):
                cut.rollback()
            break  # it has fewer writes than that
        except Cut:
            with servers.delivery(work) as again:
                assert again.rollback().versions == {"emb": live.version}
        assert servers.actives() == {live.version}
    assert writes > 10


def test_a_rollback_from_a_half_active_delivery_cut_short_at_any_write_goes_no_further_back(
    servers, work, tables, live
):
    following = tables.fresh()
    for writes in range(1, 100):
        with pytest.raises(Cut), servers.delivery(work) as half, cut_after(1, of=is_a_moved_pointer):
            half.deliver([following])
        assert following.version in servers.actives()
        try:
            with servers.delivery(work) as cut, cut_after(writes):
                cut.rollback()
            break
        except Cut:
            with servers.delivery(work) as again:
                assert again.rollback().versions == {"emb": live.version}
        assert servers.actives() == {live.version}
    assert writes > 2


def is_a_moved_pointer(values):
    return len(values) > 2 and str(values[1]).startswith("activate ") and values[2] == "done"


def test_a_rollback_from_a_half_active_delivery_that_fails_goes_no_further_back(servers, work, tables, live):
    with pytest.raises(Cut), servers.delivery(work) as half, cut_after(1, of=is_a_moved_pointer):
        half.deliver([tables.fresh()])
    with servers.delivery(work) as delivery:
        servers.kill(1)
        with pytest.raises(Unavailable):
            delivery.rollback()
        with pytest.raises(Conflict, match="cut short while it activated"):
            delivery.deliver([tables.fresh()])
        servers.start(1)
        assert {step.version for step in delivery.plan_back().steps} == {live.version}
        if servers.can.back_after_restart:
            delivery.rollback()
        else:
            with pytest.raises(NotFound, match="emb/0/1 did not switch"):
                delivery.rollback()
            delivery.deliver([live])  # a rollback to it is open, and this finishes it
        assert servers.serves(tables.rows[live.version], live.version)


def test_servers_and_agents_killed_at_seeded_moments_under_load(servers, work, tables, live):
    """Smaller than `make kills`, and with upstream's agents among those that die."""
    rng = random.Random(11)
    rows = tables.rows[live.version]
    known = {live.version: rows}
    with Reading(servers, known) as reading:
        for number in range(4):
            rows = changed(rows, number, 0.3)
            following = tables.version(rows)
            known[following.version] = tables.rows[following.version]
            kill, start = rng.choice(servers.processes())
            killer = threading.Timer(rng.random() * 0.3, lambda kill=kill, start=start: (kill(), start()))
            killer.start()
            for _ in range(6):
                try:
                    with servers.delivery(work) as delivery:
                        delivery.deliver([following])
                    break
                except CloudEdgeError:
                    killer.join()
            killer.join()
            with servers.delivery(work) as delivery:
                delivery.deliver([following])
            assert servers.serves(tables.rows[following.version], following.version)
    assert reading.wrong == []
    assert reading.answers > 0
    assert not (reading.failed and servers.can.reads_never_fail), reading.failed


class Reading(threading.Thread):
    """Reads without a pin: every answer is that of one version, whole."""

    def __init__(self, servers, known):
        super().__init__(daemon=True)
        self._servers, self._known = servers, known
        self._keys = sorted(next(iter(known.values())))[:60]
        self._stop_it = threading.Event()
        self.answers, self.wrong, self.failed = 0, [], []

    def run(self):
        with self._servers.client() as client:
            while not self._stop_it.is_set():
                try:
                    found = client.seek(self._keys)
                except CloudEdgeError as error:
                    self.failed.append(repr(error))
                    continue
                self.answers += 1
                seen = [row.tobytes() if there else None for row, there in zip(found.values, found.found, strict=True)]
                whole = [[rows[key].tobytes() if key in rows else None for key in self._keys] for rows in
                         list(self._known.values())]  # fmt: skip
                if seen not in whole:
                    self.wrong.append(found.version)
                self._stop_it.wait(0.002)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._stop_it.set()
        self.join()
