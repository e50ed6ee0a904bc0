"""The click model as a pipeline trains it: the suite Script runs this program.

python examples/ctr/task.py draw --output DIR --count N      made-up clicks, for a data set's source
python examples/ctr/task.py train --data DIR --models DIR [--logs DIR] [-o epochs=2]
python examples/ctr/task.py export --models DIR --inference DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from clicks import Clicks, auc, draw

_WEIGHTS = "model.pdparams"
_TEST_SHARE = 10
"""One impression in so many is kept for testing."""


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("draw", "train", "export"))
    for folder in ("output", "data", "models", "inference", "logs"):
        parser.add_argument(f"--{folder}", type=Path)
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("-o", dest="changes", nargs="*", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    changes = dict(change.split("=", 1) for change in given.changes)
    if given.command == "draw":
        save_clicks(draw(given.count, seed=1), given.output)
    elif given.command == "train":
        train(given.data, given.models, given.logs, epochs=int(changes.get("epochs", 2)))
    else:
        export(given.models, given.inference)


def train(data: Path, models: Path, logs: Path | None, *, epochs: int) -> None:
    """Train, and write loss and AUC for VisualDL after every pass."""
    from network import Trainer  # noqa: PLC0415 - paddle is slow to import

    clicks = load_clicks(data)
    test, rest = clicks[slice(0, None, _TEST_SHARE)], clicks[_others(len(clicks))]
    trainer = Trainer()
    with log_writer(logs) as log:
        for epoch in range(epochs):
            trainer.fit(rest, seed=epoch)
            for name, part in (("train", rest), ("test", test)):
                scores = trainer.score(part)
                found = {"loss": _loss(part, scores), "auc": auc(part.clicked, scores)}
                for what, value in found.items():
                    log.add_scalar(tag=f"{name}/{what}", step=epoch, value=value)
                print(f"pass {epoch}: {name} " + " ".join(f"{what} {value:.4f}" for what, value in found.items()))
    models.mkdir(parents=True, exist_ok=True)
    trainer.keep(models / _WEIGHTS)


def export(models: Path, inference: Path) -> None:
    """Save the trained network as an inference model."""
    from network import Trainer  # noqa: PLC0415 - paddle is slow to import

    trainer = Trainer()
    trainer.restore(models / _WEIGHTS)
    trainer.save(inference)


def save_clicks(clicks: Clicks, folder: Path) -> None:
    """Write impressions as a data set's source holds them."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "part-0.npz", **vars(clicks))


def load_clicks(folder: Path) -> Clicks:
    """Read every part of a data set."""
    parts = [dict(np.load(file)) for file in sorted(folder.glob("part-*.npz"))]
    return Clicks(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


@contextmanager
def log_writer(folder: Path | None) -> Iterator[Any]:
    """Open a log for VisualDL, or one that forgets everything."""
    if folder is None:
        yield _Nothing()
        return
    from visualdl import LogWriter  # noqa: PLC0415 - an extra

    with LogWriter(logdir=str(folder)) as log:
        yield log


class _Nothing:
    def add_scalar(self, **_: Any) -> None:
        """Forget it."""


def _others(count: int) -> np.ndarray:
    return np.flatnonzero(np.arange(count) % _TEST_SHARE)


def _loss(clicks: Clicks, scores: np.ndarray) -> float:
    likely = np.where(clicks.clicked == 1, scores, 1 - scores)
    return float(-np.log(np.maximum(likely, 1e-7)).mean())


if __name__ == "__main__":
    main()
