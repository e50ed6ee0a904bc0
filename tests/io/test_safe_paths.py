"""Names from elsewhere that become paths."""

import pytest

from cloudedge.errors import InputError
from cloudedge.io import path_below, safe_path

pytestmark = pytest.mark.rules

HOSTILE = [
    "",
    "/etc/passwd",
    "//x",
    "..",
    "../x",
    "../../x",
    "a/../../x",
    "a/./b",
    ".",
    "a//b",
    "a/",
    "a\\..\\b",
    "\\\\server\\share",
    "C:",
    "C:x",
    "a\0b",
    "a\nb",
    "a\x7fb",
    "x" * 256,
    "x/" * 600 + "x",
    "\udc80",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(tmp_path, name):
    with pytest.raises(InputError) as caught:
        safe_path(name)
    assert len(caught.value.message) < 1500
    with pytest.raises(InputError):
        path_below(tmp_path, name)


@pytest.mark.parametrize(
    "name", ["a", "a/b.c", "..a", "a..", "...", ".hidden/x", "模型/权重", "x" * 255, "conv1:0", "aux.txt"]
)
def test_other_names_pass_unchanged(tmp_path, name):
    assert safe_path(name) == name
    assert path_below(tmp_path, name) == tmp_path / name


def test_no_link_leads_out(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside)
    for name in ("link", "link/x"):
        with pytest.raises(InputError, match="a link leads"):
            path_below(inside, name)
    assert path_below(inside, "loop/x") == inside / "loop" / "x"
    link = tmp_path / "through"
    link.symlink_to(inside)
    assert path_below(link, "x") == link / "x"
