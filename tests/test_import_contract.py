"""The import contract of this repository's own making: it breaks where a room is entered through a wall."""

import grimp
import pytest

from tests.import_contract import RoomsAreClosed

pytestmark = pytest.mark.rules
HOUSE = {
    "__init__.py": "",
    "_shared.py": "LIGHT = 1\n",
    "kitchen/__init__.py": "from house.kitchen._stove import COOK\n__all__ = ['COOK']\n",
    "kitchen/_stove.py": "from house.kitchen import _pots\nfrom house import _shared\nCOOK = _pots, _shared\n",
    "kitchen/_pots.py": "",
    "kitchen/larder/__init__.py": "",
    "hall/__init__.py": "",
    "hall/_door.py": "from house.kitchen import COOK\n",
}


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Return what is broken in the house, with some of its files written otherwise."""
    monkeypatch.syspath_prepend(tmp_path)

    def check(**written):
        for name, text in (HOUSE | {f"{room}/_door.py": text for room, text in written.items()}).items():
            path = tmp_path / "house" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        contract = RoomsAreClosed("rooms", {"root_packages": ["house"]}, {})
        checked = contract.check(grimp.ImportGraph(), verbose=False)
        assert checked.kept == (not checked.metadata["broken"])
        return checked.metadata["broken"]

    return check


def test_a_room_s_own_modules_and_what_it_lists_may_be_imported(broken):
    assert broken() == []


@pytest.mark.parametrize(
    "text",
    [
        "from house.kitchen._stove import COOK\n",
        "import house.kitchen._stove\n",
        "from house.kitchen import _stove\n",
        "def later():\n    from house.kitchen import _stove\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.kitchen._stove import COOK\n",
    ],
)
def test_an_underscore_module_of_another_room_may_not(broken, text):
    assert broken(hall=text) == ["house.hall._door imports house.kitchen._stove"]


def test_neither_by_a_room_inside_it(broken):
    (found,) = broken(**{"kitchen/larder": "from house.kitchen import _pots\n"})
    assert found == "house.kitchen.larder._door imports house.kitchen._pots"
