"""The real baetyl-cloud, built from its Go module, says what the lab says: the same requests, the same transcript."""

from __future__ import annotations

import pytest

from tests.edge_bie.lab.transcript import GOLDEN, SCENES, Transcript

pytestmark = pytest.mark.parts


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_real_one_says_what_the_lab_says(scene, baetyl):
    transcript = Transcript(baetyl.admin_url, baetyl.sync_url)
    scene(transcript)
    assert transcript.lines == (GOLDEN / f"{scene.__name__}.txt").read_text(encoding="utf-8").splitlines()
