"""What a server dropped is found, whatever else it changed."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudedge.kube import dropped

pytestmark = pytest.mark.rules

NAMES = st.text("abc", min_size=1, max_size=3)
LEAVES = st.integers(1, 9) | st.text("xyz", min_size=1, max_size=3) | st.just(True)
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(NAMES, inner, min_size=1) | st.lists(inner, min_size=1, max_size=3),
    max_leaves=12,
)
SPECS = st.dictionaries(NAMES, OBJECTS, min_size=1)

CASES = {
    "nothing lost": ({"spec": {"a": 1}}, {"spec": {"a": 1, "b": 2}}, []),
    "changed is not lost": ({"spec": {"cpu": "1000m"}}, {"spec": {"cpu": "1"}}, []),
    "a typing error": ({"spec": {"cleanPolicy": "Always"}}, {"spec": {}}, ["spec.cleanPolicy"]),
    "the whole spec": ({"spec": {"a": 1}}, {}, ["spec"]),
    "deep": ({"spec": {"a": {"b": {"c": 1}}}}, {"spec": {"a": {"b": {}}}}, ["spec.a.b.c"]),
    "in a list": ({"c": [{"name": "m", "x": 1}]}, {"c": [{"name": "m"}]}, ["c[0].x"]),
    "somebody added before": ({"c": [{"name": "m", "x": 1}]}, {"c": [{"name": "side"}, {"name": "m", "x": 1}]}, []),
    "somebody added before, and one lost": (
        {"c": [{"name": "m", "x": 1}]},
        {"c": [{"name": "side", "x": 1}, {"name": "m"}]},
        ["c[0].x"],
    ),
    "without names": ({"ports": [{"port": 1, "x": 2}]}, {"ports": [{"port": 9}, {"port": 1}]}, ["ports[0].x"]),
    "an item lost": ({"c": [{"name": "m"}]}, {"c": []}, ["c[0]"]),
    "null says remove": ({"spec": {"canary": None}}, {"spec": {}}, []),
    "nulls below say remove": ({"spec": {"canary": {"tag": None}}}, {"spec": {}}, []),
    "an empty mapping and custom": ({"spec": {"x": {}}}, {"spec": {}}, ["spec.x"]),
    "an annotation taken away": ({"metadata": {"annotations": {"a": None}}}, {"metadata": {"name": "m"}}, []),
    "no labels": ({"metadata": {"labels": {}, "name": "m"}}, {"metadata": {"name": "m"}}, []),
    "a misspelt label": ({"metadata": {"lables": {"a": "b"}}}, {"metadata": {"name": "m"}}, ["metadata.lables"]),
    "secrets come back encoded": ({"stringData": {"k": "v"}}, {"data": {"k": "dg=="}}, []),
    "status is not ours": ({"status": {"phase": "x"}}, {}, []),
    "empty and custom": ({"spec": {"x": ""}}, {"spec": {}}, ["spec.x"]),
    "zero and custom": ({"spec": {"x": 0}}, {"spec": {}}, ["spec.x"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_lost(name):
    sent, got, lost = CASES[name]
    assert dropped(sent, got, is_custom=True) == lost


def test_the_servers_own_kinds_leave_out_what_is_empty():
    sent = {"spec": {"a": 0, "b": "", "c": False, "d": [], "e": {}, "f": {"g": 0}, "h": 1}}
    assert dropped(sent, {"spec": {}}, is_custom=False) == ["spec.h"]


@settings(max_examples=40)
@given(SPECS)
def test_nothing_is_lost_of_what_came_back(spec):
    assert dropped({"spec": spec}, {"spec": spec, "status": {}}, is_custom=True) == []


@settings(max_examples=40)
@given(SPECS, st.data())
def test_every_lost_field_is_found(spec, data):
    got = copy.deepcopy(spec)
    node, path = got, "spec"
    while True:
        key = data.draw(st.sampled_from(sorted(node)))
        if not isinstance(node[key], dict) or data.draw(st.booleans()):
            break
        node, path = node[key], f"{path}.{key}"
    del node[key]
    assert dropped({"spec": spec}, {"spec": got}, is_custom=True) == [f"{path}.{key}"]
