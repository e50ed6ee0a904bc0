"""Blobs to and from a real registry: whole, in chunks, continued, and refused."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import tracemalloc

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import InputError, IntegrityError, NotFound, Rejected, Unavailable
from cloudedge.hub.core._oci import Descriptor, Digest, Manifest, digest_of, verified
from cloudedge.hub.registry import _upload as _registry_upload
from cloudedge.hub.registry._registry_hub import RegistryHub, RegistrySettings
from tests.faults import proves_fault
from tests.hub.registry.servers import Answer, Server, push, reader, registry, times

pytestmark = pytest.mark.parts

MIB = 1024 * 1024
BIG = random.Random(7).randbytes(20 * MIB + 17)


def blob_of(data: bytes) -> Descriptor:
    return Descriptor.of(data, "application/octet-stream")


def write(hub, data: bytes, blob: Descriptor | None = None) -> int:
    """Write a blob and return the sum of what progress was told."""
    told: list[int] = []
    hub.write_blob("ctr", blob or blob_of(data), reader(data), told.append)
    assert all(n > 0 for n in told)
    return sum(told)


@pytest.mark.parametrize("size", [0, 1, 5000, 4 * MIB, 4 * MIB + 1, 8 * MIB, 16 * MIB, 20 * MIB + 17])
def test_round_trip(hub, size):
    data = BIG[:size]
    blob = blob_of(data)
    assert not hub.has_blob("ctr", blob)
    assert write(hub, data) == size
    assert hub.has_blob("ctr", blob)
    assert b"".join(verified(hub.read_blob("ctr", blob), blob, "here")) == data
    assert b"".join(hub.read_blob("ctr", blob, size // 2)) == data[size // 2 :]
    assert b"".join(hub.read_blob("ctr", blob, size)) == b""


def test_second_write_moves_nothing(proxied, proxy, tmp_path):
    write(proxied, BIG)
    assert proxy.sent("PATCH") == len(BIG)
    assert proxy.count("PATCH") == 3
    before = len(proxy.seen)
    assert write(proxied, BIG) == len(BIG)
    assert [seen.method for seen in proxy.seen[before:]] == ["HEAD"]
    assert list((tmp_path / "state").iterdir()) == []


def test_a_blob_that_is_not_there(hub):
    with pytest.raises(NotFound, match="reading blob"):
        list(hub.read_blob("ctr", blob_of(b"never pushed")))


def test_a_registry_that_ignores_ranges(proxied, proxy):
    write(proxied, BIG[: 5 * MIB])
    proxy.rule = lambda seen: seen.headers.pop("Range", None) and None
    assert b"".join(proxied.read_blob("ctr", blob_of(BIG[: 5 * MIB]), 3 * MIB + 1)) == BIG[3 * MIB + 1 : 5 * MIB]


def test_a_registry_that_answers_another_range(proxied, proxy):
    write(proxied, b"0123456789")
    proxy.rule = lambda seen: (
        Answer(206, {"Content-Range": "bytes 4-9/10"}, b"456789") if "Range" in seen.headers else None
    )
    with pytest.raises(IntegrityError, match="requested from byte 5"):
        list(proxied.read_blob("ctr", blob_of(b"0123456789"), 5))


def test_more_bytes_than_the_blob_has(proxied, proxy):
    proxy.rule = lambda seen: Answer(200, {}, b"longer than said")
    with pytest.raises(IntegrityError, match="more than the declared 4 bytes"):
        list(proxied.read_blob("ctr", blob_of(b"long")))


def test_a_download_goes_on_where_the_connection_broke(proxied, proxy):
    data = BIG[: 6 * MIB]
    write(proxied, data)

    def break_first(seen, answer):
        if seen.method == "GET" and "Range" not in seen.headers:
            answer.break_after = 2 * MIB + 5
        return answer

    proxy.after = break_first
    proxied._session.clock = ManualClock()
    assert b"".join(proxied.read_blob("ctr", blob_of(data))) == data
    (resumed,) = [seen for seen in proxy.seen if "Range" in seen.headers]
    assert 0 < int(resumed.headers["Range"].removeprefix("bytes=").rstrip("-")) <= 2 * MIB + 5


@pytest.mark.parametrize("size", [1000, 20 * MIB])
def test_a_flipped_source_is_refused_and_leaves_nothing(proxied, proxy, tmp_path, size):
    data = bytearray(BIG[:size])
    blob = blob_of(bytes(data))
    data[size // 2] ^= 1
    with pytest.raises(IntegrityError, match="damaged"):
        write(proxied, bytes(data), blob)
    assert not proxied.has_blob("ctr", blob)
    assert proxy.count("PUT") == 0
    assert not (tmp_path / "state").exists() or list((tmp_path / "state").iterdir()) == []
    write(proxied, BIG[:size], blob)  # the right bytes are not hindered by the wrong ones
    assert proxied.has_blob("ctr", blob)


@proves_fault(
    area="bundles and hubs",
    fault="bytes change on their way to a registry",
    happens="they are refused, and no tag moves",
    cure="the same command again",
)
@pytest.mark.parametrize("size", [1000, 20 * MIB])
def test_bytes_that_change_on_the_way_are_refused_by_the_registry(proxied, proxy, size):
    def flip(seen):
        if len(seen.body) > 100:
            seen.body = bytes([seen.body[0] ^ 1]) + seen.body[1:]

    proxy.rule = flip
    with pytest.raises(IntegrityError, match="DIGEST_INVALID"):
        write(proxied, BIG[:size])


KILLED = """
import os, sys
from cloudedge.hub.core._oci import Descriptor
from cloudedge.hub.registry._registry_hub import RegistryHub, RegistrySettings
from pathlib import Path
url, state, source, stop = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
data = open(source, "rb").read()
def read(start):
    for at in range(start, len(data), 1 << 20):
        if at >= stop:
            print("stuck", flush=True)
            sys.stdin.read()  # until killed
        yield data[at : at + (1 << 20)]
