"""The decisions of a split, without Paddle."""

import numpy as np
import pytest

from cloudedge.bundle.splitting._cut_plan import Concat, Feed, Graph, Move, Site, Slot, Unknown, plan_cuts
from cloudedge.bundle.splitting._trace_ids import INPUT, Origin, trace
from cloudedge.bundle.splitting._verify import compare
from cloudedge.errors import InputError

pytestmark = pytest.mark.rules


class Values:
    """A program as a table: value -> (origin, dtype, rank)."""

    def __init__(self, **values):
        self.values = values

    def origin(self, value):
        return self.values[value][0]

    def dtype(self, value):
        return self.values[value][1]

    def rank(self, value):
        return self.values[value][2]


def chain(kind, *, arguments=None, dtype="int64", fed="int64", rank=2):
    return Values(
        ids=(Origin("data", "ids", INPUT), fed, rank),
        out=(Origin(f"op.{kind}", "out", kind, ["ids"], arguments), dtype, rank),
    )


IDS = Slot("ids")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (chain("assign"), IDS),
        (chain("cast", fed="int32"), IDS),
        (chain("cast", fed="uint8"), IDS),
        (chain("reshape", arguments=(0, -1)), Move("reshape", (0, -1), IDS)),
        (chain("squeeze", arguments=(-1,)), Move("squeeze", (1,), IDS)),
        (chain("unsqueeze", arguments=(-1,)), Move("unsqueeze", (2,), IDS)),
        (chain("unsqueeze", arguments=(-1, -1)), Move("unsqueeze", (2, 3), IDS)),
        (chain("unsqueeze", arguments=(0, -2)), Move("unsqueeze", (0, 2), IDS)),
        (chain("flatten", arguments=(0, -1)), Move("flatten", (0, 1), IDS)),
        (chain("transpose", arguments=(1, 0)), Move("transpose", (1, 0), IDS)),
        (chain("concat", arguments=(-1,)), Concat(1, (IDS,))),
    ],
    ids=lambda case: "",
)
def test_ids_that_were_only_moved_are_followed(program, expected):
    assert trace(program, "out") == expected


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (chain("add"), "it may change the ids"),
        (chain("slice", arguments=(0, 1)), "it may change the ids"),
        (chain("cast", dtype="int32"), "it may change the ids"),
        (chain("cast", fed="int8", dtype="uint8"), "it may change the ids"),
        (chain("cast", fed="bool"), "it may change the ids"),
        (chain("reshape"), "known only when the model runs"),
        (chain("squeeze", arguments=()), "known only when the model runs"),
        (chain("assign", fed="float32"), "may be rounded"),
    ],
    ids=lambda case: "",
)
def test_ids_that_may_have_changed_are_not(program, reason):
    found = trace(program, "out")
    assert isinstance(found, Unknown)
    assert reason in found.reason


def site(parameter="w", ids=IDS, *, padding=-1, dtype="float32"):
    return Site("lookup", parameter, 10, 4, dtype, ids, padding)


def graph(*sites, other=None):
    return Graph((Feed("ids", "int64", (-1, 1)),), (), sites, other or {})


def test_look_ups_share_an_input_if_slot_table_and_padding_are_the_same():
    plan = plan_cuts(graph(site(), site(), site(padding=0), site("v"), site(ids=Slot("other"))))
    assert [(x.feed, x.input, x.table, x.padding_id) for x in plan.lookups] == [
        ("ids", "rows.ids.w", "w", -1),
        ("ids", "rows.ids.w.0", "w", 0),
        ("ids", "rows.ids.v", "v", -1),
        ("other", "rows.other.w", "w", -1),
    ]
    assert [cut.ids for cut in plan.cuts[:3]] == [Slot("rows.ids.w"), Slot("rows.ids.w"), Slot("rows.ids.w.0")]


def test_names_never_collide():
    taken = Graph((Feed("ids", "int64", (-1,)), Feed("rows.ids.w", "float32", (-1, 4))), (), (site(),), {})
    assert plan_cuts(taken).lookups[0].input not in {"ids", "rows.ids.w"}
    with pytest.raises(InputError, match="would both become the table 'a_b'"):
        plan_cuts(graph(site("a/b"), site("a b")))
    assert set(plan_cuts(graph(site("a/b"), site("a b")), names={"a b": "other"}).tables) == {"a_b", "other"}


def test_what_is_kept_is_not_judged():
    unknown = site("w", Unknown("op", "x", "why"))
    with pytest.raises(InputError, match=r"come from op \(x\): why"):
        plan_cuts(graph(unknown))
    assert plan_cuts(graph(unknown), keep=["w"]).kept == {"w": "asked for"}
    tied = plan_cuts(graph(unknown, site("v")), keep=["w"])
    assert list(tied.tables) == ["v"]
    assert plan_cuts(graph(site(), other={"w": "matmul"})).cuts == ()


@pytest.mark.parametrize("options", [{"keep": ["nothing"]}, {"names": {"nothing": "x"}}])
def test_unknown_parameters_are_named(options):
    with pytest.raises(InputError, match=r"'nothing'"):
        plan_cuts(graph(site()), **options)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (np.float32([[1.0, 2.00002]]), "differently from the whole model: by 2e-05"),
        (np.float32([[1.0, np.nan]]), "differently"),
        (np.float32([1.0, 2.0]), "the pieces answer out as"),
        (np.float64([[1.0, 2.0]]), "the pieces answer out as"),
    ],
    ids=["far", "not a number", "shape", "type"],
)
def test_other_answers_are_refused(found, problem):
    expected = np.float32([[1.0, 2.0]])
    assert compare([[expected + np.float32(5e-6)]], [[expected]], ["out"], 1e-5) == pytest.approx(5e-6, rel=0.1)
    with pytest.raises(InputError, match=problem):
        compare([[expected], [found]], [[expected], [expected]], ["out"], 1e-5)
