"""Suites: the training programs behind a training's ``Project``, with their commands to train and export.

PaddleOCR is built in, and Script for your own program. `register` adds more, or an installed package with an entry
point in the group ``cloudedge.suites``, which the launcher's image must contain too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import PurePosixPath
from typing import Protocol
from urllib.parse import urlsplit

from cloudedge.errors import ConfigError, InputError
from cloudedge.pipeline._inputs import TrainingInputs

__all__ = ["ON_CLUSTER", "PaddleOCR", "Script", "Suite", "SuitePaths", "changes_of", "find_suite", "register", "suites"]

_GROUP = "cloudedge.suites"
_CHANGE = re.compile(r"[\w.\-]+=.*", re.DOTALL)


@dataclass(frozen=True)
class SuitePaths:
    """The paths of a training's data and models."""

    data: str = "/mnt/data-center"
    task: str = "/mnt/task-center"

    @property
    def models(self) -> str:
        """Weights and checkpoints."""
        return f"{self.task}/models/"

    @property
    def inference(self) -> str:
        """The exported model."""
        return f"{self.task}/inference/"

    @property
    def logs(self) -> str:
        """The logs for VisualDL."""
        return f"{self.task}/models/vdl/"

    def dataset(self, name: str) -> str:
        """The folder of a dataset step's data."""
        return f"{self.data}/{name}/"

    def pretrained(self, address: str) -> str:
        """The path of pretrained weights, without their ending."""
        return f"{self.task}/pretrain_model/{PurePosixPath(urlsplit(address).path).stem}"


ON_CLUSTER = SuitePaths()


class Suite(Protocol):
    """The commands that train a family of models."""

    @property
    def name(self) -> str:
        """Its name in ``Project``; case does not matter."""
        ...

    @property
    def default_image(self) -> str:
        """The image of its pods if the training names none; empty without a default."""
        ...

    def train_command(self, task: TrainingInputs, place: SuitePaths) -> Sequence[str]:
        """Return the command that trains a model in `place`."""
        ...

    def export_command(self, task: TrainingInputs, place: SuitePaths) -> Sequence[str]:
        """Return the command that turns the trained weights into an inference model."""
        ...

    def convert_command(self, task: TrainingInputs, place: SuitePaths) -> Sequence[str]:
        """Return the command that writes ``NAME/server`` and ``NAME/client`` for a server, run in the task's folder."""
        ...


class PaddleOCR:
    """PaddleOCR's own tools, run in the folder of its repository."""

    name = "PaddleOCR"
    default_image = "registry.baidubce.com/paddleflow-public/paddleocr:2.1.3-gpu-cuda10.2-cudnn7"

    def train_command(self, task: TrainingInputs, place: SuitePaths) -> Sequence[str]:
        """Return the command that trains a model in `place`."""
        words = ["python"]
        if task.worker_replicas > 1 or task.gpu_per_node > 1:
            gpus = ["--gpus", ",".join(map(str, range(task.gpu_per_node)))] if task.gpu_per_node else []
            words += ["-m", "paddle.distributed.launch", *gpus, "--log_dir", place.task]
        data = place.dataset(task.dataset)
        options = [
            *self._common(task, place),
            *([f"Global.pretrained_model={place.pretrained(task.pretrain_model)}"] if task.pretrain_model else []),
            f"Train.dataset.data_dir={data}",
            *([f"Train.dataset.label_file_list={_list(data, task.train_label)}"] if task.train_label else []),
            f"Eval.dataset.data_dir={data}",
            *([f"Eval.dataset.label_file_list={_list(data, task.test_label)}"] if task.test_label else []),
        ]
        return [*words, "tools/train.py", "-c", task.config_path, "-o", *options]

    def export_command(self, task: TrainingInputs, place: SuitePaths) -> Sequence[str]:
        """Return the command that exports the best weights of this training, with the network it trained."""
        weights = f"Global.pretrained_model={place.models}best_accuracy"
        return ["python", "tools/export_model.py", "-c", task.config_path, "-o", *self._common(task, place), weights]

    def convert_command(self, task: TrainingInputs, place: SuitePaths) -> Sequence[str]:
        """Return the command of Paddle Serving's own converter."""
        return [
            *("python3", "-m", "paddle_serving_client.convert", "--dirname", place.inference),
            *("--model_filename", "inference.pdmodel", "--params_filename", "inference.pdiparams"),
            *("--serving_server", f"./{task.name}/server/", "--serving_client", f"./{task.name}/client/"),
        ]

    def _common(self, task: TrainingInputs, place: SuitePaths) -> list[str]:
        # A change may alter the network itself, so both commands need all of them.
        shown = ["Global.use_visualdl=True"] if task.use_visualdl else []
        folders = [f"Global.save_model_dir={place.models}", f"Global.save_inference_dir={place.inference}"]
        return [*changes_of(task), *shown, *folders]


