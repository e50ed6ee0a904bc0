"""A layout hub in a directory: tags, history, races, and what other tools may have written."""

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound, StorageError
from cloudedge.hub import ANY, Descriptor, LocalHub, Manifest, current, digest_of
from cloudedge.hub.objects._directory import DirectoryStore
from tests.faults import proves_fault


def put_manifest(hub, note, name="ctr"):
    config = hub.write_bytes(b"{}", "application/vnd.oci.empty.v1+json")
    layer = hub.write_bytes(note.encode(), "text/plain")
    manifest = Manifest.build(artifact_type="x/y", config=config, layers=[layer], annotations={"note": note})
    hub.write_manifest(name, manifest)
    return manifest.descriptor


def move(hub, tag, target, **options):
    return hub.move_tag("ctr", tag, target, by=options.pop("by", "me"), at=options.pop("at", "t"), **options)


@pytest.mark.rules
def test_it_is_an_image_layout(hub):
    one = put_manifest(hub, "one")
    move(hub, "1", one)
    move(hub, "prod", one, by="ann", at="t1")
    root = hub.blob_path(one).parent.parent.parent
    assert json.loads((root / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((root / "index.json").read_text())
    assert index["schemaVersion"] == 2
    names = [d["annotations"]["org.opencontainers.image.ref.name"] for d in index["manifests"]]
    assert names == ["ctr:1", "ctr:prod"]
    assert all(d["digest"] == one.digest and d["mediaType"] == one.media_type for d in index["manifests"])


@pytest.mark.rules
def test_history_says_from_when_to_when_and_by_whom(hub):
    one, two = put_manifest(hub, "one"), put_manifest(hub, "two")
    move(hub, "prod", one, by="ann", at="t1")
    move(hub, "prod", two, by="bob", at="t2")
    move(hub, "prod", None, by="cid", at="t3")
    entries = LocalHub(hub.url).tags("ctr")
    assert [(e.target.digest, e.since, e.by, e.until, e.ended_by) for e in entries] == [
        (one.digest, "t1", "ann", "t2", "bob"),
        (two.digest, "t2", "bob", "t3", "cid"),
    ]
    assert hub.names() == ["ctr"]


@pytest.mark.rules
def test_what_other_tools_wrote_stays(hub):
    one, two = put_manifest(hub, "one"), put_manifest(hub, "two")
    move(hub, "1", one)
    path = hub.blob_path(one).parent.parent.parent / "index.json"
    index = json.loads(path.read_text())
    foreign = [
        {**two.to_json(), "annotations": {"org.opencontainers.image.ref.name": "ctr:theirs", "x": "y"}, "platform": {}},
        {**two.to_json(), "annotations": {"org.opencontainers.image.ref.name": "no-colon"}},
        {**two.to_json()},
    ]
    index["manifests"] += foreign
    index["annotations"] = {"kept": "yes"}
    path.write_text(json.dumps(index))
    assert current(hub.tags("ctr"), "theirs").target.digest == two.digest
    move(hub, "prod", one)
    after = json.loads(path.read_text())
    assert all(d in after["manifests"] for d in foreign)
    assert after["annotations"] == {"kept": "yes"}


@pytest.mark.rules
def test_nothing_is_tagged_that_is_not_there(hub):
    with pytest.raises(NotFound, match="no manifest"):
        move(hub, "prod", Descriptor.of(b"ghost", "m"))


@pytest.mark.rules
def test_a_damaged_manifest_or_index_is_said_to_be(hub):
    one = put_manifest(hub, "one")
    move(hub, "1", one)
    hub.blob_path(one).write_bytes(b"{}")
    with pytest.raises(IntegrityError, match="is damaged"):
        hub.read_manifest("ctr", one.digest)
    with pytest.raises(NotFound, match="has no manifest"):
        hub.read_manifest("ctr", digest_of(b"ghost"))
    root = hub.blob_path(Descriptor.of(b"{}", "")).parent.parent.parent
    for text in ("{nope", "[]", '{"manifests": 3}', '{"manifests": [3]}'):
        (root / "index.json").write_text(text)
        with pytest.raises(InputError, match=r"index\.json"):
            hub.tags("ctr")


def _mover(root, who, moves, start):
    hub = LocalHub(root)
    targets = [put_manifest(hub, f"{who}-{i}") for i in range(moves)]
    start.wait()
    for i, target in enumerate(targets):
        hub.move_tag("ctr", "prod", target, by=who, at=f"{i}")
        hub.move_tag("ctr", f"{who}-{i}", target, by=who, at=f"{i}")


@pytest.mark.parts
def test_racing_processes_lose_no_move(hub):
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(6)
    movers = [context.Process(target=_mover, args=(hub.url, f"p{n}", 5, start)) for n in range(6)]
    for process in movers:
        process.start()
    for process in movers:
        process.join(60)
        assert process.exitcode == 0
    entries = hub.tags("ctr")
    prod = [e for e in entries if e.tag == "prod"]
    assert len(prod) == 30
    assert sorted(e.seq for e in prod) == list(range(1, 31))
    assert {(e.by, e.since) for e in prod} == {(f"p{n}", f"{i}") for n in range(6) for i in range(5)}
    assert len({e.tag for e in entries}) == 31


@pytest.mark.rules
def test_compare_and_set(hub):
    one, two = put_manifest(hub, "one"), put_manifest(hub, "two")
    move(hub, "prod", one, expected=None)
    with pytest.raises(Conflict, match="another process moved it"):
        move(hub, "prod", two, expected=two.digest)
    assert move(hub, "prod", two, expected=one.digest).target.digest == two.digest
    assert move(hub, "prod", one, expected=ANY).seq == 3


@pytest.mark.rules
def test_locks_exclude_and_share(tmp_path):
    store = DirectoryStore(tmp_path)
    held = store.lock("x", shared=True)
    with held, store.lock("x", shared=True, wait_s=0):
        refused = store.lock("x", wait_s=0.05)
        with pytest.raises(Conflict, match=f"the lock x is held by pid {os.getpid()}"):
            refused.__enter__()
    with store.lock("x"), store.lock("y", wait_s=0):
        refused = store.lock("x", shared=True, wait_s=0)
        with pytest.raises(Conflict):
            refused.__enter__()


@pytest.mark.parts
def test_a_killed_holder_loses_its_lock(tmp_path):
    code = """
import sys, time
from cloudedge.hub.objects._directory import DirectoryStore
with DirectoryStore(sys.argv[1]).lock("x"):
    print(flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE)
    holder.stdout.readline()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with DirectoryStore(tmp_path).lock("x", wait_s=0):
        pass


# --- uploads -----------------------------------------------------------------------------------------------


def upload(store, data, read=None, key="blobs/sha256/x"):
    settled = []
    blob = Descriptor.of(data, "m")
    store.upload(key, blob, read or (lambda start: iter([data[start:]])), settled.append)
    return sum(settled)


@proves_fault(
    area="bundles and hubs",
    fault="an upload is cut off",
    happens="nothing that was there changes, and what arrived is kept",
    cure="the same command again",
)
@pytest.mark.rules
def test_an_upload_continues_where_it_stopped(tmp_path):
    store, data, reads = DirectoryStore(tmp_path), os.urandom(5_000_000), []

    def breaks(start):
        reads.append(start)
        yield data[start : start + 2_000_000]
        raise ConnectionError

    for _ in range(2):
        with pytest.raises((ConnectionError, StorageError)):
            upload(store, data, breaks)
    assert upload(store, data, lambda start: reads.append(start) or iter([data[start:]])) == 5_000_000
    assert reads == [0, 2_000_000, 4_000_000]
    assert b"".join(store.get("blobs/sha256/x")) == data
    assert list((tmp_path / "uploads").iterdir()) == []


@pytest.mark.rules
def test_a_damaged_part_is_thrown_away_and_the_next_try_is_whole(tmp_path):
    store, data = DirectoryStore(tmp_path), os.urandom(3_000_000)
    (tmp_path / "uploads").mkdir()
    for leftover in (b"garbage", data + b"too long"):
        (tmp_path / "uploads" / "x.part").write_bytes(leftover)
        try:
            upload(store, data)
        except IntegrityError:
            upload(store, data)
        assert b"".join(store.get("blobs/sha256/x")) == data
        store.delete("blobs/sha256/x")


@pytest.mark.rules
@pytest.mark.parametrize("wrong", [b"", b"short", b"x" * 100], ids=["empty", "short", "long"])
def test_wrong_content_never_becomes_visible(tmp_path, wrong):
    store = DirectoryStore(tmp_path)
    with pytest.raises(IntegrityError):
        upload(store, b"the right thing", lambda start: iter([wrong]))
    assert store.head("blobs/sha256/x") is None
    assert list((tmp_path / "uploads").iterdir()) == []


@pytest.mark.rules
def test_many_writers_of_one_blob_agree(tmp_path):
    store, data = DirectoryStore(tmp_path), os.urandom(2_000_000)

    def write():
        return upload(store, data)

    with ThreadPoolExecutor(8) as pool:
        assert [f.result() for f in [pool.submit(write) for _ in range(8)]] == [len(data)] * 8
    assert b"".join(store.get("blobs/sha256/x")) == data
    assert list((tmp_path / "uploads").iterdir()) == []


# --- disks that are full or read-only ----------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


@proves_fault(
    area="bundles and hubs",
    fault="the disk of the local hub is full",
    happens="the command fails, and nothing that was there is lost",
    cure="make room, then the same command again",
)
@pytest.mark.parts
def test_a_full_disk_is_said_and_nothing_is_lost(small_disk):
    hub = LocalHub(small_disk / "hub")
    move(hub, "1", put_manifest(hub, "one"))
    large = Descriptor.of(bytes(4 << 20), "m")
    with pytest.raises(StorageError, match="no space is left") as caught:
        hub.write_blob("ctr", large, lambda start: iter([bytes(4 << 20)]), lambda _: None)
    assert caught.value.errno == errno.ENOSPC
    assert "Free space" in str(caught.value)
    for part in (small_disk / "hub/uploads").iterdir():
        part.unlink()
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises(StorageError, match="no space is left"):
        put_manifest(hub, "x" * 8192)
    (small_disk / "filler").unlink()
    assert [e.tag for e in LocalHub(small_disk / "hub").tags("ctr")] == ["1"]
    move(hub, "2", put_manifest(hub, "two"))


@pytest.mark.parts
def test_a_read_only_hub_can_be_read_and_says_so_when_written(small_disk):
    hub = LocalHub(small_disk / "hub")
    one = put_manifest(hub, "one")
    move(hub, "1", one)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert hub.read_manifest("ctr", hub.tags("ctr")[0].target.digest).annotations["note"] == "one"
    with pytest.raises(StorageError, match="read-only"):
        move(hub, "prod", one)
    with pytest.raises(StorageError, match="read-only"):
        put_manifest(hub, "two")
