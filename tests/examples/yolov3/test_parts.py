"""The parts of the example that need no network: pictures, decoding, boxes, precision, drawing, the page."""

import base64
import io

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from drawing import COLOURS, side_by_side, with_boxes
from PIL import Image
from precision import average_precision, mean_average_precision, overlap
from report import render
from shapes import MOST, NAMES, SIDE, draw_many
from web_service import LARGEST_PIXELS, NOT_A_PICTURE, Yolov3Op, boxes_of, decode, feed_of
from web_service import SIDE as SERVED_SIDE

pytestmark = pytest.mark.rules


def encoded(image, kind="PNG"):
    file = io.BytesIO()
    image.save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("mode", "kind"), [("RGB", "PNG"), ("RGB", "JPEG"), ("L", "PNG"), ("P", "PNG"), ("RGBA", "PNG")]
)
def test_any_picture_becomes_bytes_of_the_model_s_size(mode, kind):
    feed = feed_of(decode(encoded(Image.new(mode, (120, 80)), kind)))
    assert feed["image"].shape == (1, SIDE, SIDE, 3)
    assert feed["image"].dtype == np.uint8
    assert feed["im_shape"].tolist() == [[80, 120]]


def test_the_service_takes_what_the_model_takes():
    assert SERVED_SIDE == SIDE


@pytest.mark.parametrize(
    "text", ["", "not base64!", base64.b64encode(b"no picture").decode(), encoded(Image.new("L", (9, 9)))[:40]]
)
def test_what_is_no_picture_is_an_error_of_the_service(text):
    _, _, code, why = Yolov3Op().preprocess({"@DAGExecutor": {"image": text}}, 0, 0)
    assert (code, why) == (NOT_A_PICTURE, "image: not a picture in base64")


def test_a_missing_key_is_an_error_of_the_service():
    _, _, code, why = Yolov3Op().preprocess({"@DAGExecutor": {"picture": "x"}}, 0, 0)
    assert code == NOT_A_PICTURE
    assert '"image"' in why


def test_a_huge_picture_is_refused_before_it_is_unpacked():
    side = int(LARGEST_PIXELS**0.5) + 1
    with pytest.raises(ValueError, match="too large"):
        decode(encoded(Image.new("1", (side, side))))


def test_boxes_are_sorted_and_as_coco_writes_them():
    nothing = [-1.0] * 6
    rows = np.array([[2, 0.5, 10, 20, 30, 50], [0, 0.9, 1, 2, 4, 8], [1, 0.2, 0, 0, 9, 9], nothing], np.float32)
    assert boxes_of(rows) == [
        {"category_id": 0, "bbox": [1.0, 2.0, 3.0, 6.0], "score": pytest.approx(0.9)},
        {"category_id": 2, "bbox": [10.0, 20.0, 20.0, 30.0], "score": 0.5},
    ]


def test_overlap_of_known_boxes():
    boxes = np.array([[0, 0, 2, 2], [5, 5, 6, 6]], np.float32)
    assert overlap(boxes, np.array([[1, 1, 3, 3], [0, 0, 2, 2]], np.float32)) == pytest.approx(
        np.array([[1 / 7, 1], [0, 0]])
    )


TRUTH = [np.array([[0, 0, 10, 10]], np.float32), np.array([[20, 20, 30, 30]], np.float32)]
HIT, OTHER, MISS = (0, 0, 10, 10), (20, 20, 30, 30), (50, 50, 60, 60)
PRECISIONS = {
    "all found": ([[(0.9, *HIT)], [(0.8, *OTHER)]], 1.0),
    "nothing found": ([[], []], 0.0),
    "one of two": ([[(0.9, *HIT)], []], 0.5),
    "a mistake between two hits": ([[(0.9, *HIT), (0.8, *MISS)], [(0.7, *OTHER)]], 0.5 + 0.5 * 2 / 3),
    "the same thing twice is a mistake": ([[(0.9, *HIT), (0.8, *HIT)], [(0.7, *OTHER)]], 0.5 + 0.5 * 2 / 3),
    "a mistake that comes last costs nothing": ([[(0.9, *HIT), (0.1, *MISS)], [(0.7, *OTHER)]], 1.0),
    "half outside": ([[(0.9, 0, 0, 10, 4)], [(0.8, *OTHER)]], 0.25),
    "the right box in the wrong picture": ([[(0.9, *OTHER)], [(0.8, *HIT)]], 0.0),
}


@pytest.mark.parametrize(("found", "expected"), PRECISIONS.values(), ids=PRECISIONS)
def test_average_precision(found, expected):
    rows = [np.array(one, np.float32).reshape(-1, 5) for one in found]
    assert average_precision(rows, TRUTH) == pytest.approx(expected)


def test_the_mean_is_over_categories_that_occur():
    found = [np.array([[0, 0.9, *HIT], [2, 0.9, *OTHER]], np.float32)]
    truth = [(np.array([0, 1], np.int32), np.array([HIT, OTHER], np.float32))]
    assert mean_average_precision(found, truth) == 0.5


def test_the_same_seed_draws_the_same_pictures():
    one, other = draw_many(3, seed=7), draw_many(3, seed=7)
    assert all((a.pixels == b.pixels).all() and (a.boxes == b.boxes).all() for a, b in zip(one, other, strict=True))
    assert (draw_many(1, seed=8)[0].pixels != one[0].pixels).any()


def test_shapes_are_bright_where_their_boxes_are_and_nowhere_else():
    for picture in draw_many(50, seed=1):
        assert 1 <= len(picture.labels) <= MOST
        assert overlap(picture.boxes, picture.boxes).sum() == pytest.approx(len(picture.labels))
        outside = np.ones((SIDE, SIDE), bool)
        for left, top, right, bottom in picture.boxes:
            inside = slice(max(int(top), 0), int(bottom) + 2), slice(max(int(left), 0), int(right) + 2)
            assert picture.pixels[inside].max() > 110
            outside[inside] = False
        assert np.median(picture.pixels[outside]) < 110


def test_boxes_are_drawn_larger_and_in_the_colour_of_their_category():
    image = Image.new("RGB", (20, 10))
    drawn = with_boxes(image, [{"category_id": 2, "bbox": [5, 4, 10, 5], "score": 0.5}], scale=4)
    assert drawn.size == (80, 40)
    assert drawn.getpixel((59, 30)) == COLOURS[2]  # the right edge
    assert drawn.getpixel((70, 30)) == (0, 0, 0)
    assert side_by_side([drawn, drawn], gap=8).size == (168, 40)


def test_the_page_shows_the_figures_and_escapes_words():
    versions = [
        {"bundle": f"yolov3:{i}", "pin": f"pin{i}", "map50": precision, "zip_bytes": 1000}
        for i, precision in enumerate((0.9, 0.95, None), 1)
    ]
    rollout = {"number": 3, "bundle": "yolov3:3", "state": "undone", "why": "a < b", "waves": [["n1"]], "seconds": 1.0}
    page = render(
        {
            "versions": versions, "answered": 1234, "failed": 0, "fetched_bytes": {"yolov3:2": {"n1": 250}},
            "rollouts": [rollout], "events": [{"t": 1.0, "what": "<cut>"}],
            "nodes": {"n1": [{"pin": "pin1", "from": 0.0, "to": 2.0}]},
        },
        "aGVsbG8=",
    )  # fmt: skip
    assert all(word in page for word in ("1,234", "0.950", "25%", "a &lt; b", "&lt;cut&gt;", "base64,aGVsbG8="))
    assert len(NAMES) == len(COLOURS)