class Script:
    """Your own Python program, in an image that also contains cloudedge; it has two commands.

    PROGRAM train --data DIR --models DIR --logs DIR [--pretrained FILE] [--train-label FILE] [--test-label FILE]
    PROGRAM export --models DIR --inference DIR

    Both may be followed by ``-o key=value ...``, the training's Config Changes.
    """

    name = "Script"
    default_image = ""

    def train_command(self, task: TrainingInputs, place: SuitePaths) -> Sequence[str]:
        """Return the command that trains a model in `place`."""
        data = place.dataset(task.dataset)
        optional = {
            "--pretrained": place.pretrained(task.pretrain_model) if task.pretrain_model else "",
            "--train-label": data + task.train_label if task.train_label else "",
            "--test-label": data + task.test_label if task.test_label else "",
        }
        given = [word for flag, value in optional.items() if value for word in (flag, value)]
        folders = ["--data", data, "--models", place.models, "--logs", place.logs]
        return ["python", task.config_path, "train", *folders, *given, *_change_options(task)]

    def export_command(self, task: TrainingInputs, place: SuitePaths) -> Sequence[str]:
        """Return the command that exports the trained model."""
        folders = ["--models", place.models, "--inference", place.inference]
        return ["python", task.config_path, "export", *folders, *_change_options(task)]

    def convert_command(self, task: TrainingInputs, place: SuitePaths) -> Sequence[str]:
        """Return the command of our own converter: Paddle Serving's cannot read Paddle 3's format."""
        return ["python", "-m", "cloudedge.pipeline", "convert", "--inference", place.inference, "--output", task.name]


_SUITES: dict[str, Suite] = {suite.name.lower(): suite for suite in (PaddleOCR(), Script())}


def register(suite: Suite) -> None:
    """Add a suite, or replace one of the same name."""
    _SUITES[suite.name.lower()] = suite


def suites() -> dict[str, Suite]:
    """Return every suite by its name in lower case, including those of installed packages."""
    found: dict[str, Suite] = {}
    for point in entry_points(group=_GROUP):
        try:
            made: Suite = point.load()()
        except Exception as error:
            raise ConfigError(f"the suite {point.name} of {point.value} does not load: {error}") from error
        found[made.name.lower()] = made
    return found | _SUITES


def find_suite(project: str) -> Suite:
    """Return a suite by name.

    Raises:
        InputError: the suite does not exist.
    """
    known = suites()
    if project.lower() not in known:
        names = ", ".join(suite.name for suite in known.values())
        raise InputError(
            f"the suite {project!r} does not exist",
            hint=f"Use one of {names}, or add one with `cloudedge.pipeline.register`.",
        )
    return known[project.lower()]


def changes_of(task: TrainingInputs) -> list[str]:
    """Split the configuration's changes at commas that another ``key=`` follows, so that values may hold commas.

    Raises:
        InputError: a change is not ``key=value``.
    """
    parts = [part.strip() for part in re.split(r",(?=\s*[\w.\-]+=)", task.config_changes) if part.strip()]
    wrong = [part for part in parts if not _CHANGE.fullmatch(part)]
    if wrong:
        raise InputError(f"Config Changes: {wrong[0]!r} is not key=value")
    return parts


def _change_options(task: TrainingInputs) -> list[str]:
    changes = changes_of(task)
    return ["-o", *changes] if changes else []


def _list(folder: str, label: str) -> str:
    return json.dumps([f"{folder}{label}"])
