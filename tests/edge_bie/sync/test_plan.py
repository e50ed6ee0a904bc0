"""Plans: from every state to every other, whose things are touched, and what stands in the way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudedge.edge_bie.client import Config, File, Registry, Text
from cloudedge.edge_bie.sync import ObservedAccount, plan
from tests.edge_bie.sync.samples import app, config, desired, there

pytestmark = pytest.mark.rules

KINDS = ("config", "secret", "registry", "app", "node")


@pytest.fixture(autouse=True)
def _secrets(monkeypatch):
    monkeypatch.setenv("TOKEN", "t0p-s3cret")
    monkeypatch.setenv("PASSWORD", "p4ss-s3cret")


def everything(text="hello", label="1", named="ours"):
    return desired(
        config(text=text),
        {"kind": "config", "name": "model", "files": {"m.zip": {"url": "https://x/m.zip", "md5": "0" * 32}}},
        {"kind": "secret", "name": "keys", "values": {"token": "env:TOKEN"}},
        {"kind": "registry", "name": "images", "address": "r.example", "username": "u", "password": "env:PASSWORD"},
        app(selector="serves=x", registries=["images"]),
        {"kind": "node", "name": "n1", "labels": {"serves": label, "old": None}},
        named=named,
    )


def steps(planned):
    return [(step.verb, step.kind, step.name) for step in planned.steps]


def test_what_is_applied_is_in_sync():
    state = everything()
    assert plan(state, there(state)).is_in_sync
    assert plan(state, there(state), adopt=True, delete=True).is_in_sync


def test_from_nothing_in_order():
    state = everything()
    planned = plan(state, ObservedAccount(labels={"n1": {}}))
    assert steps(planned) == [
        ("create", "config", "greeting"),
        ("create", "config", "model"),
        ("create", "secret", "keys"),
        ("create", "registry", "images"),
        ("create", "app", "serving"),
        ("label", "node", "n1"),
    ]
    assert "s3cret" not in repr(planned)


def test_a_change_says_what_changes():
    planned = plan(everything(text="new", label="2"), there(everything()))
    assert steps(planned) == [("update", "config", "greeting"), ("label", "node", "n1")]
    (difference,) = planned.steps[0].differences
    assert (difference.path, difference.old, difference.new) == ("data.a.value", "hello", "new")
    (difference,) = planned.steps[1].differences
    assert (difference.path, difference.old, difference.new) == ("serves", "1", "2")


def test_a_label_to_take_away_is_a_change_only_if_it_is_there():
    state = everything()
    planned = plan(state, there(state, labels={"n1": {"serves": "1", "old": "x", "other": "y"}}))
    assert [d.path for d in planned.steps[0].differences] == ["old"]


def test_a_secret_that_changed_is_not_shown(monkeypatch):
    before = everything()
    monkeypatch.setenv("TOKEN", "an0ther-s3cret")
    planned = plan(everything(), there(before))
    assert steps(planned) == [("update", "secret", "keys")]
    assert "s3cret" not in repr(planned)


PASSWORDS = {
    "known and the same": (True, []),
    "known and another": (False, ["refresh"]),
    "unknown": (None, ["refresh"]),
}


@pytest.mark.parametrize(("known", "expected"), PASSWORDS.values(), ids=PASSWORDS)
def test_a_password_nobody_can_read_back(known, expected):
    state = everything()
    observed = there(state, passwords={} if known is None else {"images": known})
    assert [step.verb for step in plan(state, observed).steps] == expected


def test_null_keeps_what_is_there():
    state = desired({"kind": "secret", "name": "keys", "values": {"token": None}})
    held = everything().secrets["keys"]
    assert plan(state, ObservedAccount(secrets={"keys": held})).is_in_sync
    planned = plan(state, ObservedAccount())
    assert planned.problems == ("secret keys has no token to keep: give env:NAME or file:PATH",)
    bucket = {"kind": "config", "name": "m2", "files": {"x": {"source": "awss3", "extra": {"ak": None, "bucket": "b"}}}}
    found = Config("m2", {"x": File(source="awss3", extra={"ak": "AK-s3cret", "bucket": "b"})})
    planned = plan(desired(bucket), ObservedAccount(configs={"m2": found}))
    assert planned.is_in_sync


def test_nobodys_objects_are_taken_over_only_when_asked_for():
    state = desired(config(text="new"))
    same, other = Config("greeting", {"a": Text("new")}), Config("greeting", {"a": Text("old")})
    assert plan(state, ObservedAccount(configs={"greeting": same})).is_in_sync
    assert steps(plan(state, ObservedAccount(configs={"greeting": same}), adopt=True)) == [
        ("adopt", "config", "greeting")
    ]
    refused = plan(state, ObservedAccount(configs={"greeting": other}))
    assert not refused.steps
    assert refused.problems == ("config greeting differs and is not cloudedge's; take it over with `--adopt`",)
    assert steps(plan(state, ObservedAccount(configs={"greeting": other}), adopt=True)) == [
        ("update", "config", "greeting")
    ]


def test_another_sets_objects_are_never_touched():
    theirs = there(everything(text="theirs", named="theirs"))
    planned = plan(everything(), theirs, adopt=True, delete=True)
    assert not [step for step in planned.steps if step.kind == "config"]
    assert planned.problems == ("config greeting differs and belongs to set theirs, not to set ours",)
    fleet = {"greeting": Config("greeting", {}, labels={"cloudedge": "owned"})}
    assert "cloudedge's fleets" in plan(everything(), ObservedAccount(configs=fleet), adopt=True).problems[0]
    assert plan(desired(), replace(theirs, labels={}), delete=True).is_in_sync


def test_deletes_are_off_unless_asked_for_and_go_the_other_way_round():
    before = everything()
    after = desired({"kind": "node", "name": "n1", "labels": {"serves": "1"}})
    users = {("config", "greeting"): frozenset({"serving"}), ("registry", "images"): frozenset({"serving"})}
    observed = there(before, users=users)
    planned = plan(after, observed)
    assert planned.is_in_sync
    assert any("app serving is no longer in the documents; delete it with `--delete`" in note for note in planned.notes)
    planned = plan(after, observed, delete=True)
    assert steps(planned) == [
        ("delete", "app", "serving"),
        ("delete", "registry", "images"),
        ("delete", "secret", "keys"),
        ("delete", "config", "greeting"),
        ("delete", "config", "model"),
    ]


def test_what_an_app_mounts_is_never_deleted():
    observed = there(everything(), users={("config", "model"): frozenset({"somebody-elses"})})
    state = desired(config(), app(selector="serves=x"))
    planned = plan(state, observed, delete=True)
    assert ("delete", "config", "model") not in steps(planned)
    assert "config model is no longer in the documents and stays: app somebody-elses mounts it" in planned.notes


def test_what_an_app_of_ours_mounts_after_the_change_is_what_counts():
    observed = there(everything(), users={("config", "greeting"): frozenset({"serving"})})
    moved = desired(config("other"), app(mounts="other", selector="serves=x"))
    assert ("delete", "config", "greeting") in steps(plan(moved, observed, delete=True))
    still = desired(app(selector="serves=x"))
    assert ("delete", "config", "greeting") not in steps(plan(still, observed, delete=True))


def test_what_the_state_before_mounts_stays_for_going_back():
    observed = there(everything(), previous=frozenset({("config", "model")}))
    planned = plan(desired(config()), observed, delete=True)
    assert ("delete", "config", "model") not in steps(planned)
    assert "config model is no longer in the documents and stays: the previous state needs it" in planned.notes


def test_an_app_on_an_older_version_is_written_again():
    state = everything()
    found = replace(state.configs["greeting"], version="2")
    late = replace(state.apps["serving"], volumes=(replace(state.apps["serving"].volumes[0], version="1"),))
    observed = there(state)
    observed = replace(
        observed, configs={**observed.configs, "greeting": found}, apps={**observed.apps, "serving": late}
    )
    assert steps(plan(state, observed)) == [("repin", "app", "serving")]
    changed = everything(text="new")
    assert steps(plan(changed, observed)) == [("update", "config", "greeting")], "which brings the app along"


def test_an_app_on_an_older_version_of_a_secret_is_written_again(monkeypatch):
    monkeypatch.setenv("TOKEN", "t")
    secret = {"kind": "secret", "name": "keys", "values": {"token": "env:TOKEN"}}
    volumes = [{"name": "vol", "secret": {"name": "keys"}}]
    state = desired(secret, app(volumes=volumes))
    observed, serving = there(state), state.apps["serving"]
    pinned = replace(serving, volumes=(replace(serving.volumes[0], version="1"),))
    observed = replace(
        observed, secrets={"keys": replace(state.secrets["keys"], version="2")}, apps={"serving": pinned}
    )
    assert steps(plan(state, observed)) == [("repin", "app", "serving")]


def test_nodes_that_were_not_told_are_a_difference():
    state = everything()
    (step,) = plan(state, there(state, untold={"serving": ("n1", "n2")})).steps
    assert (step.verb, step.name, step.reason) == ("tell", "serving", "2 nodes were not assigned it, such as n1")


PROBLEMS = {
    "no node": (lambda o: replace(o, labels={}), "node n1 does not exist; create it with `cloudedge bie node n1`"),
    "another type": (
        lambda o: replace(o, apps={"serving": replace(o.apps["serving"], type="function")}),
        "app serving: BIE cannot change type or mode; give the new one another name",
    ),
    "another address": (
        lambda o: replace(o, registries={"images": replace(o.registries["images"], address="elsewhere")}),
        "registry images: BIE cannot change address or user; give the new one another name",
    ),
}


@pytest.mark.parametrize(("change", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_stands_in_the_way(change, problem):
    state = everything()
    assert plan(state, change(there(state))).problems == (problem,)


def test_a_mount_of_nothing_and_a_registry_without_a_password():
    assert plan(desired(app()), ObservedAccount()).problems == (
        "app serving needs config greeting, which does not exist",
    )
    state = desired({"kind": "registry", "name": "images", "address": "a", "username": "u"})
    assert plan(state, ObservedAccount()).problems == (
        "registry images does not exist and needs a password to be created",
    )
    assert plan(state, ObservedAccount(registries={"images": Registry("images", "a", "u")})).is_in_sync


names = st.sampled_from(["c1", "c2", "c3"])
texts = st.dictionaries(names, st.sampled_from(["x", "y"]), max_size=3)


@settings(max_examples=60)
@given(texts, texts, st.booleans(), st.booleans())
def test_carrying_out_a_plan_brings_it_about(before, after, delete, foreign):
    """From any set of configs to any other: after the steps nothing is left to do, and nothing foreign was touched."""
    wanted = desired(*(config(name, text) for name, text in after.items()))
    first = desired(*(config(name, text) for name, text in before.items()), named="theirs" if foreign else "ours")
    configs = dict(there(first).configs)
    planned = plan(wanted, ObservedAccount(configs=configs), delete=delete)
    for step in planned.steps:
        if step.verb == "delete":
            del configs[step.name]
        else:
            configs[step.name] = wanted.configs[step.name]
    again = plan(wanted, ObservedAccount(configs=configs), delete=delete)
    assert not again.steps
    assert again.problems == planned.problems
    assert set(planned.problems) == {
        f"config {name} differs and belongs to set theirs, not to set ours"
        for name in after
        if foreign and before.get(name, after[name]) != after[name]
    }
    kept = {name for name in before if foreign or not delete or name in after}
    assert kept <= set(configs)
