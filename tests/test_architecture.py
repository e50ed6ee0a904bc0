"""docs/ARCHITECTURE.md is true: rooms and imports are the package's, and each function of a walk calls the next."""

import ast
import itertools
import re
from pathlib import Path

import pytest
import tomllib

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/ARCHITECTURE.md"
HANDED_OVER = "⇢"
"""Marks a function that the one before does not call itself: a thread, a process or a port lies between them."""
ROW = re.compile(rf"^\| ({HANDED_OVER} )?\[`([\w.]+)`\]\(\.\./([\w/.]+)\) \|", re.MULTILINE)
MOST_HOPS = 66
"""Functions between the trainer and the answer. It only falls: who adds one takes another away."""


def walks():
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    found = {section.splitlines()[0]: ROW.findall(section) for section in sections}
    return {title: rows for title, rows in found.items() if rows}


def definition(path, dotted):
    """Find a function or a method, `name` or `Class.name`, in a Python file."""
    node = ast.parse((ROOT / path).read_text())
    for name in dotted.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        node = next((each for each in ast.walk(node) if isinstance(each, kinds) and each.name == name), None)
        assert node is not None, f"{path} has no {dotted}"
    return node


def mentions(node):
    """Return every name that a function calls or hands on."""
    names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return names | {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


STEPS = [
    pytest.param(before, after, id=f"{title}: {before[1]} -> {after[1]}")
    for title, rows in walks().items()
    for before, after in itertools.pairwise(rows)
]


def test_there_are_three_walks():
    assert len(walks()) == 3


@pytest.mark.parametrize(("before", "after"), STEPS)
def test_each_function_of_a_walk_calls_the_next(before, after):
    _, caller, caller_path = before
    handed_over, called, called_path = after
    if called_path.endswith(".py"):
        definition(called_path, called)
    else:
        assert re.search(rf"\b{called.split('.')[-1]}\(", (ROOT / called_path).read_text())
    if handed_over:
        return
    name = called.removesuffix(".__init__").split(".")[-1]
    if caller_path.endswith(".py"):
        assert name in mentions(definition(caller_path, caller)), f"{caller} does not call {called}"
    else:
        assert re.search(rf"\b{name}\b", (ROOT / caller_path).read_text())


def test_the_walk_of_a_row_does_not_grow():
    (rows,) = (rows for title, rows in walks().items() if "row" in title)
    assert len(rows) <= MOST_HOPS


def test_a_room_may_import_what_its_contract_allows():
    """The last column of the table of rooms, against the layers in pyproject.toml."""
    table = dict(re.findall(r"^\| `cloudedge/([\w/]+)/` \|.*\| (.*?) ?\|$", PAGE.read_text(), flags=re.MULTILINE))
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    for contract in (each for each in contracts if each["type"] == "layers"):
        (container,) = contract["containers"]
        below: list[str] = []
        for layer in reversed(contract["layers"]):
            names = [name.strip(" ()") for name in layer.split("|")]
            rooms = [f"{container}.{name}".removeprefix("cloudedge.").replace(".", "/") for name in names]
            wanted = ", ".join(f"`{name}`" for name in below if not name.startswith("_"))
            for room in set(rooms) & set(table):
                assert table[room] == ("the layers below" if container == "cloudedge" else wanted), room
            below = names + below


def test_the_rooms_are_those_that_the_page_draws():
    drawn = set(re.findall(r"^\| `cloudedge/([\w/]+)/`", PAGE.read_text(), flags=re.MULTILINE))
    packages = {
        path.parent.relative_to(ROOT / "cloudedge").as_posix() for path in (ROOT / "cloudedge").rglob("__init__.py")
    } - {"."}
    assert drawn == packages
