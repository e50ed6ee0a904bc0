"""Models split for real, and asked again without the splitter: numpy looks rows up, Paddle runs the dense program."""

import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file

from cloudedge.bundle import Bundle, SplitModel, plan_split, split
from cloudedge.errors import Conflict, InputError, NotFound

pytestmark = pytest.mark.parts

networks = pytest.importorskip("tests.bundle.splitting.networks", reason="needs paddlepaddle")
paddle = networks.paddle

VOCABULARY = 20
"""Fewer than any table has: every made-up id is in all of them."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Save a network when it is first asked for."""
    folder, done = tmp_path_factory.mktemp("saved"), {}

    def save(network):
        if network not in done:
            maker = networks.save_old if isinstance(network, str) else networks.save
            done[network] = maker(network, folder)
        return done[network]

    return save


def made_up(signature, rows, length, seed):
    random = np.random.default_rng(seed)
    feed = {}
    for variable in signature.feed:
        shape = [rows, *(length if size < 0 else size for size in variable.shape)]
        if variable.dtype == "float32":
            feed[variable.name] = random.random(shape, np.float32)
        else:
            feed[variable.name] = random.integers(0, VOCABULARY, shape).astype(variable.dtype)
            feed[variable.name][..., length // 2 + 1 :] = 0
    return feed


def with_rows(model, feed):
    """Look rows up the way a reader of the format would, without the splitter's code."""
    tables = {name: load_file(path) for name, path in model.tables.items()}
    inputs = dict(feed)
    for lookup in model.signature.lookups:
        ids, table = feed[lookup.feed], tables[lookup.table]
        rows = np.zeros((*ids.shape, table["values"].shape[1]), np.float32)
        for place in np.ndindex(ids.shape):
            if ids[place] != lookup.padding_id:
                (at,) = np.flatnonzero(table["keys"] == ids[place])
                rows[place] = table["values"][at]
        inputs[lookup.input] = rows
    return inputs


def assert_same_answers(model, whole):
    for rows, length, seed in ((1, 1, 1), (5, 3, 2), (2, 8, 3)):
        feed = made_up(model.signature, rows, length, seed)
        expected = networks.predict(whole, feed)
        found = networks.predict(model.folder / "model", with_rows(model, feed))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert np.abs(one - other).max() < 1e-5
    for probe in model.probes.requests:
        feed = {v.name: np.array(probe.feed[v.alias or v.name], v.dtype) for v in model.signature.feed}
        found = networks.predict(model.folder / "model", with_rows(model, feed))
        for variable, array in zip(model.signature.fetch, found, strict=True):
            expected = np.array(probe.expect[variable.alias or variable.name], np.float32)
            assert np.abs(array - expected).max() <= probe.tolerance


SPLITS = {
    networks.WideDeep: {"embedding_0.w_0": (60, 1), "embedding_1.w_0": (60, 6)},
    networks.DeepFM: {"embedding_0.w_0": (80, 1), "embedding_1.w_0": (80, 5)},
    networks.SharedTable: {"embedding_0.w_0": (50, 8)},
    networks.History: {"embedding_0.w_0": (70, 8), "embedding_1.w_0": (90, 3)},
    networks.Moved: {"embedding_0.w_0": (40, 4), "embedding_1.w_0": (30, 2)},
    networks.NoEmbeddings: {},
    networks.NoParameters: {},
    "bare": {},
    "plain": {"embedding_0.w_0": (50, 8), "embedding_1.w_0": (40, 3)},
}


def suffix_of(parameter):
    """Parameters are numbered across a process; what tells them apart in a network is their order."""
    return int(parameter.split("_")[1].split(".")[0])


@pytest.mark.parametrize("network", SPLITS, ids=lambda n: n if isinstance(n, str) else n.__name__)
def test_pieces_answer_as_the_whole_does(network, saved, tmp_path):
    whole = saved(network)
    model = split(whole, tmp_path / "out")
    shapes = [load_file(model.tables[name])["values"].shape for name in sorted(model.tables, key=suffix_of)]
    assert shapes == list(SPLITS[network].values())
    for path in model.tables.values():
        table = load_file(path)
        assert table["keys"].dtype == np.uint64
        assert (table["keys"] == np.arange(len(table["values"]))).all()
    assert model.report.max_abs_difference < 1e-5
    assert model.report.requests >= 4
    saved_bytes = sum(rows * dim * 4 for rows, dim in shapes)
    assert model.report.whole_bytes - model.report.dense_bytes >= saved_bytes
    assert_same_answers(model, whole)


def test_order_inputs_and_padding_are_recorded(saved, tmp_path):
    model = split(saved(networks.History), tmp_path / "out", fetch_aliases={"fetch_name_0": "score"})
    items, users = sorted(model.tables, key=suffix_of)
    assert [(v.name, v.dtype, v.shape) for v in model.signature.feed] == [
        ("hist", "int32", (-1,)),
        ("item", "int32", ()),
        ("user", "int64", (1,)),
    ]
    # Two look-ups of one slot in one table are one: the rows are the same.
    assert [(x.feed, x.table, x.padding_id) for x in model.signature.lookups] == [
        ("hist", items, 0),
        ("item", items, 0),
        ("user", users, 89),
    ]
    (fetch,) = model.signature.fetch
    assert (fetch.name, fetch.alias, fetch.shape) == ("fetch_name_0", "score", (1,))
    assert all(set(probe.expect) == {"score"} for probe in model.probes.requests)
    assert any(0 in np.array(probe.feed["hist"]) for probe in model.probes.requests)


def test_it_packs_as_it_is(saved, tmp_path, hub):
    model = split(saved(networks.WideDeep), tmp_path / "out", table_names={}, seed=3)
    bundle = Bundle.pack(
        model.folder, name="ctr", sparse=model.tables, signature=model.signature, probes=model.probes, hub=hub
    )
    assert sorted(bundle.dense) == ["model.json", "model.pdiparams"]
    assert set(bundle.sparse) == {lookup.table for lookup in bundle.signature.lookups}
    assert bundle.signature == model.signature
    assert len(bundle.probes.requests) == 3
    assert SplitModel.open(tmp_path / "out") == model
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "dense", "probes.json", "report.json", "signature.json", "tables",
    ]  # fmt: skip


