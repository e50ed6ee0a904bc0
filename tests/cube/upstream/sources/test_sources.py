"""Donefiles wherever they lie, what they say, and the rows they point to."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cloudedge import seqfile
from cloudedge.clock import SystemClock
from cloudedge.config import HubConfig
from cloudedge.cube import DoneEntry, PartStore, append_donefile
from cloudedge.cube.builder._merge_seqfiles import merge_rows
from cloudedge.cube.delivery import ArtifactCache, TableVersion
from cloudedge.cube.formats._donefile import parse_donefile
from cloudedge.cube.server._load_delivered import load_artifact
from cloudedge.cube.upstream.sources._bucket_files import BucketFiles
from cloudedge.cube.upstream.sources._donefile_source import Choice, Donefiles, DonefileSource, Work, choose
from cloudedge.cube.upstream.sources._http_files import links
from cloudedge.cube.upstream.sources._remote_files import ListedFiles, RemoteFile, open_remote_files
from cloudedge.errors import ConfigError, InputError, NotFound, Unavailable
from cloudedge.hub.objects._bos import BosSettings, BosStore
from tests.cube.upstream.tables import table, write_rows
from tests.hub.objects.bos_double import BosDouble

RCLONE = Path(sys.executable).with_name("rclone")
RCLONE = str(RCLONE) if RCLONE.exists() else shutil.which("rclone")


def base(number: int, path: str = "/b") -> DoneEntry:
    return DoneEntry(number, number, path)


def patch(number: int, key: int, path: str = "/p") -> DoneEntry:
    return DoneEntry(number, key, path)


B1, B2, P11, P12, P21 = base(10), base(20), patch(11, 10), patch(12, 10), patch(21, 20)


@pytest.mark.rules
@pytest.mark.parametrize(
    ("bases", "patches", "delivered", "expected"),
    [
        pytest.param([], [], None, None, id="nothing yet"),
        pytest.param([B1], [], None, "10", id="a first base"),
        pytest.param([B1, B2], [P11], None, "20", id="the newest base"),
        pytest.param([B2, B1], [], None, "20", id="by id, not by place"),
        pytest.param([B1], [P12, P11], None, "10_12", id="with all its patches"),
        pytest.param([B1], [P11, P12], Work(B1, (P11,)), "10_12", id="one more patch"),
        pytest.param([B1], [P11], Work(B1, (P11,)), None, id="nothing new"),
        pytest.param([B1, B2], [P11, P21], Work(B1, (P11,)), "20_21", id="a new base with its patch"),
        pytest.param([B1], [], Work(B2), None, id="nothing below what was delivered"),
        pytest.param([], [P12], Work(B1, (P11,)), "10_12", id="lines that were cut off are remembered"),
        pytest.param([], [], Work(B1, (P11,)), None, id="both files were emptied"),
    ],
)
def test_what_is_delivered_next(bases, patches, delivered, expected):
    choice = choose(Donefiles(tuple(bases), tuple(patches)), patches=True, delivered=delivered)
    assert (choice.work and choice.work.name) == expected
    assert choice.problems == ()
    if choice.work:
        assert Work.from_json(choice.work.as_json()) == choice.work


@pytest.mark.rules
def test_patches_are_left_out_where_only_bases_are_wanted():
    assert choose(Donefiles((B1,), (P11,)), patches=False, delivered=None) == Choice(Work(B1))
    assert choose(Donefiles((B1,), (P11, P12)), patches=False, delivered=Work(B1, (P11,))).work is None


@pytest.mark.rules
@pytest.mark.parametrize(
    ("bases", "patches", "delivered", "work", "problem"),
    [
        (
            [B1, base(10, "/other")],
            [],
            None,
            None,
            "/d/base.txt: id 10 stands for /b and for /other; give one a new id",
        ),
        ([B1, base(20, "/x"), base(20, "/y")], [], None, "10", "id 20 stands for"),
        ([B1, B1], [], None, "10", None),
        ([B1], [P21], None, "10", "/d/patch.txt: patch 21 is for base 20, which base.txt does not have"),
        ([DoneEntry(10, 9, "/b")], [], None, "10", "base 10 has the key 9"),
        ([B1], [P11, P12], Work(B1, (P12,)), None, "/d/patch.txt: patch 11 came after 10_12 was delivered"),
        ([B1], [P11, P12, patch(13, 10)], Work(B1, (P12,)), "10_13", None),
        ([base(10, "/other")], [], Work(B1), None, "10 was delivered from /b and now says /other"),
    ],
)
def test_lines_that_cannot_be_right(bases, patches, delivered, work, problem):
    choice = choose(Donefiles(tuple(bases), tuple(patches)), patches=True, delivered=delivered, where="/d")
    assert (choice.work and choice.work.name) == work
    assert any(problem in each for each in choice.problems) if problem else not choice.problems


@pytest.mark.rules
@pytest.mark.parametrize(
    ("text", "ids", "warned"),
    [
        ("", [], True),
        ("\n\n", [], True),
        ('{"id":"1","key":"1","input":"/a"}\n', [1], False),
        ('{"id":"1","key":"1","input":"/a"}', [1], True),
        ('{"id":1,"key":1,"input":"/a"}\n', [1], True),
        ('{"id":"1","key":"1","input":"/a"}\n{"id":"2","ke', [1], False),
    ],
)
def test_donefiles_that_upstream_does_not_take(text, ids, warned):
    warnings: list[str] = []
    assert [entry.id for entry in parse_donefile(text, source="base.txt", warn=warnings.append)] == ids
    assert bool(warnings) == warned


@pytest.mark.rules
def test_a_line_that_is_no_entry_is_named():
    with pytest.raises(InputError, match=r"base\.txt, line 2"):
        parse_donefile('{"id":"1","key":"1","input":"/a"}\nnonsense}\n', source="base.txt")


@pytest.fixture
def trained(tmp_path):
    """A trainer's output: a base in two files and a folder, and a patch."""
    root = tmp_path / "trained"
    write_rows(root / "data" / "base" / "part-00000", table(50))
    write_rows(root / "data" / "base" / "rest" / "part-00001", dict.fromkeys(range(40, 60), (7.0, 7.0)))
    (root / "data" / "base" / "_SUCCESS").touch()
    (root / "data" / "base" / ".part-00000.crc").write_bytes(b"crc")
    write_rows(root / "data" / "patch" / "part-0", {3: (9.0, 9.0), 100: (1.0, 1.0)})
    (root / "donefile").mkdir()
    append_donefile(root / "donefile" / "base.txt", DoneEntry(10, 10, "/data/base"))
    append_donefile(root / "donefile" / "patch.txt", DoneEntry(11, 10, "/data/patch"))
    return root