hub = RegistryHub(url, RegistrySettings(state_dir=state))
hub.write_blob("ctr", Descriptor.of(data, "application/octet-stream"), read, lambda n: None)
"""


def start_and_kill(url: str, tmp_path, stop: int) -> None:
    (tmp_path / "blob").write_bytes(BIG)
    command = [sys.executable, "-c", KILLED, url, tmp_path / "state", tmp_path / "blob", str(stop)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout.readline() == b"stuck\n"
        finally:
            child.send_signal(signal.SIGKILL)


def test_after_kill_9_only_the_rest_is_sent(proxied, proxy, tmp_path):
    start_and_kill(proxied.url, tmp_path, stop=17 * MIB)
    assert proxy.sent("PATCH") == 16 * MIB
    (note,) = (tmp_path / "state").iterdir()
    assert note.stat().st_mode & 0o777 == 0o600
    proxy.seen.clear()
    assert write(proxied, BIG) == len(BIG)
    assert proxy.sent("PATCH") == len(BIG) - 16 * MIB
    assert proxy.count("POST") == 0
    assert not note.exists()
    assert b"".join(verified(proxied.read_blob("ctr", blob_of(BIG)), blob_of(BIG), "here")) == BIG


def test_a_resumed_source_that_flipped_where_the_registry_has_it_is_refused(proxied, proxy, tmp_path):
    start_and_kill(proxied.url, tmp_path, stop=17 * MIB)
    flipped = bytes([BIG[0] ^ 1]) + BIG[1:]
    with pytest.raises(IntegrityError, match="damaged"):
        write(proxied, flipped, blob_of(BIG))
    assert not proxied.has_blob("ctr", blob_of(BIG))


def test_a_session_the_registry_forgot_starts_again(tmp_path):
    for generation in "ab":  # another secret, as after a restart without one: old sessions mean nothing
        with registry(tmp_path / "reg", http={"secret": generation}) as host, Server(host) as proxy:
            url = f"oci://{proxy.host}/models"
            if generation == "a":
                start_and_kill(url, tmp_path, stop=17 * MIB)
                note = next((tmp_path / "state").iterdir())
                old = proxy.host
            else:
                text = note.read_text().replace(old, proxy.host)
                key = f"{proxy.host}/models/ctr@{digest_of(BIG)}"
                hub = RegistryHub(url, RegistrySettings(state_dir=tmp_path / "state"))
                upload = _registry_upload.Upload(hub._repository("ctr"), blob_of(BIG), tmp_path / "state")
                assert upload._note._key == key
                upload._note._path.write_text(text)
                assert write(hub, BIG) == len(BIG)
                assert [s.method for s in proxy.seen[:3]] == ["HEAD", "GET", "POST"]
                assert hub.has_blob("ctr", blob_of(BIG))


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"[]", b'{"upload": 3}', b'{"upload": "x", "location": 1, "chunk_size": "z"}']
)
def test_a_note_that_makes_no_sense_is_ignored(proxied, proxy, tmp_path, junk):
    start_and_kill(proxied.url, tmp_path, stop=9 * MIB)
    (note,) = (tmp_path / "state").iterdir()
    note.write_bytes(junk)
    assert write(proxied, BIG) == len(BIG)
    assert proxied.has_blob("ctr", blob_of(BIG))


def test_a_chunk_that_broke_off_is_continued_where_the_registry_says(tmp_path):
    """By the specification; docker-registry 2 gives such a session up, see the test after this one."""
    held = bytearray()
    broken = []

    def spec_registry(seen):
        if seen.method in ("HEAD", "POST"):
            return Answer(404) if seen.method == "HEAD" else Answer(202, {"Location": "/v2/up/1"})
        if seen.method == "PATCH":
            start, end = map(int, seen.headers["Content-Range"].split("-"))
            if start != len(held):
                return Answer(416, {"Location": "/v2/up/1", "Range": f"0-{len(held) - 1}"})
            if not broken:
                broken.append(True)
                held.extend(seen.body[: 3 * MIB])  # took a part, then went away
                return Answer(503)
            held.extend(seen.body)
            return Answer(202, {"Location": "/v2/up/1", "Range": f"0-{end}"})
        if seen.method == "GET":
            return Answer(204, {"Location": "/v2/up/1", "Range": f"0-{len(held) - 1}"})
        assert seen.path == f"/v2/up/1?digest={digest_of(bytes(held))}"
        return Answer(201)

    with Server(rule=spec_registry) as server:
        hub = RegistryHub(f"oci://{server.host}/models")
        assert write(hub, BIG) == len(BIG)
        assert bytes(held) == BIG
        assert server.sent("PATCH") == len(BIG) + 5 * MIB  # the first chunk but for what was kept of it


class ByTheBook:
    """A registry that takes chunks as the specification says, and answers them as told."""

    def __init__(self, answer):
        self.held, self.answer = bytearray(), answer

    def __call__(self, seen):
        where = {"Location": "/v2/up/1", "Range": f"0-{max(len(self.held) - 1, 0)}"}
        if seen.method == "PATCH":
            failure = self.answer(seen, self.held)
            if failure:
                return failure
            start = int(seen.headers["Content-Range"].split("-")[0])
            assert start == len(self.held)
            self.held.extend(seen.body)
            where["Range"] = f"0-{len(self.held) - 1}"
        return Answer({"HEAD": 404, "POST": 202, "PATCH": 202, "GET": 204, "PUT": 201}[seen.method], where)


def test_an_upload_survives_as_many_breaks_as_it_has_chunks():
    def take_it_and_fail(seen, held):
        held.extend(seen.body[: 3 * MIB])
        return Answer(503)

    registry = ByTheBook(take_it_and_fail)
    with Server(rule=registry) as server:
        hub = RegistryHub(f"oci://{server.host}/models", clock=ManualClock())
        assert write(hub, BIG) == len(BIG)
        assert bytes(registry.held) == BIG
        assert server.count("PATCH") == 3 + 3 + 2
        assert server.count("POST") == 1


@pytest.mark.parametrize("status", [503, 416])
def test_an_upload_that_does_not_get_on_ends(status):
    registry = ByTheBook(lambda seen, held: Answer(status) if status == 416 or len(held) >= 8 * MIB else None)
    clock = ManualClock()
    with Server(rule=registry) as server:
        hub = RegistryHub(f"oci://{server.host}/models", clock=clock)
        with pytest.raises(Unavailable):
            write(hub, BIG)
        assert server.count("PATCH") <= 5
        assert clock.elapsed > 1


def test_docker_registry_2_gives_a_broken_chunk_up_and_the_upload_starts_again(proxied, proxy):
    broken = []

    def half(seen):
        if seen.method == "PATCH" and not broken:
            broken.append(True)
            del seen.headers["Content-Length"]
            seen.body = seen.body[: 3 * MIB]
            assert proxy.pass_on(seen).status == 202  # the registry took a part; the client hears nothing of it
            return Answer(502)
        return None

    proxy.rule = half
    assert write(proxied, BIG) == len(BIG)
    assert proxied.has_blob("ctr", blob_of(BIG))
    assert proxy.count("POST") == 2


def test_the_last_put_that_was_done_after_all_is_not_an_error(proxied, proxy):
    def after(seen, answer):
        return Answer(504) if seen.method == "PUT" and "digest=" in seen.path else answer

    proxy.after = after
    proxied._session.clock = ManualClock()
    assert write(proxied, b"small") == 5
    assert write(proxied, BIG) == len(BIG)
    assert proxied.has_blob("ctr", blob_of(BIG))


def test_the_registry_may_want_larger_chunks(proxied, proxy):
    def after(seen, answer):
        if seen.method == "POST":
            answer.headers["OCI-Chunk-Min-Length"] = str(12 * MIB)
        return answer

    proxy.after = after
    write(proxied, BIG)
    assert [seen.received for seen in proxy.seen if seen.method == "PATCH"] == [12 * MIB, 8 * MIB + 17]


def test_the_registry_may_not_want_absurd_chunks(proxied, proxy, monkeypatch):
    monkeypatch.setattr(_registry_upload, "CHUNK_LIMIT", 16 * MIB)
    proxy.rule = lambda seen: (
        Answer(202, {"Location": "/x", "OCI-Chunk-Min-Length": str(2**40)}) if seen.method == "POST" else None
    )
    with pytest.raises(Rejected, match=str(2**40)):
        write(proxied, BIG)


def test_relative_locations(proxied, proxy):
    def after(seen, answer):
        if "location" in answer.headers:
            answer.headers["location"] = answer.headers["location"].removeprefix(f"http://{proxy.host}")
            assert answer.headers["location"].startswith("/")
        return answer

    proxy.after = after
    write(proxied, BIG)
    assert proxied.has_blob("ctr", blob_of(BIG))


def test_locations_on_another_host_get_no_credentials(registry_host, prefix):
    """The session lives elsewhere, as with registries that hand uploads to an object store."""
    with Server(registry_host) as front, Server(registry_host) as store:
        front.rule = times(
            10**6,
            Answer(401, {"WWW-Authenticate": 'Basic realm="x"'}),
            lambda s: "Authorization" not in s.headers,
        )

        def after(seen, answer):
            if "location" in answer.headers:
                answer.headers["location"] = answer.headers["location"].replace(front.host, store.host)
            return answer

        front.after = after
        hub = RegistryHub(f"oci://{front.host}/{prefix}", RegistrySettings("ada", "secret"))
        write(hub, BIG)
        write(hub, b"small")
        assert hub.has_blob("ctr", blob_of(BIG))
        assert front.count("PATCH") == 0
        assert store.sent("PATCH") == len(BIG)
        assert all("Authorization" not in seen.headers for seen in store.seen)
        assert any("Authorization" in seen.headers for seen in front.seen)


def test_memory_is_bounded(hub):
    blob = blob_of(BIG)
    read = reader(BIG)
    tracemalloc.start()
    try:
        hub.write_blob("ctr", blob, read, lambda n: None)
        for _ in verified(hub.read_blob("ctr", blob), blob, "here"):
            pass
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_four_threads_share_a_hub(hub):
    pieces = [BIG[i * 5 * MIB : (i + 1) * 5 * MIB] for i in range(4)]
    failures = []

    def work(data):
        try:
            write(hub, data)
            assert b"".join(hub.read_blob("ctr", blob_of(data))) == data
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(piece,)) for piece in pieces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_manifests_are_kept_byte_for_byte(hub):
    manifest = push(hub, "ctr", b"one", b"two")
    value = json.loads(manifest.raw)
    value["fromTheFuture"] = {"ü": [1, 2]}
    odd = Manifest.parse(json.dumps(value, indent=3).encode())
    hub.write_manifest("ctr", odd)
    for each in (manifest, odd):
        found = hub.read_manifest("ctr", each.digest)
        assert found.raw == each.raw
        assert found == each
    assert hub.tags("ctr") == []


def test_a_manifest_that_is_not_there(hub):
    with pytest.raises(NotFound, match="has no manifest"):
        hub.read_manifest("ctr", Digest("sha256:" + "0" * 64))


def test_a_manifest_whose_blobs_are_missing_is_refused(hub):
    manifest = Manifest.build(artifact_type="", config=blob_of(b"missing"), layers=[], annotations={})
    with pytest.raises(NotFound, match="MANIFEST_BLOB_UNKNOWN"):
        hub.write_manifest("ctr", manifest)


def test_other_bytes_than_the_manifest_are_refused(proxied, proxy):
    manifest = push(proxied, "ctr", b"one")
    proxy.after = lambda seen, answer: Answer(200, {}, answer.body + b" ") if "/manifests/" in seen.path else answer
    with pytest.raises(IntegrityError, match="with other bytes"):
        proxied.read_manifest("ctr", manifest.digest)


@pytest.mark.parametrize("declared", [True, False])
def test_an_oversize_manifest_is_refused_before_it_is_held(proxied, proxy, declared):
    body = b" " * (5 * MIB)
    proxy.rule = lambda seen: Answer(200, {} if declared else {"Connection": "close"}, body)
    with pytest.raises(InputError, match="over the limit of 4194304 bytes"):
        proxied.read_manifest("ctr", Digest("sha256:" + "0" * 64))


def test_an_upload_that_is_lost_again_and_again_is_given_up(proxied, proxy):
    proxy.rule = lambda seen: Answer(404) if seen.method == "PATCH" else None
    with pytest.raises(Unavailable, match="repeatedly lost the upload"):
        write(proxied, BIG)
