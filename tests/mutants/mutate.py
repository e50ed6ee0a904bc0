"""Remove one guard at a time from a copy of the package, and see whether the simulator or a named test notices.

A worker has one copy of the package and the tests. It changes one file of the copy, runs the simulator or the guard's
tests there, and puts the file back; the working tree is never touched. The unchanged copy comes first: what it fails
says nothing about a guard.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import cloudedge._core

__all__ = ["UNCHANGED", "Finding", "Guard", "StaleGuardError", "changed", "problems", "run_all", "table"]

ROOT = Path(__file__).parents[2]
_TIME_LIMIT_S = 900.0
_FAILED = 1
"""The exit code of pytest when tests ran and some failed; other codes say that it could not run them."""
_BARE = """# Editable installs find the package in the working tree; in this copy it is the copy that counts.
import sys
sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__name__.startswith("ScikitBuild")]
"""


class StaleGuardError(Exception):
    """A guard does not match the source any more, or what should find it is gone."""


@dataclass(frozen=True)
class Guard:
    """A line that keeps a promise, the change that removes it, and the story that needs it."""

    name: str
    file: str
    """The file, below `cloudedge/`."""
    source: str
    """The exact text, found once in the file."""
    change: str
    """The text that takes its place: the guard is gone, and everything else still works."""
    story: str
    """What happens to whom without it."""
    tests: tuple[str, ...] = ()
    """The tests that notice; without any, seeds of the simulator do."""


UNCHANGED = "(unchanged)"


@dataclass(frozen=True)
class Finding:
    """The outcome of one guard's removal."""

    guard: str
    by: str
    """What noticed: `simulator`, a test, `time-out`; empty if nothing did."""
    seeds: int | None = None
    """The number of seeds until the first that noticed."""
    what: str = ""
    seconds: float = 0.0
    error: str = ""
    """Why it could not be tried."""

    @property
    def is_good(self) -> bool:
        """True if the removal was noticed, or the unchanged package was left alone."""
        return not self.error and bool(self.by) != (self.guard == UNCHANGED)


def changed(guard: Guard, text: str) -> str:
    """Return a file's text without the guard.

    Raises:
        StaleGuardError: The text to change is not there exactly once.
    """
    found = text.count(guard.source)
    if found != 1:
        raise StaleGuardError(f"{guard.name}: its source is {found} times in cloudedge/{guard.file}")
    if guard.source == guard.change:
        raise StaleGuardError(f"{guard.name}: the change changes nothing")
    after = text.replace(guard.source, guard.change)
    try:
        compile(after, guard.file, "exec")
    except SyntaxError as error:
        raise StaleGuardError(f"{guard.name}: the change is no Python: {error}") from error
    return after


def problems(guards: Sequence[Guard], root: Path = ROOT) -> list[str]:
    """List what is wrong with the list of guards: stale sources, tests that do not exist, names used twice."""
    found = [
        f"{name}: two guards have this name" for name in {g.name for g in guards if _names(guards).count(g.name) > 1}
    ]
    for guard in guards:
        try:
            changed(guard, (root / "cloudedge" / guard.file).read_text())
        except (StaleGuardError, OSError) as error:
            found.append(str(error))
        for test in guard.tests:
            path, _, name = test.partition("::")
            file = root / path
            if not file.is_file() or (name and f"def {name.partition('[')[0]}(" not in file.read_text()):
                found.append(f"{guard.name}: there is no test {test}")
    return found


def _names(guards: Sequence[Guard]) -> list[str]:
    return [guard.name for guard in guards]


def make_copy(folder: Path) -> Path:
    """Copy everything that tests of the package need into a folder."""
    skip = shutil.ignore_patterns("__pycache__", "*.pyc", ".hypothesis")
    for each in ("cloudedge", "tests"):
        shutil.copytree(ROOT / each, folder / each, ignore=skip)
    for each in ("pyproject.toml", "docs", "examples", "README.md", "bench", "dockerfiles"):
        (folder / each).symlink_to(ROOT / each)
    core = Path(str(cloudedge._core.__file__))
    shutil.copy(core, folder / "cloudedge" / core.name)
    (folder / "sitecustomize.py").write_text(_BARE)
    return folder


@contextmanager
def without(guard: Guard | None, copy: Path) -> Iterator[None]:
    """Remove a guard from a copy, and put it back."""
    if guard is None:
        yield
        return
    file = copy / "cloudedge" / guard.file
    text = file.read_text()
    _replace(file, changed(guard, text))
    try:
        yield
    finally:
        _replace(file, text)


