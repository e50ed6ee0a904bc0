"""The detector: YOLOv3 in small. A Darknet-like backbone, three scales that look at each other, boxes and NMS inside.

Parameters are named after where they are used, `features...` and `outputs...`: Paddle writes them to one file in the
order of their names, so the part that fine-tuning leaves alone is the beginning of the file, byte for byte.
"""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional
from shapes import NAMES, SIZES

ANCHORS = tuple(round(size) for size in sorted(SIZES, reverse=True) for _ in ("width", "height"))
"""Width and height of a typical box for each scale, the coarsest first as in YOLOv3, in pixels. One where YOLOv3 has
three: these shapes are about as wide as high."""
STRIDES = (32, 16, 8)
ANSWERS = 20
"""Things found in one picture, at most."""
SCORE_AT_LEAST = 0.05
"""Below, a box is not answered at all. Low, since average precision looks at weak answers too."""
_SAME = 0.45
"""Overlap from which two boxes of one category are the same thing."""


def _mostly_nothing() -> paddle.ParamAttr:
    """Start with "there is nothing here", which is true nearly everywhere; otherwise learning that comes first."""
    of_one = np.zeros(5 + len(NAMES), np.float32)
    of_one[4] = -4.0
    return paddle.ParamAttr(initializer=nn.initializer.Assign(of_one))


class ConvBlock(nn.Sequential):  # type: ignore[misc]
    """Convolution, normalisation, leaky ReLU: what Darknet is made of."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2D(inputs, outputs, size, stride, padding=size // 2, bias_attr=False),
            nn.BatchNorm2D(outputs),
            nn.LeakyReLU(0.1),
        )


class Residual(nn.Layer):  # type: ignore[misc]
    """Darknet's residual block: squeeze, look around, add."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = ConvBlock(channels, channels // 2, 1)
        self.look = ConvBlock(channels // 2, channels, 3)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Run it."""
        return x + self.look(self.squeeze(x))


class Backbone(nn.Layer):  # type: ignore[misc]
    """Five times halved, the first time at once; answers with the last three resolutions, the coarsest first."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = ConvBlock(3, widths[0], 3, stride=2)
        self.stages = nn.LayerList(
            nn.Sequential(ConvBlock(before, width, 3, stride=2), *(Residual(width) for _ in range(depth)))
            for before, width, depth in zip(widths[:-1], widths[1:], depths, strict=True)
        )

    def forward(self, x: paddle.Tensor) -> list[paddle.Tensor]:
        """Run it."""
        x = self.stem(x)
        seen = []
        for stage in self.stages:
            x = stage(x)
            seen.append(x)
        return seen[:-4:-1]


class Features(nn.Layer):  # type: ignore[misc]
    """What is seen at three scales; each passes what it understood on to the next finer one."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        self.backbone = Backbone(widths, depths)
        blocks, routes = [], []
        passed = 0
        for width in widths[:-4:-1]:
            half = width // 2
            blocks.append(
                nn.Sequential(ConvBlock(width + passed, half, 1), ConvBlock(half, width, 3), ConvBlock(width, half, 1))
            )
            passed = half // 2
            routes.append(ConvBlock(half, passed, 1))
        self.blocks, self.routes = nn.LayerList(blocks), nn.LayerList(routes[:-1])

    def forward(self, x: paddle.Tensor) -> list[paddle.Tensor]:
        """Run it."""
        understood: list[paddle.Tensor] = []
        for scale, seen in enumerate(self.backbone(x)):
            if scale:
                finer = functional.interpolate(self.routes[scale - 1](understood[-1]), scale_factor=2, mode="nearest")
                understood.append(self.blocks[scale](paddle.concat([finer, seen], axis=1)))
            else:
                understood.append(self.blocks[scale](seen))
        return understood


class Detector(nn.Layer):  # type: ignore[misc]
    """Pictures in, boxes out."""

    def __init__(self, widths: tuple[int, ...] = (12, 24, 32, 64, 96), depths: tuple[int, ...] = (1, 1, 1, 1)) -> None:
        super().__init__()
        self.features = Features(widths, depths)
        self.outputs = nn.LayerList(
            nn.Sequential(
                ConvBlock(width // 2, width, 3),
                nn.Conv2D(width, 5 + len(NAMES), 1, bias_attr=_mostly_nothing()),
            )
            for width in widths[:-4:-1]
        )
        for name, value in [*self.named_parameters(), *self.named_buffers()]:
            value.name = name

    def raw(self, pixels: paddle.Tensor) -> list[paddle.Tensor]:
        """Return what each scale says, for the loss."""
        x = pixels.astype("float32").transpose([0, 3, 1, 2]) / 127.5 - 1.0
        return [output(understood) for output, understood in zip(self.outputs, self.features(x))]  # noqa: B905 - to_static has no strict

    def loss(self, pixels: paddle.Tensor, boxes: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        """Return the loss of a batch; boxes are centre, width and height as shares of the picture."""
        return sum(
            paddle.vision.ops.yolo_loss(
                x,
                boxes,
                labels,
                list(ANCHORS),
                [scale],
                len(NAMES),
                ignore_thresh=0.5,
                downsample_ratio=STRIDES[scale],
                use_label_smooth=False,
            ).mean()
            for scale, x in enumerate(self.raw(pixels))
        )

    def forward(self, image: paddle.Tensor, im_shape: paddle.Tensor) -> paddle.Tensor:
        """Find things.

        Args:
            image: Pictures of SIDE x SIDE pixels, RGB, bytes.
            im_shape: Height and width that each had before it was made to fit; boxes are in those pixels.

        Returns:
            ANSWERS rows for each picture: category, score, left, top, right, bottom. Where there is nothing more, -1.
        """
        boxes, scores = [], []
        for scale, x in enumerate(self.raw(image)):
            anchor = list(ANCHORS[2 * scale : 2 * scale + 2])
            box, score = paddle.vision.ops.yolo_box(x, im_shape, anchor, len(NAMES), SCORE_AT_LEAST, STRIDES[scale])
            boxes.append(box)
            scores.append(score.transpose([0, 2, 1]))
        rows, _, counts = paddle._C_ops.multiclass_nms3(  # noqa: SLF001 - what PaddleDetection calls; no public name
            paddle.concat(boxes, axis=1), paddle.concat(scores, axis=2), None,
            SCORE_AT_LEAST, 200, ANSWERS, _SAME, True, 1.0, -1,
        )  # fmt: skip
        # As many rows for every picture: then pictures of several callers can be answered in one run.
        nothing = paddle.full([1, 6], -1.0)
        place = paddle.arange(ANSWERS, dtype="int32").unsqueeze(0)
        ends = paddle.cumsum(counts).astype("int32").unsqueeze(1)
        counts = counts.unsqueeze(1)
        index = (ends - counts + place + 1) * (place < counts).astype("int32")
        return paddle.gather(paddle.concat([nothing, rows]), index.flatten()).reshape([-1, ANSWERS, 6])