def local_donefiles(root):
    (root / "donefile" / "base.txt").unlink()
    append_donefile(root / "donefile" / "base.txt", DoneEntry(10, 10, str(root / "data" / "base")))
    (root / "donefile" / "patch.txt").unlink()
    append_donefile(root / "donefile" / "patch.txt", DoneEntry(11, 10, "../data/patch"))
    return str(root / "donefile")


class Web:
    """Python's http.server: lists directories, redirects those without a slash."""

    def __init__(self, root: Path) -> None:
        self.asked: list[str] = []
        web = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                web.asked.append(f"{self.command} {self.path}")

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        self.root = f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def web(trained):
    web = Web(trained)
    yield web
    web.close()


@contextmanager
def rclone(kind, root, *more):
    if not RCLONE:
        pytest.skip("rclone is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [RCLONE, "serve", kind, "--config", os.devnull, "--addr", f"127.0.0.1:{port}", *more, str(root)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            yield port
        finally:
            process.kill()


def expect_both(source, tmp_path):
    files = source.read()
    assert [entry.id for entry in (*files.bases, *files.patches)] == [10, 11]
    assert files.warnings == ()
    work = choose(files, patches=True, delivered=None).work
    rows = source.bring(work, tmp_path / "here", within_s=60)
    values, found = rows.lookup([2, 3, 45, 59, 100, 101])
    assert values[:, 0].tolist() == [2, 9, 7, 7, 1, 0]
    assert found.tolist() == [True] * 5 + [False]
    assert len(rows) == 61
    assert (np.diff(rows.keys.astype(np.int64)) > 0).all()
    return work


@pytest.mark.rules
def test_on_this_machine(trained, tmp_path):
    source = DonefileSource(local_donefiles(trained))
    expect_both(source, tmp_path)
    (table,) = (tmp_path / "here").iterdir()
    assert re.fullmatch(r"10_11-[0-9a-f]{16}\.safetensors", table.name)


@pytest.mark.rules
def test_a_line_or_a_file_that_was_corrected_is_read_again(trained, tmp_path):
    """Same id: what an earlier run fetched and laid must not go out under it."""
    source = DonefileSource(local_donefiles(trained))
    wrong = write_rows(trained / "data" / "wrong" / "part-0", {1: (5.0, 5.0)})
    right = write_rows(trained / "data" / "right" / "part-0", {1: (6.0, 6.0)})

    def first_value(path):
        rows = source.bring(Work(base(30, str(path.parent))), tmp_path / "here", within_s=60)
        return rows.lookup([1])[0][0, 0]

    assert (first_value(wrong), first_value(right)) == (5, 6)
    right.unlink()
    write_rows(right, {1: (7.0, 7.0)})
    assert first_value(right) == 7


@pytest.mark.rules
def test_files_written_while_they_are_read_are_refused(trained, tmp_path, monkeypatch):
    source = DonefileSource(local_donefiles(trained))
    part = write_rows(trained / "data" / "moving" / "part-0", {1: (5.0, 5.0)})

    def laid_meanwhile(layers, target):
        rows = merge_rows(layers, target)
        part.unlink()
        write_rows(part, {1: (6.0, 6.0)})
        return rows

    monkeypatch.setattr("cloudedge.cube.upstream.sources._donefile_source.merge_rows", laid_meanwhile)
    with pytest.raises(InputError, match="was written while it was read"):
        source.bring(Work(base(30, str(part.parent))), tmp_path / "here", within_s=60)
    monkeypatch.undo()
    assert source.bring(Work(base(30, str(part.parent))), tmp_path / "here", within_s=60).lookup([1])[0][0, 0] == 6


@pytest.mark.parts
def test_over_http(web, tmp_path):
    source = DonefileSource(f"{web.root}/donefile")
    work = expect_both(source, tmp_path)
    web.asked.clear()
    source.read()
    assert all(line.startswith("HEAD") for line in web.asked), web.asked  # nothing has changed: nothing is read
    source.bring(work, tmp_path / "here", within_s=60)
    assert not any("GET" in line and "part-" in line for line in web.asked)
    alone = source.bring(Work(work.base), tmp_path / "here", within_s=60)
    source.clean(tmp_path / "here", Work(work.base), alone)
    assert [path.name.rsplit("-", 1)[0] for path in sorted((tmp_path / "here").iterdir())] == ["10", "input-10-10"]


@pytest.mark.parts
def test_over_http_by_another_server(trained, tmp_path):
    with rclone("http", trained) as port:
        expect_both(DonefileSource(f"http://127.0.0.1:{port}/donefile/"), tmp_path)


@pytest.mark.parts
def test_over_ftp(trained, tmp_path):
    with rclone("ftp", trained, "--user", "me", "--pass", "s3cret") as port:
        source = DonefileSource(f"ftp://me:s3cret@127.0.0.1:{port}/donefile")
        assert "s3cret" not in source.address
        expect_both(source, tmp_path)
        place, _ = open_remote_files(f"ftp://me:s3cret@127.0.0.1:{port}/donefile")
        assert place.version("/donefile/absent.txt") is None
        with pytest.raises(NotFound):
            place.read("/donefile/absent.txt")


@pytest.mark.parts
def test_in_an_s3_bucket(trained, tmp_path, monkeypatch):
    pytest.importorskip("boto3")
    (tmp_path / "buckets").mkdir()
    trained.rename(tmp_path / "buckets" / "models")
    monkeypatch.setenv("THE_SECRET", "testsecretkey")
    with rclone("s3", tmp_path / "buckets", "--auth-key", "testaccess,testsecretkey") as port:
        hub = HubConfig(
            url="s3://models/hub", endpoint=f"http://127.0.0.1:{port}", region="us-east-1", access_key="testaccess",
            secret_key="env:THE_SECRET",
        )  # fmt: skip
        expect_both(DonefileSource("s3://models/donefile", hubs={"far": hub}), tmp_path)


@pytest.mark.parts
def test_in_a_bos_bucket(trained, tmp_path):
    pytest.importorskip("baidubce")
    with BosDouble(tmp_path).running() as double:
        store = BosStore("bos://hub", BosSettings(*double.keys, endpoint=double.endpoint))
        for path in sorted(trained.rglob("*")):
            if path.is_file():
                store.put(path.relative_to(trained).as_posix(), path.read_bytes())
        source = DonefileSource(str(trained))
        source._remote, source._directory = BucketFiles(store), "/donefile"
        expect_both(source, tmp_path)


@pytest.mark.rules
def test_there_is_no_such_place():
    with pytest.raises(ConfigError, match="gopher"):
        DonefileSource("gopher://host/donefile")


@pytest.mark.parts
def test_no_donefile_is_a_warning(tmp_path, web):
    assert "neither base.txt nor patch.txt" in DonefileSource(str(tmp_path)).read().warnings[0]
    assert "neither base.txt nor patch.txt" in DonefileSource(f"{web.root}/nowhere").read().warnings[0]


@pytest.mark.rules
def test_a_changed_donefile_is_read_again(trained):
    source = DonefileSource(local_donefiles(trained))
    assert len(source.read().bases) == 1
    append_donefile(trained / "donefile" / "base.txt", DoneEntry(20, 20, "/x"))
    assert len(source.read().bases) == 2


@pytest.mark.parts
def test_a_server_that_is_away(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(Unavailable, match="cannot be read"):
        DonefileSource(f"http://127.0.0.1:{port}/d").read()

    class Quick(SystemClock):
        def sleep(self, seconds):
            pass

    with pytest.raises(Unavailable, match="cannot be read"):
        DonefileSource(f"ftp://127.0.0.1:{port}/d", clock=Quick()).read()


@pytest.mark.parts
@pytest.mark.parametrize("remote", [False, True])
def test_an_entry_that_points_nowhere(trained, web, tmp_path, remote):
    source = DonefileSource(f"{web.root}/donefile" if remote else str(trained / "donefile"))
    with pytest.raises(NotFound, match=r"base.txt: entry 30 points to /nowhere, and .*nowhere"):
        source.bring(Work(base(30, "/nowhere")), tmp_path / "here", within_s=60)
    (trained / "data" / "hollow").mkdir()
    if remote:
        with pytest.raises(NotFound, match="there is no file"):
            source.bring(Work(base(30, "/data/hollow")), tmp_path / "here", within_s=60)
    else:
        with pytest.raises(InputError, match="there is no row"):
            source.bring(Work(base(30, str(trained / "data" / "hollow"))), tmp_path / "here", within_s=60)


@pytest.mark.parts
@pytest.mark.parametrize("remote", [False, True])
def test_a_half_written_file_is_refused_with_its_byte(trained, web, tmp_path, remote):
    part = trained / "data" / "base" / "part-00000"
    os.truncate(part, part.stat().st_size - 3)
    source = DonefileSource(f"{web.root}/donefile" if remote else str(trained / "donefile"))
    where = "/data/base" if remote else str(trained / "data" / "base")
    why = r"part-00000, byte \d+ is not a whole SequenceFile: the file ends inside a record"
    with pytest.raises(InputError, match=why) as caught:
        source.bring(Work(base(10, where)), tmp_path / "here", within_s=60)
    assert caught.value.path == (f"{web.root}/data/base/part-00000" if remote else str(part))
    assert caught.value.offset is not None
    assert not list((tmp_path / "here").glob("*.safetensors"))


@pytest.mark.rules
def test_a_listing_that_came_as_a_file_is_refused_by_name(trained, tmp_path):
    (trained / "data" / "base" / "base").write_text("<html>listing</html>")
    with pytest.raises(InputError, match="base/base"):
        DonefileSource(str(trained / "donefile")).bring(
            Work(base(10, str(trained / "data" / "base"))), tmp_path / "here", within_s=60
        )


@pytest.mark.rules
def test_rows_of_another_length_are_refused(trained, tmp_path):
    write_rows(trained / "data" / "patch" / "part-1", {5: (1.0, 2.0, 3.0)})
    source = DonefileSource(local_donefiles(trained))
    work = choose(source.read(), patches=True, delivered=None).work
    with pytest.raises(InputError, match=r"part-1 has rows of 12 bytes, others have 8"):
        source.bring(work, tmp_path / "here", within_s=60)


@pytest.mark.parts
def test_an_interrupted_fetch_goes_on(web, trained, tmp_path, monkeypatch):
    source = DonefileSource(f"{web.root}/donefile")
    work = Work(base(10, "/data/base"))
    place = source._remote
    real, fetched = place.fetch, []

    def break_at_second(file, target, deadline):
        if len(fetched) == 1:
            fetched.append(file.path)
            raise Unavailable("broken")
        fetched.append(file.path)
        real(file, target, deadline)

    monkeypatch.setattr(place, "fetch", break_at_second)
    with pytest.raises(Unavailable):
        source.bring(work, tmp_path / "here", within_s=60)
    assert len(source.bring(work, tmp_path / "here", within_s=60)) == 60
    assert fetched == ["part-00000", "rest/part-00001", "rest/part-00001"]


@pytest.mark.rules
@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('<a href="../">../</a><a href="part-0">part-0</a>', ["part-0"]),
        ('<a href="?C=N;O=D">Name</a><a href="/data/">Parent</a><a href="sub/">sub</a>', ["sub/"]),
        ('<a href="/data/base/part%200">x</a><a href="http://elsewhere/data/base/x">y</a>', ["part 0"]),
        ('<a href="a/b">deep</a><a href="part-0">1</a><a href="part-0">2</a><a>none</a>', ["part-0"]),
        ('<a href="../../etc/passwd">x</a><a href="javascript:x">y</a>', []),
    ],
)
def test_listings(page, expected):
    assert links(page, "http://host/data/base/") == expected


