from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudedge import cube
from cloudedge.cube import CubeConf, DoneEntry, ServerFlags, TransferConf, append_donefile, read_donefile
from cloudedge.errors import CloudEdgeError, ConfigError, InputError

pytestmark = pytest.mark.rules

DICT = {
    "dict_name": "ctr",
    "shard": 2,
    "dup": 1,
    "timeout": 200,
    "retry": 3,
    "backup_request": 100,
    "type": "ipport_list",
    "load_balancer": "rr",
    "nodes": [{"ipport_list": "list://10.0.0.1:8027,10.0.0.2:8027"}, {"ipport_list": "list://10.0.0.3:8027"}],
}


def conf(**change) -> str:
    return json.dumps([{key: value for key, value in (DICT | change).items() if value is not ...}])


def test_cube_conf_is_read_and_written_back():
    read = CubeConf.from_text(conf(comment="of a later version"))
    ctr = read["ctr"]
    assert (ctr.shards, ctr.timeout_ms, ctr.retry, ctr.backup_request_ms) == (2, 200, 3, 100)
    assert ctr.replicas(0) == (("10.0.0.1", 8027), ("10.0.0.2", 8027))
    assert ctr.replicas(1) == (("10.0.0.3", 8027),)
    assert json.loads(read.to_text()) == [DICT | {"comment": "of a later version"}]
    assert CubeConf.from_text(read.to_text()) == read


def test_single_servers_and_one_for_all():
    nodes = [{"ip": "10.0.0.1", "port": 8000}, {"ip": "10.0.0.2", "port": 8000}]
    single = CubeConf.from_text(conf(type="ipport", nodes=nodes, load_balancer=...))["ctr"]
    assert single.replicas(1) == (("10.0.0.2", 8000),)
    assert single.load_balancer == "rr"
    parallel = CubeConf.from_text(conf(type="ipport_parallel", nodes=nodes[:1]))["ctr"]
    assert parallel.replicas(1) == (("10.0.0.1", 8000),)


BAD_CONFS = {
    "not JSON": ("[{]", "line 1: not JSON"),
    "not an array": ("{}", "the file"),
    "missing field": (conf(timeout=...), "0.timeout: Field required"),
    "number as text": (conf(timeout="200"), "0.timeout.*it is '200'"),
    "true as number": (conf(retry=True), "0.retry.*it is True"),
    "no shards": (conf(shard=0), "0.shard.*it is 0"),
    "unknown type": (conf(type="zk"), "0.type.*it is 'zk'"),
    "fewer nodes": (conf(nodes=DICT["nodes"][:1]), "1 nodes for 2 shards"),
    "more nodes": (conf(nodes=DICT["nodes"] * 2), "4 nodes for 2 shards"),
    "wrong kind of node": (conf(type="ipport"), "nodes.0 does not fit type 'ipport'"),
    "bad port": (conf(type="ipport", nodes=[{"ip": "a", "port": 70000}] * 2), "port"),
    "twice the same": (json.dumps([DICT, DICT]), "same dict_name"),
    "deep": ("[" * 100_000, "cube.conf"),
}


@pytest.mark.parametrize(("text", "message"), BAD_CONFS.values(), ids=BAD_CONFS)
def test_a_bad_cube_conf_is_refused_by_name(text, message):
    with pytest.raises(ConfigError, match=message):
        CubeConf.from_text(text)


def test_a_file_is_named_in_its_errors(tmp_path):
    (tmp_path / "cube.conf").write_text(conf(type="zk"))
    with pytest.raises(ConfigError) as caught:
        CubeConf.from_file(tmp_path / "cube.conf")
    assert caught.value.path == str(tmp_path / "cube.conf")
    (tmp_path / "cube.conf").write_bytes(b"[\xff]")
    with pytest.raises(ConfigError, match="byte 1: not UTF-8"):
        CubeConf.from_file(tmp_path / "cube.conf")
    with pytest.raises(ConfigError, match="No such file"):
        CubeConf.from_file(tmp_path / "nothing")


