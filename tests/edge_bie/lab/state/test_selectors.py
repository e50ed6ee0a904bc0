from __future__ import annotations

import pytest

from cloudedge.edge_bie.lab.state.selectors import matches, parse

pytestmark = pytest.mark.rules

LABELS = {"ring": "canary", "team.example/app": "x", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", True), ("ring=canary", True), ("ring==canary", True), ("ring!=canary", False), ("none!=x", True),
        ("ring in (a, canary)", True), ("ring notin (a,canary)", False), ("none notin (a)", True), ("ring", True),
        ("!ring", False), ("! none", True), ("ring=canary,team.example/app=x", True), ("ring=canary,none", False),
        ("empty=", True), ("ring=", False), ("none=", False), ("ring in (a),ring", False),
    ],
)  # fmt: skip
def test_a_selector_matches(selector, expected):
    assert matches(selector, LABELS) is expected


@pytest.mark.parametrize("selector", ["=", ",", "a b", "a=b=c", "a in b", "a in (b", "!!a", "a,,b", "-a=b", "a>b"])
def test_nothing_matches_nonsense(selector):
    assert parse(selector) is None
    assert not matches(selector, LABELS)
