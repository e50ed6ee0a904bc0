"""A download against answers that are played: ranges, tags, lengths, sizes, stops and deadlines."""

import json
from contextlib import contextmanager

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import DeadlineExceeded, IntegrityError, NotFound, Rejected, Unavailable
from cloudedge.io import Download, Throttle, digest_chunks, digest_file

pytestmark = pytest.mark.rules

CONTENT = bytes(range(256)) * 40


class Played:
    """Answers with what is left of the content, `step` bytes at a time, then breaks off."""

    def __init__(self, content=CONTENT, step=1 << 20, tag='"1"', **changes):
        self.content, self.step, self.tag, self.changes, self.asked = content, step, tag, changes, []

    @contextmanager
    def __call__(self, headers, timeout_s):
        assert 0 < timeout_s <= 30
        self.asked.append(dict(headers))
        at = int(headers.get("Range", "bytes=0-")[6:-1])
        at = 0 if headers.get("If-Range", self.tag) != self.tag else at
        self.status = self.changes.get("status", 206 if at else 200)
        self.headers = {"Content-Length": str(len(self.content) - at), "ETag": self.tag}
        if at:
            self.headers["Content-Range"] = f"bytes {at}-{len(self.content) - 1}/{len(self.content)}"
        self.headers |= self.changes.get("headers", {})
        self.rest = self.content[at:]
        yield self

    def chunks(self):
        yield self.rest[: self.step]
        if len(self.rest) > self.step:
            raise Unavailable("cut")


def download(tmp_path, played, **options):
    return Download("http://host/f", tmp_path / "f.part", played, ManualClock(), **options)


def test_a_break_is_continued_with_a_range_and_the_tag(tmp_path):
    played = Played(step=3000)
    coming = download(tmp_path, played)
    assert coming.run() == len(CONTENT)
    assert coming.part.read_bytes() == CONTENT
    assert [asked.get("Range") for asked in played.asked] == [None, "bytes=3000-", "bytes=6000-", "bytes=9000-"]
    assert played.asked[1]["If-Range"] == '"1"'


def test_without_a_tag_and_a_digest_a_break_begins_anew_and_ends_after_some_attempts(tmp_path):
    played = Played(step=3000, tag="")
    with pytest.raises(Unavailable, match="6 times without a byte: cut"):
        download(tmp_path, played).run()
    assert all("Range" not in asked for asked in played.asked)
    assert download(tmp_path, Played(step=3000, tag=""), sure=True).run() == len(CONTENT) - 3000


def test_another_process_continues_the_same_content_and_no_other(tmp_path):
    memory = {"origin": tmp_path / "f.from", "source": "http://host/f?secret"}
    with pytest.raises(Unavailable):
        download(tmp_path, Played(step=3000), attempts=1, **memory).run()
    assert json.loads(memory["origin"].read_text()) == {"url": "http://host/f?secret", "tag": '"1"'}
    played = Played()
    assert download(tmp_path, played, **memory).run() == len(CONTENT) - 3000
    changed = Played(CONTENT[::-1], tag='"2"')
    (tmp_path / "f.part").write_bytes(CONTENT[:3000])
    coming = download(tmp_path, changed, **memory)
    assert coming.run() == len(CONTENT)
    assert changed.asked[0]["If-Range"] == '"1"'
    assert coming.part.read_bytes() == CONTENT[::-1]
    moved = Played()
    download(tmp_path, moved, **(memory | {"source": "http://other/f"})).run()
    assert "Range" not in moved.asked[0]


@pytest.mark.parametrize("span", ["bytes 2999-10239/10240", "bytes 30000-10239/10240", "", "3000-"])
def test_a_range_that_was_not_asked_for_is_refused(tmp_path, span):
    (tmp_path / "f.part").write_bytes(CONTENT[:3000])
    with pytest.raises(Unavailable, match="asked for the bytes from 3000 on"):
        download(tmp_path, Played(headers={"Content-Range": span}), sure=True, attempts=1).run()
    assert (tmp_path / "f.part").read_bytes() == CONTENT[:3000]


def test_a_server_that_has_less_is_begun_anew(tmp_path):
    (tmp_path / "f.part").write_bytes(CONTENT + b"more")
    played = Played(status=416, headers={"Content-Range": f"bytes */{len(CONTENT)}"})

    class Clock(ManualClock):
        def sleep(self, seconds):
            played.changes = {}

    coming = Download("http://host/f", tmp_path / "f.part", played, Clock(), sure=True)
    assert coming.run() == len(CONTENT)
    whole = Played(status=416, headers={"Content-Range": f"bytes */{len(CONTENT)}"})
    assert download(tmp_path, whole, sure=True).run() == 0


@pytest.mark.parametrize(
    ("status", "kind", "asked"),
    [
        (404, NotFound, 1),
        (410, NotFound, 1),
        (403, Rejected, 1),
        (400, Rejected, 1),
        (429, Unavailable, 6),
        (503, Unavailable, 6),
    ],
)
def test_a_refusal_is_repeated_only_where_that_helps(tmp_path, status, kind, asked):
    played = Played(status=status)
    with pytest.raises(kind):
        download(tmp_path, played).run()
    assert len(played.asked) == asked


def test_another_size_is_refused_before_and_while_it_comes(tmp_path):
    for headers in ({}, {"Content-Length": ""}):
        with pytest.raises(IntegrityError, match="5000 were promised"):
            download(tmp_path, Played(headers=headers), size=5000).run()
        assert not (tmp_path / "f.part").exists()
    with pytest.raises(IntegrityError, match="5000 were promised"):
        download(tmp_path, Played(), most=5000).run()
    with pytest.raises(Rejected, match="does not say how long"):
        download(tmp_path, Played(headers={"Content-Length": ""})).run()
    with pytest.raises(Unavailable, match="ended after 10240 of 20000"):
        download(tmp_path, Played(headers={"Content-Length": ""}), size=20000, attempts=1).run()


def test_a_stop_and_a_deadline_keep_what_came(tmp_path):
    with pytest.raises(Unavailable, match="stopped"):
        download(tmp_path, Played(step=3000), stop=lambda: True).run()
    assert (tmp_path / "f.part").read_bytes() == CONTENT[:3000]
    clock = ManualClock()
    slow = Download("http://host/f", tmp_path / "f.part", Played(step=3000), clock, sure=True, deadline=0.9)
    slow.throttle = Throttle(3000, clock)
    with pytest.raises(DeadlineExceeded, match="bytes are kept"):
        slow.run()
    assert CONTENT.startswith((tmp_path / "f.part").read_bytes())
    assert (tmp_path / "f.part").stat().st_size > 3000


def test_digests_of_files_and_streams(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    both = digest_file(tmp_path / "f", md5=True)
    assert (both.size, both.md5) == (3, "900150983cd24fb0d6963f7d28e17f72")
    assert both.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_chunks([b"a", b"", b"bc"], md5=True) == both
    assert digest_chunks([b"a"], sha256=False) == digest_chunks([b"b"], sha256=False)