def test_a_live_layer_is_split_and_left_as_it_was(tmp_path):
    layer = networks.WideDeep()
    layer.train()
    before = {name: value.numpy().copy() for name, value in layer.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = split(layer, tmp_path / "out", input_spec=networks.WideDeep.specs())
    assert paddle.in_dynamic_mode()
    assert all(each.training for each in layer.sublayers(include_self=True))
    assert all((before[name] == value.numpy()).all() for name, value in layer.state_dict().items())
    layer.eval()
    feed = made_up(model.signature, 4, 1, 5)
    expected = layer(*(paddle.to_tensor(feed[v.name]) for v in model.signature.feed)).numpy()
    (found,) = networks.predict(model.folder / "model", with_rows(model, feed))
    assert np.abs(found - expected).max() < 1e-5


def test_a_table_that_something_else_reads_stays(saved, tmp_path):
    whole = saved(networks.Tied)
    model = split(whole, tmp_path / "out")
    words, tags = sorted([*model.report.kept, *model.tables], key=suffix_of)
    assert list(model.tables) == [tags]
    assert model.report.kept == {words: "also read by pd_op.matmul"}
    assert_same_answers(model, whole)


def test_an_old_program_keeps_a_tied_table_too(saved, tmp_path):
    model = split(saved("tied"), tmp_path / "out")
    assert model.report.kept == {"embedding_1.w_0": "also read by matmul_v2"}
    assert list(model.tables) == ["embedding_0.w_0"]
    assert (model.folder / "model.pdmodel").exists()
    assert_same_answers(model, saved("tied"))


REFUSED = {
    networks.Hashed: r"pd_op\.embedding in 'embedding_\d+\.w_0' .* come from pd_op\.remainder \(of raw",
    networks.Positions: r"come from pd_op\.arange",
    networks.Half: "its rows are float64",
    networks.FloatIds: r"come from pd_op\.cast \(of ids\)",
    networks.Branched: r"pd_op\.embedding in 'embedding_\d+\.w_0' .* inside a branch or a loop, pd_op\.if,",
    "looped": r"lookup_table_v2 in 'embedding_1\.w_0' .* inside a branch or a loop, while,",
    "hashed": r"lookup_table_v2 in 'embedding_1\.w_0' .* come from scale \(scale_0\.tmp_0\)",
}


@pytest.mark.parametrize("network", REFUSED, ids=lambda n: n if isinstance(n, str) else n.__name__)
def test_what_cannot_be_cut_is_refused_by_name(network, saved):
    with pytest.raises(InputError, match=REFUSED[network]) as refused:
        plan_split(saved(network))
    assert f"--keep {refused.value.parameter}" in refused.value.hint


@pytest.mark.parametrize("network", ["hashed", "looped", networks.Branched], ids=str)
def test_what_cannot_be_cut_can_be_kept(network, saved, tmp_path):
    whole = saved(network)
    with pytest.raises(InputError) as refused:
        plan_split(whole)
    kept = refused.value.parameter
    model = split(whole, tmp_path / "out", keep=[kept])
    assert model.report.kept == {kept: "asked for"}
    assert len(model.tables) == 1
    assert_same_answers(model, whole)


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        (networks.Foreign, r"pd_op\.c_embedding in 'embedding_\d+\.w_0' cannot be split off: .* devices"),
        ("foreign", r"c_embedding in 'embedding_0\.w_0' cannot be split off"),
    ],
    ids=["PIR", "old"],
)
def test_look_ups_of_other_kinds_are_refused_by_name(network, problem, saved):
    with pytest.raises(InputError, match=problem):
        plan_split(saved(network))