@pytest.mark.rules
def test_a_listing_cannot_lead_out_of_its_directory(tmp_path):
    class Evil(ListedFiles):
        def address(self, path):
            return path

        def walk(self, path):
            yield RemoteFile("../../evil", "/evil", 1, "")

        def fetch(self, file, target, deadline):
            pytest.fail("it was fetched")

    with pytest.raises(InputError, match="must stay inside its folder"):
        Evil().bring("/data", tmp_path / "here", 0)


@pytest.mark.parts
@pytest.mark.parametrize("path", ["file:///etc", "/data/base\r\nDELE x", "/data/\0"])
def test_inputs_that_are_not_taken(web, tmp_path, path):
    with pytest.raises(InputError, match="entry 30 points to"):
        DonefileSource(f"{web.root}/donefile").bring(Work(base(30, path)), tmp_path / "here", within_s=60)


@pytest.mark.rules
def test_rows_of_an_odd_length_are_carried_as_bytes(tmp_path):
    """As 8-bit rows of an odd dimension are: 8 + 3 bytes."""
    rows = {key: bytes(range(key, key + 11)) for key in range(20)}
    (tmp_path / "in").mkdir()
    seqfile.write(tmp_path / "in" / "part-0", rows.items())
    laid = merge_rows([(tmp_path / "in", str)], tmp_path / "t.safetensors")
    assert (laid.kind.row_bytes, [row.tobytes() for row in laid.values]) == (11, list(rows.values()))
    version, workshop = TableVersion("emb", "v1", laid), ArtifactCache(tmp_path / "work")
    for shard, artifact in enumerate(workshop.base(version, 2)):
        store = PartStore.open(artifact.directory)
        assert store.get([shard, shard + 10]) == [rows[shard], rows[shard + 10]]
    changed = {**rows, 4: b"other bytes"}
    seqfile.write(tmp_path / "in" / "part-1", [(4, changed[4])])
    second = TableVersion("emb", "v2", merge_rows([(tmp_path / "in", str)], tmp_path / "t2.safetensors"))
    base = PartStore.open(workshop.base(version, 2)[0].directory)
    delta = load_artifact(workshop.delta(version, second, 2)[0], "v2", base.native)
    assert PartStore(delta).get([4, 6]) == [changed[4], rows[6]]


@pytest.mark.parts
def test_names_with_odd_characters(web, trained, tmp_path):
    write_rows(trained / "data" / "an odd %20 name" / "part 0 100%#?", {1: (1.0, 1.0)})
    source = DonefileSource(f"{web.root}/donefile")
    assert len(source.bring(Work(base(30, "/data/an odd %20 name")), tmp_path / "here", within_s=60)) == 1


@pytest.mark.parts
def test_a_whole_url_and_a_single_file(web, trained, tmp_path):
    source = DonefileSource(str(trained / "donefile"))
    assert len(source.bring(Work(base(30, f"{web.root}/data/patch")), tmp_path / "a", within_s=60)) == 2
    assert len(source.bring(Work(base(31, f"{web.root}/data/patch/part-0")), tmp_path / "b", within_s=60)) == 2
