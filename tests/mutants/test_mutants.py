"""The list of guards fits the source, and the tool that removes them notices what it should."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mutants import mutate
from tests.mutants.guards import GUARDS
from tests.mutants.mutate import UNCHANGED, Finding, Guard, StaleGuardError, changed, problems, run_all, table

SOMETHING = Guard("some-guard", "journal/_journal.py", "_BUSY_S = 10.0", "_BUSY_S = 1.0", "Nobody waits.")


@pytest.mark.rules
def test_every_guard_is_where_the_list_says():
    """If this fails, the source of a guard has changed: change its entry with it, or remove both."""
    assert problems(GUARDS) == []


@pytest.mark.rules
def test_every_guard_has_a_story_of_its_own():
    assert len({guard.story for guard in GUARDS}) == len(GUARDS)
    assert all(guard.story.endswith(".") for guard in GUARDS)


@pytest.mark.rules
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "this is in no file"}, "is 0 times in"),
        ({"source": "import"}, "times in"),
        ({"change": SOMETHING.source}, "changes nothing"),
        ({"change": "_BUSY_S ="}, "no Python"),
        ({"tests": ("tests/journal/test_journal.py::test_nothing",)}, "no test"),
        ({"tests": ("tests/nowhere.py",)}, "no test"),
        ({"file": "nowhere.py"}, "nowhere.py"),
    ],
)
def test_a_stale_guard_is_an_error(change, words):
    (found,) = problems([replace(SOMETHING, **change)])
    assert words in found
    assert problems([SOMETHING]) == []


@pytest.mark.rules
def test_two_guards_of_one_name_are_an_error():
    assert problems([SOMETHING, SOMETHING]) == ["some-guard: two guards have this name"]


@pytest.mark.rules
def test_the_copy_is_changed_and_put_back(tmp_path):
    folder = tmp_path / "cloudedge" / "journal"
    (folder / "__pycache__").mkdir(parents=True)
    file, compiled = folder / "_journal.py", folder / "__pycache__" / "_journal.cpython-311.pyc"
    file.write_text("_BUSY_S = 10.0\n")
    compiled.write_bytes(b"old")
    with mutate.without(SOMETHING, tmp_path):
        assert file.read_text() == "_BUSY_S = 1.0\n"
        assert not compiled.exists()
        compiled.write_bytes(b"of the changed file")
    assert file.read_text() == "_BUSY_S = 10.0\n"
    assert not compiled.exists()
    with pytest.raises(StaleGuardError):
        changed(SOMETHING, "")


@pytest.mark.rules
def test_the_table_names_the_survivors():
    found = [Finding(UNCHANGED, ""), Finding("some-guard", ""), Finding("other", "simulator", seeds=7)]
    text = table([SOMETHING], found)
    assert "| some-guard | **SURVIVES** |  | Nobody waits. |" in text
    assert "| other | simulator | 7 |" in text
    assert text.endswith("2 of 3 as they should be; not: some-guard\n")
    assert not Finding(UNCHANGED, "simulator", seeds=1).is_good
    assert not Finding("some-guard", "simulator", error="it did not run").is_good


@pytest.mark.parts
def test_what_is_removed_is_noticed_and_what_does_no_harm_is_not():
    """A real run: a guard that a test finds, one that the simulator finds, and a change that nothing notices."""
    by_name = {guard.name: guard for guard in GUARDS}
    chosen = [by_name["one-unfinished-operation"], by_name["failed-step-takes-back"], SOMETHING]
    found = {each.guard: each for each in run_all(chosen, seeds=15, jobs=2)}
    assert found[UNCHANGED].is_good, found[UNCHANGED]
    assert found["one-unfinished-operation"].by.startswith("tests/journal/test_journal.py::test_one_unfinished")
    assert found["failed-step-takes-back"].by == "simulator"
    assert found["failed-step-takes-back"].seeds <= 15
    assert found["some-guard"] == Finding("some-guard", "", seconds=found["some-guard"].seconds)
    assert not found["some-guard"].is_good