@pytest.mark.parametrize("network", [networks.WideDeep, "plain"], ids=["PIR", "old"])
def test_parameters_that_are_not_there_are_missed(network, saved, tmp_path):
    for program in saved(network).parent.glob("model.*"):
        if program.suffix != ".pdiparams":
            (tmp_path / program.name).write_bytes(program.read_bytes())
    with pytest.raises(InputError, match="no parameters beside it"):
        plan_split(tmp_path / "model")


def test_parameters_in_pieces_and_another_json_beside_them(saved, tmp_path):
    whole = saved(networks.SharedTable)
    parameters = whole.with_suffix(".pdiparams").read_bytes()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.json").write_bytes(whole.with_suffix(".json").read_bytes())
    (tmp_path / "model/labels.json").write_text("{}")
    for number, piece in enumerate((parameters[:1000], parameters[1000:])):
        (tmp_path / f"model/model.{number}.pdiparams").write_bytes(piece)
    model = split(tmp_path / "model", tmp_path / "out")
    assert_same_answers(model, whole)


def test_samples_replace_what_is_made_up(saved, tmp_path):
    whole = saved(networks.Shifted)
    samples = tmp_path / "samples.npz"
    np.savez(samples, ids=np.arange(12), dense=np.full((12, 4), 2, np.float32))
    model = split(whole, tmp_path / "out", samples=samples)
    assert [len(probe.feed["ids"]) for probe in model.probes.requests] == [4]
    assert model.report.rows == 16
    np.savez(samples, ids=np.arange(12), dense=np.zeros((12, 4), np.float32))
    with pytest.raises(InputError, match="with NaN"):
        split(whole, tmp_path / "other", samples=samples)
    np.savez(samples, ids=np.array([31]), dense=np.ones((1, 4), np.float32))
    with pytest.raises(InputError, match="the whole model does not answer"):
        split(whole, tmp_path / "other", samples=samples)
    assert not (tmp_path / "other").exists()


def test_an_output_that_exists_is_left_alone(saved, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(Conflict):
        split(saved(networks.NoEmbeddings), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_program_under_the_wrong_name_is_refused(saved, tmp_path):
    whole = saved(networks.NoEmbeddings)
    (tmp_path / "model.pdmodel").write_bytes(whole.with_suffix(".json").read_bytes())
    (tmp_path / "model.pdiparams").write_bytes(whole.with_suffix(".pdiparams").read_bytes())
    with pytest.raises(InputError, match=r"model\.pdmodel"):
        split(tmp_path / "model.pdmodel", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model", ["nothing", "nothing.json", "."])
def test_no_model_is_an_error(model, tmp_path):
    with pytest.raises(InputError, match="one program"):
        split(tmp_path / model, tmp_path / "out")
    with pytest.raises(NotFound):
        SplitModel.open(tmp_path)
