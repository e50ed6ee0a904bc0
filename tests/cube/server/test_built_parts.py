"""Both halves together: parts that were built are served, read, patched, and lost under a running server."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from cloudedge import seqfile
from cloudedge.cube import Client, ClientConfig, PartStore, Server, ServerConfig, UnknownVersion, build
from cloudedge.errors import InputError, IntegrityError

pytestmark = pytest.mark.parts

KEYS = np.arange(0, 4000, dtype=np.uint64)


def rows_of(version):
    return np.full((len(KEYS), 4), version, np.float32) + KEYS[:, None].astype(np.float32) / 8192


@pytest.fixture
def parts(tmp_path):
    """Build versions for two shards; returns the parts of one."""

    def make(version):
        save_file({"keys": KEYS, "values": rows_of(version)}, tmp_path / f"{version}.safetensors")
        source = [tmp_path / f"{version}.safetensors"]
        built = build(source, output=tmp_path / "cube", table="d", shards=2, version=version, tar=False)
        return [built.directory / f"d_part{i}" for i in range(2)]

    return make


@pytest.fixture
def shards():
    servers = [Server(ServerConfig(port=0)).start() for _ in range(2)]
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def client(shards):
    with Client(ClientConfig([[server.address] for server in shards])) as connected:
        yield connected


def load(shards, folders, version, **options):
    for server, folder in zip(shards, folders, strict=True):
        server.load(folder, str(version), **options)


def check(client, version, **options):
    result = client.seek(KEYS, **options)
    assert result.found.all()
    assert result.version == str(version)
    assert (result.values == rows_of(version)).all()


def test_what_was_built_is_served_and_pinned(parts, shards, client):
    load(shards, parts(1), 1, activate=True)
    check(client, 1)
    load(shards, parts(2), 2)
    check(client, 1)
    check(client, 2, pin="2")
    for server in shards:
        server.activate("2")
    check(client, 2)
    check(client, 1, pin="1")
    with pytest.raises(UnknownVersion):
        client.seek(KEYS, pin="3")
    assert not client.seek([10**9]).found.any()


def test_the_servers_checksums_add_up_to_the_tables(parts, shards):
    folders = parts(1)
    load(shards, folders, 1, activate=True)
    for server, folder in zip(shards, folders, strict=True):
        assert server.versions()[0].checksum == str(PartStore.open(folder).checksum)


def test_a_damaged_version_is_refused_with_its_place_and_the_running_one_stays(parts, shards, client):
    load(shards, parts(1), 1, activate=True)
    damaged = parts(2)
    data = damaged[0] / "data.0"
    data.write_bytes(data.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"data\.0") as caught:
        shards[0].load(damaged[0], "2")
    assert caught.value.path.endswith("data.0")
    assert [version.name for version in shards[0].versions()] == ["1"]
    check(client, 1)


def test_a_value_with_one_other_bit_is_refused_although_its_files_fit_together(parts, shards, client):
    load(shards, parts(1), 1, activate=True)
    damaged = parts(2)[0]
    data = damaged / "data.0"
    content = bytearray(data.read_bytes())
    content[len(content) // 2 // 20 * 20 + 7] ^= 1  # of 20 bytes a row, one after its length
    data.write_bytes(content)
    with pytest.raises(InputError, match="expected checksum"):
        shards[0].load(damaged, "2")
    with pytest.raises(IntegrityError, match="expected checksum"):
        PartStore.open(damaged)
    check(client, 1)
    note = damaged.with_name("d_part0.rows.json")
    note.write_text("{")
    with pytest.raises(IntegrityError, match=r"rows\.json does not hold"):
        shards[0].load(damaged, "2")
    note.unlink()
    shards[0].load(damaged, "2")  # as what upstream's builder wrote: nobody can tell


def test_the_disk_may_go_while_a_server_runs(parts, shards, client, tmp_path):
    load(shards, parts(1), 1, activate=True)
    shutil.rmtree(tmp_path / "cube")
    check(client, 1)
    with pytest.raises(InputError, match="cannot load version '2'"):
        shards[0].load(tmp_path / "cube" / "2_2" / "d_part0", "2")
    check(client, 1)


def test_a_delta_is_loaded_beside_its_base(parts, shards, client, tmp_path):
    load(shards, parts(1), 1, activate=True)
    changed = {0: 7.0, 1: 9.0}
    seqfile.write(tmp_path / "delta", ((key, np.full(4, value, "<f4").tobytes()) for key, value in changed.items()))
    built = build([tmp_path / "delta"], output=tmp_path / "cube", table="d", shards=2, version=2, base=1, tar=False)
    load(shards, [built.directory / f"d_part{i}" for i in range(2)], 2, base="1")
    result = client.seek([0, 1, 2], pin="2")
    assert result.values[:, 0].tolist() == [7.0, 9.0, rows_of(1)[2, 0]]
    check(client, 1)
    added = [version for version in shards[0].versions() if version.name == "2"]
    assert added[0].memory_bytes < shards[0].versions()[0].memory_bytes / 10
