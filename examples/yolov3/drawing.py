"""Boxes drawn into a picture, each with its category and score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw
from shapes import NAMES

COLOURS = ((64, 200, 255), (255, 170, 60), (120, 230, 120))
"""One for each category."""


def with_boxes(image: Image.Image, boxes: Sequence[Mapping[str, Any]], *, scale: int = 4) -> Image.Image:
    """Return a larger copy with boxes.

    Args:
        image: What was asked about.
        boxes: `bbox_result`, parsed.
        scale: How much larger the copy is.
    """
    drawn = image.convert("RGB").resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(drawn)
    for box in boxes:
        left, top, width, height = (side * scale for side in box["bbox"])
        colour = COLOURS[box["category_id"] % len(COLOURS)]
        pen.rectangle((left, top, left + width, top + height), outline=colour, width=2)
        text = f"{NAMES[box['category_id']]} {box['score']:.2f}"
        label = pen.textbbox((left + 2, top), text)
        lift = label[3] - top + 2 if label[3] - top + 2 < top else 0
        pen.rectangle((label[0] - 2, label[1] - lift, label[2] + 2, label[3] + 2 - lift), fill=colour)
        pen.text((left + 2, top - lift), text, fill=(0, 0, 0))
    return drawn


def side_by_side(images: Sequence[Image.Image], *, gap: int = 8) -> Image.Image:
    """Join pictures of one height in a row."""
    width = sum(image.width for image in images) + gap * (len(images) - 1)
    row = Image.new("RGB", (width, max(image.height for image in images)), (255, 255, 255))
    left = 0
    for image in images:
        row.paste(image, (left, 0))
        left += image.width + gap
    return row