def test_unknown_tables_and_naming_services_say_so():
    read = CubeConf.from_text(conf(nodes=[{"ipport_list": "consul://cube"}, {"ipport_list": "list://a:b"}]))
    with pytest.raises(ConfigError, match="no table 'x'") as caught:
        _ = read["x"]
    assert "ctr" in caught.value.hint
    for shard in range(2):
        with pytest.raises(ConfigError, match=f"shard {shard}: .* names no servers"):
            read["ctr"].replicas(shard)


TRANSFER = """\
ignored: before the first section
# a comment
  [default]   anything else on a section line
dict_name: test_dict
mode: base_only\t# a comment
download_mode: http // another
wget_port: 8009
buildtool_local: /opt/cube-builder
donefile_address: http://127.0.0.1:8080/donefile
output_address: /data/output
tmp_address: /data/tmp
shard_num: 2
copy_num: 1
deploy_path: /srv/cube
transfer_address: 10.0.0.9
later_key: kept
empty:

[cube_agent]
agent0_0: 10.0.0.1:8001
cube0_0: 10.0.0.1:8000:/srv/cube0
agent1_0: 10.0.0.2:8001
cube1_0: 10.0.0.2:8000:/srv/cube1
"""


def test_transfer_conf_is_read_by_upstream_s_rules():
    read = TransferConf.from_text(TRANSFER)
    assert (read.mode, read.download_mode, read.wget_port) == ("base_only", "http", 8009)
    assert read.donefile_address == "http://127.0.0.1:8080/donefile"  # only the first colon parts, no blank before //
    assert read.agents[1, 0] == ("10.0.0.2", 8001)
    assert read.cubes[0, 0].deploy_path == "/srv/cube0"
    assert read.others == {"later_key": "kept"}
    assert TransferConf.from_text(read.to_text()) == read


BAD_TRANSFERS = {
    "missing key": (("tmp_address: /data/tmp\n", ""), "lacks tmp_address"),
    "empty value": (("mode: base_only", "mode:"), "lacks mode"),
    "unknown mode": (("base_only", "all"), "line 5: mode is 'all', not base_only or base_delta"),
    "no number": (("shard_num: 2", "shard_num: two"), "line 12: shard_num is 'two'"),
    "agent without port": (("10.0.0.2:8001", "10.0.0.2"), "agent1_0 is '10.0.0.2', not ip:port"),
    "cube without path": ((":8000:/srv/cube0", ":8000"), "cube0_0 .* not ip:port:deploy_path"),
    "missing instance": (("agent1_0: 10.0.0.2:8001\n", ""), "lacks agent1_0"),
    "no colon": (("empty:", "empty"), "line 17: 'empty' is not 'key: value'"),
}


@pytest.mark.parametrize(("change", "message"), BAD_TRANSFERS.values(), ids=BAD_TRANSFERS)
def test_a_bad_transfer_conf_is_refused_by_line(change, message):
    assert change[0] in TRANSFER
    with pytest.raises(ConfigError, match=message):
        TransferConf.from_text(TRANSFER.replace(*change))


def test_gflags_conf_is_read_and_written():
    text = "# flags\n--port=8027\n-dict_split=2\n--noin_mem\n--log_dir=./log/\n--minloglevel=2\n"
    flags = ServerFlags.from_text(text)
    assert flags == ServerFlags(8027, 2, in_mem=False, log_dir="./log/", others={"minloglevel": "2"})
    assert ServerFlags.from_text(flags.to_text()) == flags
    assert ServerFlags.from_text("").to_text() == "--port=8000\n--dict_split=1\n--in_mem=true\n--log_dir=./log\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port=8000", "line 1: 'port=8000' is not --name=value"),
        ("\n--port=0", "line 2: port is '0', not within 1 and 65535"),
        ("--in_mem=maybe", "in_mem is 'maybe', not true or false"),
    ],
)
def test_bad_flags_are_refused_by_line(text, message):
    with pytest.raises(ConfigError, match=message):
        ServerFlags.from_text(text)


BASE_LINE = '{"id":"1562000400","key":"1562000400","input":"/data/ctr/20190701/base"}\n'
PATCH_LINE = '{"id":"1562000401","key":"1562000400","input":"/data/ctr/20190701/patch"}\n'


