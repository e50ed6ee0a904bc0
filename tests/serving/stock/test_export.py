"""What stock servers are handed, and what is refused before they stumble over it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from cloudedge.bundle import Bundle, Lookup, Signature, Variable
from cloudedge.cli import app
from cloudedge.errors import Conflict, InputError
from cloudedge.serving import conf, export, plan_export

pytestmark = pytest.mark.rules

FEED = (Variable(name="x", shape=(4,)),)
FETCH = (Variable(name="out", shape=(1,)),)
PLAIN = Signature(feed=FEED, fetch=FETCH)
LOOKUP = Signature(
    feed=(Variable(name="ids", dtype="int64"), *FEED),
    fetch=FETCH,
    lookups=(Lookup(feed="ids", input="rows.ids.t", table="t"),),
)
PIPELINE = "paddle-serving-0.9-pipeline"


@pytest.fixture
def packed(tmp_path, hub):
    def pack(suffix=".pdmodel", *, signature=PLAIN, version="2.6.2", tables=(), dtype="float32"):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / f"ctr{suffix}").write_bytes(b"program")
        (folder / "ctr.pdiparams").write_bytes(b"parameters")
        table = {"keys": np.array([1], np.uint64), "values": np.ones((1, 4), dtype)}
        table |= {"scale": np.ones(1, np.float32)} if dtype == "int8" else {}
        arrays = dict.fromkeys(tables, table)
        return Bundle.pack(folder, name="ctr", signature=signature, framework_version=version, sparse=arrays, hub=hub)

    return pack


def test_the_folder_is_what_a_stock_server_reads(packed, tmp_path):
    bundle = packed()
    root = export(bundle, plan_export(bundle, port=9494), tmp_path / "out")
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()) == [
        "config.yml",
        "proj.conf",
        "serving_client/predictors.prototxt",
        "serving_client/serving_client_conf.prototxt",
        "serving_client/serving_client_conf.stream.prototxt",
        "serving_server/fluid_time_file",
        "serving_server/model.pdiparams",
        "serving_server/model.pdmodel",
        "serving_server/serving_server_conf.prototxt",
        "serving_server/serving_server_conf.stream.prototxt",
        "web_service.py",
        "workdir/GeneralInferOp_0/fluid_time_file",
        "workdir/GeneralInferOp_0/general_model.prototxt",
        "workdir/GeneralInferOp_0/model_toolkit.prototxt",
        "workdir/infer_service.prototxt",
        "workdir/resource.prototxt",
        "workdir/workflow.prototxt",
    ]
    assert (root / "serving_server/model.pdmodel").read_bytes() == b"program"
    server = root / "serving_server/serving_server_conf"
    described = conf.read_text(conf.GeneralModelConfig, server.with_suffix(".prototxt").read_text(), "it")
    binary = (root / "serving_server/serving_server_conf.stream.prototxt").read_bytes()
    assert conf.read_binary(conf.GeneralModelConfig, binary, "it") == described
    assert conf.signature_of(described) == PLAIN
    # Every path in the files leads somewhere from where the server is started.
    resource = conf.read_text(conf.ResourceConf, (root / "workdir/resource.prototxt").read_text(), "it")
    toolkit_file = root / resource.model_toolkit_path[0] / resource.model_toolkit_file[0]
    (engine,) = conf.read_text(conf.ModelToolkitConf, toolkit_file.read_text(), "it").engines
    assert (root / engine.model_dir).is_dir()
    assert (root / engine.reloadable_meta).is_file()
    flags = conf.read_flags((root / "proj.conf").read_text())
    assert (root / flags["workflow_path"] / flags["workflow_file"]).is_file()
    assert flags["port"] == "9494"
    config = conf.read_pipeline((root / "config.yml").read_text())
    assert (root / config.op["model"].local_service_conf.model_folder).is_dir()
    compile((root / "web_service.py").read_text(), "web_service.py", "exec")
    with pytest.raises(Conflict):
        export(bundle, plan_export(bundle), tmp_path / "out")


def with_feed(*feed, lookups=LOOKUP.lookups):
    return Signature(feed=feed, fetch=FETCH, lookups=lookups)


IDS = Variable(name="ids", dtype="int64")


@pytest.mark.parametrize(
    ("options", "target", "problem"),
    [
        ({"suffix": ".json"}, "paddle-serving-0.9", "PIR program"),
        ({"version": "3.3.1"}, "paddle-serving-0.9", r"saved by Paddle 3\.3\.1"),
        ({"version": "nightly"}, "paddle-serving-0.9", "saved by Paddle nightly"),
        ({"signature": Signature()}, "paddle-serving-0.9", "declares no inputs"),
        ({"signature": LOOKUP, "tables": ["t"]}, PIPELINE, "cannot look ids up"),
        ({"signature": LOOKUP, "tables": ["t", "u"]}, "paddle-serving-0.9", "2 tables, and it knows one"),
        (
            {"signature": with_feed(Variable(name="ids", dtype="int64", shape=(1,))), "tables": ["t"]},
            "paddle-serving-0.9",
            "rows of rank 2",
        ),
        (
            {"signature": with_feed(Variable(name="ids", dtype="int32")), "tables": ["t"]},
            "paddle-serving-0.9",
            "not int64",
        ),
        (
            {"signature": with_feed(IDS, Variable(name="n", dtype="int64")), "tables": ["t"]},
            "paddle-serving-0.9",
            "take 'n' for ids",
        ),
        (
            {"signature": with_feed(IDS, lookups=LOOKUP.lookups * 2), "tables": ["t"]},
            "paddle-serving-0.9",
            "looked up 2 times",
        ),
        (
            {"signature": LOOKUP, "tables": ["t"], "dtype": "float16"},
            "paddle-serving-0.9",
            "rows of table 't' are float16, and it reads float32",
        ),
        (
            {"signature": LOOKUP, "tables": ["t"], "dtype": "int8"},
            "paddle-serving-0.9",
            "rows of table 't' are int8, and it reads float32",
        ),
        ({}, "paddle-serving-0.8", "unknown target"),
    ],
)
def test_what_a_stock_server_cannot_run_is_refused(options, target, problem, packed):
    with pytest.raises(InputError, match=problem):
        plan_export(packed(**options), target)


@pytest.mark.parametrize("version", ["1.8.5", "2.6.2", "3.0.0", "3.1.1"])
def test_what_it_can_run_is_not(version, packed):
    assert plan_export(packed(version=version)).notes == ()


def test_aliases_are_for_one_of_the_two_services(packed):
    bundle = packed(signature=with_feed(Variable(name="x", alias="y"), lookups=()))
    plan = plan_export(bundle)
    assert any("without aliases" in note for note in plan.notes)
    assert "web_service.py" not in plan.files
    assert b'alias_name: "y"' in plan.files["serving_server/serving_server_conf.prototxt"]
    plan = plan_export(bundle, PIPELINE)
    assert b'alias_name: "y"' not in plan.files["serving_server/serving_server_conf.prototxt"]
    assert b"{'y': ('x', 'float32')}" in plan.files["web_service.py"]


def test_a_pir_program_goes_to_the_pipeline_with_its_shim(packed):
    plan = plan_export(packed(".json", version="3.3.1"), PIPELINE)
    assert "serving_server/model.json" in plan.files
    assert "proj.conf" not in plan.files
    assert b"*.json" in plan.files["web_service.py"]
    config = conf.read_pipeline(plan.files["config.yml"].decode())
    assert config.op["model"].local_service_conf.mem_optim is False


def test_one_table_becomes_the_look_up_op(packed):
    bundle = packed(signature=LOOKUP, tables=["t"])
    plan = plan_export(bundle)
    assert any("names no servers yet" in note for note in plan.notes)
    assert "config.yml" not in plan.files
    assert json.loads(plan.files["workdir/cube.conf"])[0]["dict_name"] == "t"
    resource = conf.read_text(conf.ResourceConf, plan.files["workdir/resource.prototxt"].decode(), "it")
    assert (resource.cube_config_path, resource.cube_config_file) == ("workdir", "cube.conf")
    described = conf.read_text(
        conf.GeneralModelConfig, plan.files["serving_client/serving_client_conf.prototxt"].decode(), "it"
    )
    ids = described.feed_var[0]
    assert (ids.name, ids.alias_name, ids.feed_type, ids.is_lod_tensor) == ("rows.ids.t", "ids", 0, True)
    assert plan_export(bundle, cube_conf="[]").files["workdir/cube.conf"] == b"[]"


def test_the_command_line(packed, tmp_path, hub):
    packed()
    arguments = [
        "serving",
        "export",
        "ctr",
        "--output",
        str(tmp_path / "out"),
        "--local",
        str(tmp_path / "hub"),
        "--json",
    ]
    done = CliRunner().invoke(app, [*arguments, "--dry-run"], catch_exceptions=False)
    assert "serving_server/model.pdmodel" in json.loads(done.stdout)["files"]
    assert not (tmp_path / "out").exists()
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert (tmp_path / "out/serving_server/model.pdmodel").exists()
    live = [
        "serving",
        "hot-load",
        "ctr",
        "--live",
        str(tmp_path / "out/serving_server"),
        "--local",
        str(tmp_path / "hub"),
    ]
    done = CliRunner().invoke(app, [*live, "--json"], catch_exceptions=False)
    assert "model.pdmodel" in json.loads(done.stdout)["written"]
    assert CliRunner().invoke(app, ["serving", "hot-load", "ctr"]).exit_code == 2


def test_clients_are_told_their_servers(packed, tmp_path, hub):
    """As upstream's clients read them: weights in the order of the variants."""
    bundle = packed()

    def predictor(*options):
        arguments = [
            "serving",
            "export",
            "ctr:1",
            "--output",
            str(tmp_path / f"out{len(options)}"),
            "--local",
            str(hub.root),
        ]
        done = CliRunner().invoke(app, [*arguments, "--port", "9494", *options])
        assert done.exit_code == 0, done.output
        text = (tmp_path / f"out{len(options)}" / "serving_client/predictors.prototxt").read_text()
        (found,) = conf.read_text(conf.SDKConf, text, "it").predictors
        clusters = {variant.tag: variant.naming_conf.cluster for variant in found.variants}
        return found.endpoint_router, found.weighted_random_render_conf.variant_weight_list, clusters

    assert bundle.version == "1"
    assert predictor() == ("WeightedRandomRender", "100", {"default": "list://127.0.0.1:9494"})
    chosen = ("--variant", "a:10:10.0.0.1:9494", "--variant", "b:90:10.0.0.2:9494,10.0.0.3:9494")
    clusters = {"a": "list://10.0.0.1:9494", "b": "list://10.0.0.2:9494,10.0.0.3:9494"}
    assert predictor(*chosen) == ("WeightedRandomRender", "10|90", clusters)
    bad = CliRunner().invoke(
        app, ["serving", "export", "ctr:1", "--output", "x", "--local", str(hub.root), "--variant", "a:b"]
    )
    assert bad.exit_code == 2
