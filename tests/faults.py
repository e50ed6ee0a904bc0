"""The table of faults in the documentation, made of the tests that prove each line.

A test that provokes a fault on real parts says so with `proves_fault`: what fails, what users notice, and what to type.
``python -m tests.faults`` writes ``docs/reference/faults.md`` from all of them; a test compares the page.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

__all__ = ["PAGE", "Fault", "collect", "proves_fault", "render"]

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "reference" / "faults.md"
AREAS = ("release", "servers", "edge", "bundles and hubs", "journal", "strangers")
_Test = TypeVar("_Test", bound=Callable[..., object])


def proves_fault(*, area: str, fault: str, happens: str, cure: str) -> Callable[[_Test], _Test]:
    """Mark a test as the proof of a line in the table.

    Args:
        area: One of `AREAS`.
        fault: What fails.
        happens: What users notice.
        cure: What to type or do; "nothing" where it mends itself.
    """
    assert area in AREAS
    assert fault
    assert happens
    assert cure
    return lambda test: test


@dataclass(frozen=True)
class Fault:
    """A line of the table."""

    area: str
    fault: str
    happens: str
    cure: str
    test: str
    """``tests/....py::test_name``."""


def collect(folder: Path = _ROOT / "tests") -> list[Fault]:
    """Find every marked test by reading the sources; nothing is imported."""
    found = [fault for path in sorted(folder.rglob("test_*.py")) for fault in _in_file(path)]
    return sorted(found, key=lambda fault: (AREAS.index(fault.area), fault.fault))


def _in_file(path: Path) -> Iterator[Fault]:
    source = path.read_text(encoding="utf-8")
    if "proves_fault" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        for call in getattr(node, "decorator_list", ()):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "proves_fault":
                fields = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
                yield Fault(**fields, test=f"{path.relative_to(_ROOT).as_posix()}::{node.name}")


def render(faults: list[Fault]) -> str:
    """Return the page."""
    lines = [
        "# Faults",
        "",
        "What fails, what users notice, and what to type. Every line is proved by a test that provokes the fault on",
        "real processes or files; the page is made of those tests (`python -m tests.faults`).",
    ]
    for area in AREAS:
        of_area = [fault for fault in faults if fault.area == area]
        if not of_area:
            continue
        lines += [
            "",
            f"## {area.capitalize()}",
            "",
            "| fault | what happens | what to type | proof |",
            "|---|---|---|---|",
        ]
        lines += [f"| {each.fault} | {each.happens} | {each.cure} | `{each.test}` |" for each in of_area]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(collect()), encoding="utf-8")
