"""A watch tells every change once, whatever happens to its connections."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudedge import errors
from cloudedge.kube import Cluster, Kind
from cloudedge.kube.streams._watch import changes
from tests.kube.fault_proxy import hang, lines, reset, says, settled, status


def thing(name, version, uid=None):
    return {"metadata": {"name": name, "uid": uid or name, "resourceVersion": str(version)}}


def listing(version, *items):
    return says({"metadata": {"resourceVersion": str(version)}, "items": list(items)})


def event(kind, obj):
    return {"type": kind, "object": obj}


GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


def told(client, timeout_s):
    found = client.watch(Kind.CONFIG_MAP, timeout_s=timeout_s)
    return [(e.type, e.object["metadata"]["name"], e.object["metadata"]["resourceVersion"]) for e in found]


CASES = {
    "what is there, then what changes": (
        [
            listing(5, thing("a", 3)),
            lines(event("ADDED", thing("b", 6)), event("MODIFIED", thing("a", 7)), event("DELETED", thing("b", 8))),
        ],
        [("ADDED", "a", "3"), ("ADDED", "b", "6"), ("MODIFIED", "a", "7"), ("DELETED", "b", "8")],
    ),
    "goes on after a cut": (
        [listing(5), lines(event("ADDED", thing("a", 6)), then="cut"), lines(event("MODIFIED", thing("a", 7)))],
        [("ADDED", "a", "6"), ("MODIFIED", "a", "7")],
    ),
    "half a line is no event": (
        [listing(5), lines(event("ADDED", thing("a", 6)), b'{"type":"MODI'), lines(event("MODIFIED", thing("a", 7)))],
        [("ADDED", "a", "6"), ("MODIFIED", "a", "7")],
    ),
    "told again is not told twice": (
        [listing(5, thing("a", 4)), lines(event("ADDED", thing("a", 4)), event("MODIFIED", thing("a", 6)))],
        [("ADDED", "a", "4"), ("MODIFIED", "a", "6")],
    ),
    "expired: what happened meanwhile is told": (
        [
            listing(5, thing("a", 1), thing("b", 2), thing("c", 3)),
            status(410, "Expired"),
            listing(9, thing("a", 1), thing("b", 8), thing("d", 7)),
        ],
        [
            *(("ADDED", "a", "1"), ("ADDED", "b", "2"), ("ADDED", "c", "3")),
            *(("DELETED", "c", "3"), ("MODIFIED", "b", "8"), ("ADDED", "d", "7")),
        ],
    ),
    "expired while it was open": (
        [listing(5, thing("a", 1)), lines(event("ERROR", GONE)), listing(9)],
        [("ADDED", "a", "1"), ("DELETED", "a", "1")],
    ),
    "made again under its name": (
        [listing(5, thing("a", 1, "old")), status(410, "Expired"), listing(9, thing("a", 8, "new"))],
        [("ADDED", "a", "1"), ("DELETED", "a", "1"), ("ADDED", "a", "8")],
    ),
    "the server is away for a while": (
        [
            status(503),
            reset,
            listing(5, thing("a", 1)),
            status(500),
            status(429),
            lines(event("MODIFIED", thing("a", 6))),
        ],
        [("ADDED", "a", "1"), ("MODIFIED", "a", "6")],
    ),
}


@pytest.mark.parts
@pytest.mark.parametrize("name", CASES)
def test_what_is_told(name, client, faulty):
    script, expected = CASES[name]
    faulty.script = list(script)
    faulty.otherwise = lines()
    assert told(client, timeout_s=60) == expected


@pytest.mark.parts
def test_it_goes_on_from_the_last_version_it_saw(client, faulty):
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "77"}})
    faulty.script = [listing(5), lines(event("ADDED", thing("a", 6)), bookmark, then="cut")]
    faulty.otherwise = lines()
    told(client, timeout_s=10)
    resumed = [path for _, path in faulty.seen if "watch=true" in path]
    assert "resourceVersion=5" in resumed[0]
    assert all("resourceVersion=77" in path for path in resumed[1:])
    assert len(resumed) > 1


@pytest.mark.parts
def test_what_may_not_be_watched_is_said_at_once(client, faulty, clock):
    faulty.otherwise = status(403, "Forbidden")
    with pytest.raises(errors.Rejected):
        told(client, timeout_s=60)
    assert clock.elapsed == 0


@pytest.mark.parts
def test_what_expires_again_and_again_is_not_asked_without_a_pause(client, faulty, clock):
    """Without one this is a stream of listings, of every object there is, from as many clients as watch."""

    def choose(method, path):
        if len(faulty.seen) > 100:
            return status(403, "Forbidden", "asked too often")
        return status(410, "Expired") if "watch=true" in path else listing(5, thing("a", 1))

    faulty.choose = choose
    assert told(client, timeout_s=60) == [("ADDED", "a", "1")]
    assert clock.elapsed >= 60
    listed = [number for number, (_, path) in enumerate(faulty.seen) if "watch=true" not in path]
    assert listed[:2] == [0, 2], "the first time it is listed again at once"


@pytest.mark.parts
def test_a_server_that_stays_away_is_an_error_at_the_end(client, faulty, clock):
    faulty.otherwise = status(503)
    with pytest.raises(errors.Unavailable):
        told(client, timeout_s=60)
    assert 50 < clock.elapsed < 70


@pytest.mark.parts
def test_a_wait_without_a_server_ends_with_the_reason(client, faulty):
    faulty.otherwise = status(503, message="etcd is away")
    with pytest.raises(errors.DeadlineExceeded, match="etcd is away"):
        client.wait(Kind.CONFIG_MAP, "a", bool, timeout_s=60, what="waiting for a")


@pytest.mark.parts
def test_a_wait_for_a_server_that_says_nothing_ends(faulty, tmp_path):
    faulty.otherwise = hang
    config = faulty.kubeconfig(tmp_path / "config")
    with Cluster.connect(kubeconfig=config, timeout_s=600) as client, pytest.raises(errors.DeadlineExceeded) as caught:
        client.wait(Kind.CONFIG_MAP, "a", bool, timeout_s=1, what="waiting for a")
    assert "no answer in time" in caught.value.state


@pytest.mark.parts
def test_what_the_question_raises_ends_the_wait(client, faulty):
    faulty.script = [listing(5, thing("a", 1))]

    def until(found):
        raise errors.InputError("it failed")

    with pytest.raises(errors.InputError, match="it failed"):
        client.wait(Kind.CONFIG_MAP, "a", until, timeout_s=60, what="waiting for a")


UIDS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 3), max_size=6)


@pytest.mark.rules
@given(UIDS, UIDS)
def test_changes_lead_from_what_was_told_to_what_is(before, after):
    known = {uid: thing(uid, version) for uid, version in before.items()}
    listed = [thing(uid, version) for uid, version in after.items()]
    now = dict(known)
    for change in changes(known, listed):
        if change.type == "DELETED":
            now.pop(change.uid)
        else:
            assert (change.type == "ADDED") == (change.uid not in known)
            now[change.uid] = change.object
    assert now == {each["metadata"]["uid"]: each for each in listed}


@pytest.mark.cluster
def test_no_change_is_missed_while_connections_break(shaky, cluster):
    """A real server; the connection is cut again and again while objects come, change and go."""
    proxy, client = shaky
    seen, latest, ended = [], {}, threading.Event()

    def read():
        for change in client.watch(Kind.CONFIG_MAP, selector="of=storm", timeout_s=60):
            name = change.object["metadata"]["name"]
            seen.append((change.type, name, change.object["metadata"]["resourceVersion"]))
            if change.type == "DELETED":
                latest.pop(name, None)
            else:
                latest[name] = change.object["data"]["n"]
            if "zz-last" in latest:
                break
        ended.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def watches():
        return sum("watch=true" in path for _, path in proxy.seen)

    expected = {}
    for step in range(60):
        name = f"storm-{step % 7}"
        if step % 5 == 4:
            cluster.delete(Kind.CONFIG_MAP, name)
            expected.pop(name, None)
        else:
            cluster.apply(_config_map(name, step))
            expected[name] = str(step)
        if step % 12 == 0:
            before = watches()
            proxy.cut()
            settled(lambda before=before: watches() > before)
        elif step % 4 == 0:
            proxy.cut()
    cluster.apply(_config_map("zz-last", 0))
    settled(ended.is_set)
    assert latest == expected | {"zz-last": "0"}
    assert len(seen) == len(set(seen))


def _config_map(name, step):
    metadata = {"name": name, "labels": {"of": "storm"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"n": str(step)}}
