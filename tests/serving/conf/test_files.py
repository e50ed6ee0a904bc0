"""Configuration files against what Paddle Serving 0.9's own tools wrote (``golden/``), and against hand-made bytes."""

from pathlib import Path

import pytest

from cloudedge.bundle import Lookup, Signature, Variable
from cloudedge.errors import ConfigError
from cloudedge.serving import conf

pytestmark = pytest.mark.rules

GOLDEN = Path(__file__).parent / "golden"
KINDS = {
    "infer_service": conf.InferServiceConf,
    "workflow": conf.WorkflowConf,
    "resource": conf.ResourceConf,
    "model_toolkit": conf.ModelToolkitConf,
    "general_model": conf.GeneralModelConfig,
    "predictors": conf.SDKConf,
}
SIGNATURE = Signature(
    feed=(Variable(name="uid", dtype="int64", shape=(1,)),),
    fetch=(Variable(name="softmax_0.tmp_0", alias="ctr", shape=(3,)),),
)
TEXTS = sorted(GOLDEN.rglob("*.prototxt"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(GOLDEN).as_posix())
def test_every_file_is_read_and_written_byte_for_byte(path):
    message = conf.read_text(KINDS[path.stem], path.read_text(), path.name)
    assert conf.write_text(message) == path.read_text()
    assert conf.read_binary(KINDS[path.stem], conf.write_binary(message), "it") == message


@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("plain", conf.EngineOptions()),
        ("lookup", conf.EngineOptions(op="GeneralDistKVInferOp", memory_optimization=False)),
    ],
)
def test_the_work_directory_is_what_upstream_writes(folder, options):
    files = conf.work_directory("workdir", "serving_server", conf.model_config(SIGNATURE), options)
    golden = {path.relative_to(GOLDEN / folder).as_posix(): path.read_text() for path in (GOLDEN / folder).rglob("*.*")}
    assert {path: text for path, text in files.items() if path.endswith(".prototxt")} == golden
    assert [path for path in files if path not in golden] == [f"{options.op}_0/fluid_time_file"]


def test_options_reach_the_engine():
    options = conf.EngineOptions(
        op="GeneralDistKVQuantInferOp", gpu_ids=(0, 1), more={"cpu_math_thread_num": 3, "precision_typo": 1}
    )
    with pytest.raises(ConfigError, match="precision_typo"):
        conf.work_directory("w", "m", conf.model_config(SIGNATURE), options)
    options = conf.EngineOptions(op="GeneralDistKVQuantInferOp", gpu_ids=(0, 1), more={"cpu_math_thread_num": 3})
    files = conf.work_directory("w", "m", conf.model_config(SIGNATURE), options)
    (engine,) = conf.read_text(
        conf.ModelToolkitConf, files["GeneralDistKVQuantInferOp_0/model_toolkit.prototxt"], "it"
    ).engines
    assert (list(engine.gpu_ids), engine.use_gpu, engine.cpu_math_thread_num) == ([0, 1], True, 3)
    assert conf.read_text(conf.ResourceConf, files["resource.prototxt"], "it").cube_quant_bits == 8


def test_routing_is_what_upstreams_client_makes():
    variants = [
        conf.ClientVariant("var1", ("127.0.0.1:9393", "127.0.0.1:9394"), 10),
        conf.ClientVariant("var2", ("127.0.0.1:9395",), 90),
    ]
    assert (
        conf.write_text(conf.sdk_config(variants, rpc_timeout_ms=20000)) == (GOLDEN / "predictors.prototxt").read_text()
    )
    for wrong in (
        [],
        [variants[0], variants[0]],
        [conf.ClientVariant("a", (), 1)],
        [conf.ClientVariant("a", ("b:1",), 0)],
    ):
        with pytest.raises(ConfigError):
            conf.sdk_config(wrong)


def test_a_models_description_in_binary_is_plain_protobuf():
    # By hand: field 1 (feed), length 16: 1 name "uid", 2 alias "uid", 3 lod 0, 4 type 0, 5 shape 1; then field 2.
    feed = bytes.fromhex("0a10 0a03756964 1203756964 1800 2000 2801")
    fetch = b"\x12\x1c\x0a\x0fsoftmax_0.tmp_0\x12\x03ctr\x18\x00\x20\x01\x28\x03"
    assert conf.write_binary(conf.model_config(SIGNATURE)) == feed + fetch


def test_sizes_that_vary_are_left_out_and_fetches_stay_in_order():
    signature = Signature(
        feed=(Variable(name="a", shape=(-1, 4)), Variable(name="rows", dtype="int64")),
        fetch=(Variable(name="z", alias="second"), Variable(name="y", alias="first", dtype="int32")),
        lookups=(Lookup(feed="a", input="rows", table="t"),),
    )
    config = conf.model_config(signature, lod=["rows"])
    assert [list(feed.shape) for feed in config.feed_var] == [[4], [-1]]
    assert [feed.is_lod_tensor for feed in config.feed_var] == [False, True]
    assert [(fetch.alias_name, fetch.fetch_type) for fetch in config.fetch_var] == [("second", 1), ("first", 2)]


def test_a_signature_comes_back():
    assert conf.signature_of(conf.model_config(SIGNATURE)) == SIGNATURE
    odd = conf.read_text(conf.GeneralModelConfig, 'feed_var { name: "x" feed_type: 6 }', "it")
    with pytest.raises(ConfigError, match="feed_type 6"):
        conf.signature_of(odd)


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (conf.ModelToolkitConf, "engines { name: 'x' }", "lacks .*engines.*model_dir"),
        (conf.ModelToolkitConf, "engine { }", "it: 1:1 .*engine"),
        (conf.InferServiceConf, "port: -1", "it: 1:7"),
        (conf.GeneralModelConfig, "x" * (16 * 1024 * 1024 + 1), "no such file is longer"),
    ],
    ids=["required", "unknown", "range", "length"],
)
def test_what_is_wrong_is_named(kind, text, problem):
    with pytest.raises(ConfigError, match=problem):
        conf.read_text(kind, text, "it")
    with pytest.raises(ConfigError, match="not a binary"):
        conf.read_binary(kind, b"\xff\xff\xff", "it")


def test_maps_and_enumerations_are_understood():
    text = (
        'engines { name: "n" type: "t" reloadable_meta: "m" reloadable_type: "none" model_dir: "d" '
        'sparse_param_service_type: REMOTE min_input_shape { key: "x" value: "1 3 50 50" } }'
    )
    (engine,) = conf.read_text(conf.ModelToolkitConf, text, "it").engines
    assert (engine.sparse_param_service_type, dict(engine.min_input_shape)) == (2, {"x": "1 3 50 50"})
    assert (engine.batch_infer_size, engine.allow_split_request, engine.dist_carrier_id) == (32, True, "inference")


def test_flags_come_back():
    flags = conf.server_flags("workdir", port=9393)
    assert conf.read_flags(conf.write_flags(flags)) == flags
    assert conf.read_flags("# a comment\n\n-a=1\n--b\n--a=2\n") == {"a": "2", "b": "true"}
    with pytest.raises(ConfigError, match="line 2"):
        conf.read_flags("--a=1\nb=2\n")
    with pytest.raises(ConfigError, match="not a flag"):
        conf.write_flags({"a": "x\n--b=1"})
