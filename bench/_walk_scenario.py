"""One row from the trainer to an answer, on a local target of real processes: the scenario that `bench/walk.py` traces.

It uses only names that users may use, so that it runs on any version of the package.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import paddle

from cloudedge import Bundle, LocalHub, Target
from cloudedge.bundle import split
from cloudedge.config import load as load_config
from cloudedge.release.local import down, serving_urls, up
from cloudedge.serving import Client

ROWS, DIM = 4000, 4
CONFIG = """\
targets:
  local:
    kind: local
    sparse: {tables: [embedding], shards: 1, replicas: 1}
    dense: {replicas: 1, service: walk}
"""


class Trainer:
    """A network of one embedding; a version changes one row of its table."""

    def __init__(self) -> None:
        paddle.seed(1)
        rows = paddle.nn.Embedding(ROWS, DIM, sparse=True, weight_attr=paddle.ParamAttr("embedding"))
        self._net = paddle.nn.Sequential(rows, paddle.nn.Linear(DIM, 1))
        self._weight = rows.weight

    def save(self, folder: Path, *, first_row: float) -> Path:
        """Save the network as Paddle's inference model; returns its prefix."""
        values = self._weight.numpy()
        values[0] = first_row
        self._weight.set_value(values)
        self._net.eval()
        ids = paddle.static.InputSpec([None, 1], "int64", "ids")
        paddle.jit.save(self._net, str(folder / "model"), input_spec=[ids])
        return folder / "model"


def pack(saved: Path, folder: Path, parent: Bundle | None) -> Bundle:
    """Split a network and pack the pieces."""
    pieces = split(saved, folder)
    return Bundle.pack(
        pieces.folder,
        name="walk",
        sparse=pieces.tables,
        signature=pieces.signature,
        probes=pieces.probes,
        parent=parent,
        hub=LocalHub(),
    )


def main(folder: Path) -> None:
    """Release two versions, the second as a delta on the first, and ask each for the row that differs."""
    os.environ["CLOUDEDGE_HOME"] = str(folder / "home")
    file = folder / "cloudedge.yaml"
    file.write_text(CONFIG)
    config = load_config(file)
    trainer, answers = Trainer(), []
    bundle: Bundle | None = None
    with ExitStack() as stack:
        stack.callback(down, "local", config=config)
        up("local", config=config)
        target = Target.load("local", config=config)
        for number in (1, 2):
            saved = trainer.save(folder / f"whole-{number}", first_row=float(number))
            bundle = pack(saved, folder / f"pieces-{number}", bundle)
            target.apply(target.plan(bundle)).wait()
            with Client(*serving_urls("local", config=config)) as client:
                answer = client.predict({"ids": np.zeros((1, 1), np.int64)})
            if answer.pin != bundle.pin:
                raise SystemExit(f"{answer.pin} answered, not {bundle.pin}")
            answers.append(next(iter(answer.outputs.values())).item())
    if answers[0] == answers[1]:
        raise SystemExit("the changed row changed no answer")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
