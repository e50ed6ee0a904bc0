"""What a node remembers of an app: numbers that only grow, and the version before the live one."""

from dataclasses import replace

import pytest

from cloudedge.edge_bie.model._apps import AppRef
from cloudedge.edge_bie.node._units import Slot, Unit

pytestmark = pytest.mark.rules

APP = "paddle-serving"


def unit(number, bundle):
    return Unit(AppRef(f"{APP}-{number:010}", "1"), APP, "", sequence=number, revision=f"{number:010}", bundle=bundle)


def test_a_number_that_was_spent_is_spent_even_if_the_live_revision_comes_again():
    live, failed = unit(5, "a@1"), unit(6, "a@2")
    slot = Slot().trying(live).settled().trying(failed)
    slot = replace(slot, candidate=None).trying(live)  # its app was written once more
    assert (slot.highest, slot.accepted) == (6, failed.revision)
    assert slot.candidate == live


STORIES = {
    "the second": ("12", ("2", "1")),
    "the second again, under a new number": ("122", ("2", "1")),
    "and again": ("1222", ("2", "1")),
    "back": ("121", ("1", "2")),
    "the first again": ("11", ("1", "1")),
}


@pytest.mark.parametrize(("bundles", "kept"), STORIES.values(), ids=STORIES)
def test_the_bundle_before_the_live_one_is_kept(bundles, kept):
    slot = Slot()
    for number, bundle in enumerate(bundles, 1):
        slot = slot.trying(unit(number, bundle)).settled()
    assert (slot.live.bundle, slot.previous.bundle) == kept
    assert slot.live.sequence == slot.highest == len(bundles)
    again = slot.emptied().trying(unit(9, kept[0])).settled()  # nothing was desired for a while
    assert again.live.bundle == kept[0]


def test_an_app_of_others_keeps_what_ran_before():
    first, second = (Unit(AppRef("other", version), "other", "") for version in "12")
    slot = replace(Slot().trying(first).settled(), candidate=second).settled()
    assert (slot.live, slot.previous) == (second, first)
