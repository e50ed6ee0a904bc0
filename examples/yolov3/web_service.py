"""What stands around the detector when it is served: a base64 picture comes in, a list of boxes goes out.

It travels in the bundle, beside the model, and is written as for Paddle Serving: only the import is another one.

    cloudedge serve FOLDER --ops FOLDER/web_service.py:service --port 18082
"""

from __future__ import annotations

import base64
import binascii
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cloudedge.serving import Op, WebService

SIDE = 64
"""Of the pictures the model takes."""
LARGEST_PIXELS = 16_000_000
"""A small file can hold a huge picture; larger ones are refused before they are unpacked."""
SCORE_AT_LEAST = 0.3
NOT_A_PICTURE = 50
"""The first of the error numbers that Paddle Serving leaves to services."""


def decode(text: str) -> Image.Image:
    """Read a picture from base64.

    Raises:
        ValueError: it is none, or a very large one.
    """
    try:
        image = Image.open(io.BytesIO(base64.b64decode(text, validate=True)))
        if image.width * image.height > LARGEST_PIXELS:
            raise ValueError(f"a picture of {image.width} x {image.height} pixels is too large")
        return image.convert("RGB")
    except (binascii.Error, OSError, Image.DecompressionBombError) as error:
        raise ValueError("not a picture in base64") from error


def feed_of(image: Image.Image) -> dict[str, NDArray[Any]]:
    """Make a picture fit the model, and remember how large it was."""
    small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return {
        "image": np.asarray(small, np.uint8)[None],
        "im_shape": np.array([[image.height, image.width]], np.int32),
    }


def boxes_of(rows: NDArray[np.float32], *, at_least: float = SCORE_AT_LEAST) -> list[dict[str, Any]]:
    """Turn what the model answers into what clients of the COCO world expect, the surest first.

    Args:
        rows: Category, score, left, top, right, bottom; a negative category means that there is nothing.
        at_least: Leave out what scores less.
    """
    found = sorted((row for row in rows.tolist() if row[0] >= 0 and row[1] >= at_least), key=lambda row: -row[1])
    return [
        {"category_id": int(category), "bbox": [left, top, right - left, bottom - top], "score": score}
        for category, score, left, top, right, bottom in found
    ]


class Yolov3Op(Op):
    """Decodes, asks the model, answers with boxes."""

    def preprocess(
        self, input_dicts: dict[str, dict[str, Any]], data_id: int, log_id: int  # noqa: ARG002 - upstream's signature
    ) -> tuple[dict[str, Any], bool, int | None, str]:  # fmt: skip
        """Read the picture in `image`."""
        (inputs,) = input_dicts.values()
        try:
            return feed_of(decode(inputs["image"])), False, None, ""
        except KeyError:
            return {}, True, NOT_A_PICTURE, 'there is no "image" among the keys'
        except ValueError as error:
            return {}, True, NOT_A_PICTURE, f"image: {error}"

    def postprocess(
        self, input_data: dict[str, dict[str, Any]], fetch_data: dict[str, Any], data_id: int, log_id: int  # noqa: ARG002
    ) -> tuple[dict[str, Any], int | None, str]:  # fmt: skip
        """Answer `bbox_result`: a list as Python writes it, which is what the first clients were written for."""
        (rows,) = fetch_data.values()
        return {"bbox_result": str(boxes_of(rows[0]))}, None, ""


class Yolov3Service(WebService):
    """One op."""

    def get_pipeline_response(self, read_op: Op) -> Op:
        """Build the graph."""
        return Yolov3Op("yolov3", [read_op])


service = Yolov3Service("yolov3")