def test_donefiles_are_written_as_upstream_reads_them(tmp_path):
    path = tmp_path / "base.txt"
    append_donefile(path, DoneEntry(1562000400, 1562000400, "/data/ctr/20190701/base"))
    append_donefile(path, DoneEntry(1562000401, 1562000400, "/data/ctr/20190701/patch"))
    assert path.read_text() == BASE_LINE + PATCH_LINE
    base, patch = read_donefile(path)
    assert base.is_base
    assert (patch.id, patch.key, patch.is_base) == (1562000401, 1562000400, False)


def test_an_unfinished_line_of_another_writer_does_not_swallow_ours(tmp_path):
    path = tmp_path / "base.txt"
    path.write_text(BASE_LINE.rstrip("\n"))
    append_donefile(path, DoneEntry(1562000401, 1562000400, "/data/ctr/20190701/patch"))
    assert path.read_text() == BASE_LINE + PATCH_LINE


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("\n\n" + BASE_LINE + "\n-\n", [1562000400]),
        (BASE_LINE + PATCH_LINE.rstrip("\n"), [1562000400, 1562000401]),
        (BASE_LINE + '{"id":"15620', [1562000400]),
        ('{"id":5,"key":5,"input":"/x","more":1}\n', [5]),
        (BASE_LINE.replace("\n", "\r\n"), [1562000400]),
    ],
)
def test_donefiles_are_read_kindly(tmp_path, text, ids):
    (tmp_path / "base.txt").write_bytes(text.encode())
    assert [entry.id for entry in read_donefile(tmp_path / "base.txt")] == ids


@pytest.mark.parametrize("line", ["[1]", '{"id":"x","key":"1","input":"/"}', '{"id":"1","key":"1"}', "nonsense"])
def test_a_line_that_is_no_entry_is_refused_by_number(tmp_path, line):
    (tmp_path / "base.txt").write_text(BASE_LINE + line + "\n")
    with pytest.raises(InputError, match="line 2: no donefile entry"):
        read_donefile(tmp_path / "base.txt")


SAMPLES = [conf(), TRANSFER, "--port=8027\n--in_mem=true\n", BASE_LINE + PATCH_LINE]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SAMPLES), st.randoms(use_true_random=False), st.text(max_size=8))
def test_mutated_files_are_read_or_refused_and_nothing_else(tmp_path_factory, sample, draw: random.Random, noise):
    text = list(sample)
    for _ in range(draw.randrange(4)):
        start = draw.randrange(len(text) + 1)
        text[start : start + draw.randrange(6)] = noise
    mutated = "".join(text)
    path = tmp_path_factory.getbasetemp() / "donefile"
    path.write_bytes(mutated.encode(errors="surrogatepass"))
    for read in (CubeConf.from_text, TransferConf.from_text, ServerFlags.from_text):
        try:
            parsed = read(mutated)
        except CloudEdgeError:
            continue
        assert read(parsed.to_text()) == parsed
    with contextlib.suppress(CloudEdgeError):
        read_donefile(path)


def test_the_old_words_for_a_table_work_and_warn():
    read = CubeConf.from_text(conf())
    with pytest.deprecated_call(match="CubeConf.dicts is now CubeConf.tables"):
        assert read.dicts == read.tables
    with pytest.deprecated_call(match="CubeTable.dict_name is now CubeTable.table_name"):
        assert read["ctr"].dict_name == read["ctr"].table_name == "ctr"
    with pytest.deprecated_call(match="CubeConf: dicts is now tables"):
        assert CubeConf(dicts=read.tables) == read
    for package in (cube, cube.formats):
        with pytest.deprecated_call(match="CubeTable"):
            assert package.CubeDict is type(read["ctr"])
    transfer = TransferConf.from_text(TRANSFER)
    with pytest.deprecated_call(match="TransferConf.dict_name is now TransferConf.table"):
        assert transfer.dict_name == transfer.table == "test_dict"
    with pytest.deprecated_call(match="TransferConf: dict_name is now table"):
        renamed = replace(transfer, dict_name="other")
    assert "\ndict_name: other\n" in renamed.to_text()
