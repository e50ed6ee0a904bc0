"""The inputs of the five steps, with the names, types and defaults that pipelines use.

One class per step. The component files, the launcher's arguments and the Python signatures all derive from these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from cloudedge.errors import InputError

__all__ = [
    "ENDPOINT",
    "STEPS",
    "Action",
    "DatasetInputs",
    "Input",
    "ModelHubInputs",
    "ServingInputs",
    "StepInputs",
    "TrainingInputs",
    "VisualDLInputs",
    "inputs_of",
    "read_arguments",
    "read_pairs",
    "read_values",
    "write_arguments",
]

Action = Literal["apply", "create", "patch", "delete"]
"""Create or update it, create it, change the existing one, delete it."""
ENDPOINT = "http://minio-service.kubeflow:9000"
"""The address of Kubeflow's own object store."""
_SPELLINGS = {"pvc": "PVC", "ps": "PS", "gpu": "GPU", "visualdl": "VisualDL"}
_DAY_MINUTES = 1440


def _input(description: str, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """The inputs of every step."""

    step: ClassVar[str]
    title: ClassVar[str]

    name: str = _input("Name of the object the step makes.")
    namespace: str = _input("Namespace of all objects the step makes.", "kubeflow")
    action: str = _input("apply, create, patch or delete.", "apply")
    timeout_minutes: int = _input("How long to wait before the step fails.", _DAY_MINUTES)

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            known = ", ".join(get_args(Action))
            raise InputError(f"the action {self.action!r} does not exist", hint=f"Use one of {known}.")
        if not _NAME.fullmatch(self.name):
            raise InputError(
                f"{self.step}: {self.name!r} cannot be the name of an object",
                hint="Use lower-case letters, digits and '-', a letter first.",
            )
        if self.timeout_minutes < 1:
            raise InputError(f"{self.step}: a timeout of {self.timeout_minutes} minutes is too short")


_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class DatasetInputs(StepInputs):
    """A folder of the shared SampleSet ``data-center``, filled from a source and warmed up."""

    step: ClassVar[str] = "dataset"
    title: ClassVar[str] = "Dataset"

    partitions: int = _input("Number of nodes that cache the data.", 1)
    source_uri: str = _input("Source of the data: bos://bucket.endpoint/prefix/, s3://..., file:///...")
    source_secret: str = _input("Secret with the source's keys; needed for public data too, then with empty keys.")


@dataclass(frozen=True, kw_only=True)
class TrainingInputs(StepInputs):
    """A PaddleJob that trains a suite's model, and the jobs that export and convert it."""

    step: ClassVar[str] = "training"
    title: ClassVar[str] = "Training"

    project: str = _input("The suite: PaddleOCR, Script, or a registered one.")
    image: str = _input("Image of the pods; empty for the suite's own.")
    config_path: str = _input("The suite's configuration; for Script the program itself.")
    dataset: str = _input("Name of the dataset step whose data it reads.")
    pvc_name: str = _input("Volume claim for models and logs.")
    worker_replicas: int = _input("Number of workers.")
    config_changes: str = _input("Changes to the configuration: key=value,key=value.", "")
    pretrain_model: str = _input("Address of pretrained weights.", "")
    train_label: str = _input("File with the training labels, in the data set.", "")
    test_label: str = _input("File with the test labels, in the data set.", "")
    ps_replicas: int = _input("Number of parameter servers.", 0)
    gpu_per_node: int = _input("GPUs of each worker.", 0)
    use_visualdl: bool = _input("Write logs for VisualDL, and show them; with one worker only.", default=False)
    save_inference: bool = _input("Export the trained weights as an inference model.", default=True)
    need_convert: bool = _input("Pack the inference model for Paddle Serving.", default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worker_replicas < 1 or self.ps_replicas < 0 or self.gpu_per_node < 0:
            raise InputError(f"training {self.name}: wanted at least one worker and no negative numbers")
        if self.use_visualdl and self.worker_replicas > 1 and self.action != "delete":
            raise InputError(
                f"training {self.name}: {self.worker_replicas} workers would write the same logs for VisualDL",
                hint="Leave out Use VisualDL, or train with one worker.",
            )
        if self.need_convert and not self.save_inference:
            raise InputError(
                f"training {self.name}: there is nothing to convert without an inference model",
                hint="Set Save Inference, or leave out Need Convert.",
            )


@dataclass(frozen=True, kw_only=True)
class ModelHubInputs(StepInputs):
    """A packed model of a training, kept under a version with its digest and size."""

    step: ClassVar[str] = "modelhub"
    title: ClassVar[str] = "ModelHub"

    endpoint: str = _input("The object store that keeps models.", ENDPOINT)
    model_name: str = _input("Name of the model: the training's name.")
    pvc_name: str = _input("Volume claim of the training.")
    model_version: str = _input("Version; `latest` may be overwritten, no other may.", "latest")


@dataclass(frozen=True, kw_only=True)
class ServingInputs(StepInputs):
    """A PaddleService that fetches a model from the hub, verifies it and answers with it."""

    step: ClassVar[str] = "serving"
    title: ClassVar[str] = "Serving"

    image: str = _input("Image of the server, repository:tag or repository@sha256:digest.")
    model_name: str = _input("Name of the model.")
    model_version: str = _input("Version of the model.", "latest")
    endpoint: str = _input("The object store that keeps models.", ENDPOINT)
    port: int = _input("Port of the server and of the service.", 9292)
    server: str = _input("Server in the image: paddle-serving or cloudedge.", "paddle-serving")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server not in ("paddle-serving", "cloudedge"):
            raise InputError(f"the server {self.server!r} does not exist", hint="Use paddle-serving or cloudedge.")


@dataclass(frozen=True, kw_only=True)
class VisualDLInputs(StepInputs):
    """A VisualDL that shows the logs of a volume claim."""

    step: ClassVar[str] = "visualdl"
    title: ClassVar[str] = "VisualDL"

    pvc_name: str = _input("Volume claim with the logs.")
    logdir: str = _input("Folder of the logs in the pod.")
    mount_path: str = _input("Mount path of the claim.", "/mnt/task-center/")
    model: str = _input("A model file to show.", "")
    port: int = _input("Port of its pages.", 8040)
    cache_timeout: int = _input("Seconds it caches what it read; 0 for its default.", 0)
    language: str = _input("Language of its pages: zh or en; empty for the browser's.", "")
    public_path: str = _input("Path of its pages, behind a proxy.", "")
    api_only: bool = _input("Serve only the API.", default=False)
    image: str = _input("Image that contains visualdl; the launcher's own if empty.", "")


STEPS: Mapping[str, type[StepInputs]] = {
    kind.step: kind for kind in (DatasetInputs, TrainingInputs, ModelHubInputs, ServingInputs, VisualDLInputs)
}
"""The five steps by name."""


@dataclass(frozen=True)
class Input:
    """One input, as components describe it."""

    argument: str
    """Its name in Python and for the launcher: ``source_uri``."""
    title: str
    """Its name in the component: ``Source Uri``."""
    type: type
    description: str
    default: Any
    """`dataclasses.MISSING` if it is required."""

    @property
    def is_required(self) -> bool:
        """True if it is required."""
        return self.default is MISSING

    @property
    def flag(self) -> str:
        """The launcher's option: ``--source-uri``."""
        return "--" + self.argument.replace("_", "-")


def inputs_of(kind: type[StepInputs]) -> list[Input]:
    """Return a step's inputs, the required ones first."""
    types = get_type_hints(kind)
    found = [
        Input(each.name, _title(each.name), types[each.name], each.metadata["description"], each.default)
        for each in fields(kind)
    ]
    return sorted(found, key=lambda each: not each.is_required)


Given = TypeVar("Given", bound=StepInputs)


def read_values(kind: type[Given], values: Mapping[str, Any]) -> Given:
    """Make inputs from untyped values, as pipelines pass them: numbers as text or fractions, None for absent ones.

    Raises:
        InputError: a value is missing, unknown or not of its type.
    """
    known = {each.argument: each for each in inputs_of(kind)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InputError(f"{kind.step} has no input {unknown[0]!r}", hint=f"Its inputs: {', '.join(known)}.")
    found = {name: _typed(kind, known[name], value) for name, value in values.items() if value is not None}
    missing = [each.title for each in known.values() if each.is_required and each.argument not in found]
    if missing:
        raise InputError(f"{kind.step} needs {', '.join(missing)}")
    return kind(**found)


def read_arguments(words: Sequence[str]) -> StepInputs:
    """Read the launcher's arguments: a step's name, then ``--input value`` pairs; a value may begin with a dash.

    Raises:
        InputError: the step or an input does not exist.
    """
    if not words or words[0] not in STEPS:
        raise InputError(f"the step {' '.join(words[:1])!r} does not exist", hint=f"Use one of {', '.join(STEPS)}.")
    given = {name.replace("-", "_"): value for name, value in read_pairs(words).items()}
    return read_values(STEPS[words[0]], given)


def read_pairs(words: Sequence[str]) -> dict[str, str]:
    """Read the ``--name value`` pairs after a command's name; a value may begin with a dash.

    Raises:
        InputError: they are not pairs.
    """
    flags, values = words[1::2], words[2::2]
    if len(flags) != len(values) or any(not flag.startswith("--") for flag in flags):
        raise InputError(f"{words[0]} takes pairs: --name value")
    return {flag[2:]: value for flag, value in zip(flags, values, strict=True)}


def write_arguments(inputs: StepInputs) -> list[str]:
    """Return the launcher's arguments for these inputs."""
    pairs = [(each.flag, str(getattr(inputs, each.argument))) for each in inputs_of(type(inputs))]
    return [inputs.step, *(word for pair in pairs for word in pair)]


def _title(argument: str) -> str:
    return " ".join(_SPELLINGS.get(word, word.capitalize()) for word in argument.split("_"))


def _typed(kind: type[StepInputs], wanted: Input, value: Any) -> Any:
    found: Any = str(value)
    if wanted.type is bool:
        found = {"true": True, "1": True, "false": False, "0": False, "": False}.get(found.lower())
    elif wanted.type is int:
        with suppress(ValueError, OverflowError):
            found = int(float(found)) if float(found).is_integer() else None
    if type(found) is not wanted.type:
        raise InputError(f"{kind.step}: {wanted.title} is {value!r}, not of type {wanted.type.__name__}")
    return found