def _replace(file: Path, text: str) -> None:
    file.write_text(text)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()  # it is as old as the file, to the second


def try_one(guard: Guard | None, tests: Sequence[str], copy: Path, seeds: int) -> Finding:
    """Remove a guard, ask the simulator or the tests, and say who noticed; None: remove nothing."""
    name, began = guard.name if guard is not None else UNCHANGED, time.monotonic()
    try:
        with without(guard, copy):
            found = Finding(name, "")
            if not tests or guard is None:
                found = _ask_simulator(name, copy, seeds)
            if tests and not found.by and not found.error:
                found = _ask_tests(name, tests, copy)
    except StaleGuardError as error:
        found = Finding(name, "", error=str(error))
    except subprocess.TimeoutExpired:
        found = Finding(name, "time-out", what=f"still running after {_TIME_LIMIT_S:.0f} s")
    return Finding(**(asdict(found) | {"seconds": round(time.monotonic() - began, 1)}))


def _run(command: Sequence[str], copy: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONHASHSEED": "0"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=copy,
        env=env,
        capture_output=True,
        text=True,
        timeout=_TIME_LIMIT_S,
        check=False,
    )


def _ask_simulator(name: str, copy: Path, seeds: int) -> Finding:
    ran = _run(["-m", "tests.mutants.seeds", "--seeds", str(seeds)], copy)
    try:
        found = json.loads(ran.stdout)
    except ValueError:
        return Finding(name, "", error=f"the simulator did not run: {ran.stderr.strip()[-500:]}")
    if not Path(found["package"]).is_relative_to(copy):
        return Finding(name, "", error=f"the simulator ran {found['package']} instead of the copy")
    if found["seed"] is None:
        return Finding(name, "")
    return Finding(name, "simulator", seeds=found["seed"] + 1, what=found["what"])


def _ask_tests(name: str, tests: Sequence[str], copy: Path) -> Finding:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "-n0"]
    ran = _run(["-m", "pytest", *options, *tests], copy)
    if ran.returncode == 0:
        return Finding(name, "")
    failed = [line.removeprefix("FAILED ") for line in ran.stdout.splitlines() if line.startswith("FAILED ")]
    failed += [line.removeprefix("ERROR ") for line in ran.stdout.splitlines() if line.startswith("ERROR ")]
    if ran.returncode != _FAILED or not failed:
        return Finding(
            name, "", error=f"pytest ended with {ran.returncode}: {(ran.stdout + ran.stderr).strip()[-500:]}"
        )
    test, _, why = failed[0].partition(" - ")
    return Finding(name, test, what=why)


def run_all(
    guards: Sequence[Guard],
    *,
    seeds: int = 500,
    jobs: int | None = None,
    tell: Callable[[Finding], None] = lambda _: None,
) -> list[Finding]:
    """Try the unchanged package, then every guard, several at a time.

    Raises:
        StaleGuardError: The list does not fit the source.
    """
    wrong = problems(guards)
    if wrong:
        raise StaleGuardError("\n".join(wrong))
    workers = min(jobs or os.cpu_count() or 1, len(guards) + 1)
    every = list(dict.fromkeys(test for guard in guards for test in guard.tests))
    work: list[tuple[Guard | None, Sequence[str]]] = [(None, every), *((guard, guard.tests) for guard in guards)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(workers) as pool:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(workers):
            copies.put(make_copy(Path(scratch) / str(number)))

        def one(each: tuple[Guard | None, Sequence[str]]) -> Finding:
            copy = copies.get()
            try:
                found = try_one(*each, copy, seeds)
            finally:
                copies.put(copy)
            tell(found)
            return found

        return list(pool.map(one, work))


def table(guards: Sequence[Guard], findings: Sequence[Finding]) -> str:
    """Return the report as Markdown."""
    stories = {guard.name: guard.story for guard in guards}
    lines = ["| guard | found by | seeds needed | story |", "|---|---|---|---|"]
    for each in findings:
        by = (
            f"ERROR: {each.error}"
            if each.error
            else each.by or ("nothing" if each.guard == UNCHANGED else "**SURVIVES**")
        )
        seeds = "" if each.seeds is None else str(each.seeds)
        cells = (each.guard, by, seeds, stories.get(each.guard, "nothing is changed, and nothing fails"))
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    bad = [each.guard for each in findings if not each.is_good]
    lines += [
        "",
        f"{len(findings) - len(bad)} of {len(findings)} as they should be"
        + (f"; not: {', '.join(bad)}" if bad else ""),
    ]
    return "\n".join(lines) + "\n"
