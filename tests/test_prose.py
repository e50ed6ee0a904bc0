"""The package's words: docstrings name their subject, no actor is left out, hints have one form."""

import ast
import re

import pytest

from tests import ROOT

pytestmark = pytest.mark.rules

FILES = sorted((ROOT / "cloudedge").rglob("*.py"))
VAGUE = re.compile(r"\b(somebody|someone|nobody|whoever|told)\b", re.IGNORECASE)
CLAUSE = re.compile(r"^(What|Who|Where|Whether|How|When|Which|Whose) ")


def texts(tree):
    """Yield every docstring and every string of a file, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_words_of_a_module(path):
    source = path.read_text()
    tree = ast.parse(source)
    wrong = [f"line {at}: {found.group()}" for at, text in texts(tree) if (found := VAGUE.search(text))]
    wrong += [
        f"line {at}: {line.strip()}"
        for at, line in enumerate(source.splitlines(), 1)
        if "#" in line and VAGUE.search(line.partition("#")[2])
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            opening = (ast.get_docstring(node) or "").partition("\n")[0]
            if CLAUSE.match(opening):
                wrong.append(f"line {getattr(node, 'lineno', 1)}: opens with a clause: {opening}")
    assert not wrong, "\n".join(wrong)


def hints():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.keyword)
                and node.arg == "hint"
                and isinstance(node.value, ast.Constant)
                and node.value.value
            ):
                yield pytest.param(node.value.value, id=f"{path.relative_to(ROOT)}:{node.value.lineno}")


@pytest.mark.parametrize("hint", list(hints()))
def test_a_hint_is_a_sentence(hint):
    assert re.match(r"[A-Z`]", hint), hint
    assert hint.endswith((".", "`", ":", "?", "!")), hint
