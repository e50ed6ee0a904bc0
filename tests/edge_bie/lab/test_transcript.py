"""What the lab says, as a file; the real baetyl-cloud says the same (tests/edge_bie/real).

`CLOUDEDGE_GOLDEN=write pytest tests/edge_bie/lab` writes the file again.
"""

from __future__ import annotations

import os

import pytest

from cloudedge.edge_bie.lab import Lab
from tests.edge_bie.lab.transcript import GOLDEN, SCENES, Transcript

pytestmark = pytest.mark.parts


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_lab_says_what_it_said(scene, tmp_path):
    with Lab(tmp_path) as lab:
        transcript = Transcript(lab.admin_url, lab.sync_url)
        scene(transcript)
    file = GOLDEN / f"{scene.__name__}.txt"
    found = "\n".join(transcript.lines) + "\n"
    if os.environ.get("CLOUDEDGE_GOLDEN") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")
