from __future__ import annotations

from pathlib import Path

import pytest
from cube_reference import RECORDS, write_sequence


@pytest.fixture
def vector(tmp_path: Path) -> Path:
    """The published SequenceFile, in a directory of its own."""
    return write_sequence(tmp_path / "input" / "feature", RECORDS)
