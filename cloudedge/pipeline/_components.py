"""The steps as component files, in the format that both generations of Kubeflow's SDK read."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from cloudedge.errors import ConfigError, InputError
from cloudedge.images import local_name
from cloudedge.pipeline._inputs import STEPS, Input, inputs_of

__all__ = ["IMAGE_VARIABLE", "LAUNCHER", "component", "component_yaml", "importing_kfp", "launcher_image"]

LAUNCHER = ("python3", "-m", "cloudedge.pipeline")
"""The command of a step's container; the step and its inputs follow."""
IMAGE_VARIABLE = "CLOUDEDGE_PIPELINE_IMAGE"
"""The variable with the launcher's image: for authors of pipelines, and in the container for the objects it makes."""
_TYPES = {str: "String", int: "Integer", bool: "Boolean"}


def launcher_image() -> str:
    """Return the image of the steps: by default the one that `cloudedge image build pipeline` makes."""
    return os.environ.get(IMAGE_VARIABLE) or local_name("pipeline")


def component_yaml(step: str, *, image: str = "") -> str:
    """Return a step as a component file.

    Args:
        step: dataset, training, modelhub, serving or visualdl.
        image: The launcher's image; `launcher_image` if left out.

    Raises:
        InputError: the step does not exist.
    """
    if step not in STEPS:
        raise InputError(f"the step {step!r} does not exist", hint=f"Use one of {', '.join(STEPS)}.")
    kind, runs = STEPS[step], image or launcher_image()
    inputs = inputs_of(kind)
    # No outputs: a step's objects are found by its name. No if-then arguments: every input has a value, so that both
    # generations and the local runner pass the same words.
    described = {
        "name": kind.title,
        "description": (kind.__doc__ or "").strip(),
        "inputs": [_described(each) for each in inputs],
        "implementation": {
            "container": {
                "image": runs,
                "command": [*LAUNCHER, step],
                "args": [part for each in inputs for part in (each.flag, {"inputValue": each.title})],
                "env": {IMAGE_VARIABLE: runs},
            }
        },
    }
    return yaml.safe_dump(described, sort_keys=False, width=120)


@functools.cache
def component(step: str, *, image: str = "") -> Callable[..., Any]:
    """Return a step for use in a ``@dsl.pipeline``; it takes its inputs by name and returns the task.

    The task never comes from Kubeflow's cache: a repeated training would otherwise do nothing.

    Raises:
        ConfigError: kfp is not installed.
    """
    with importing_kfp():
        from kfp import components  # noqa: PLC0415 - an extra, and slow to import
    loaded = components.load_component_from_text(component_yaml(step, image=image))

    @functools.wraps(loaded)
    def task(**inputs: Any) -> Any:
        made = loaded(**inputs)
        made.set_caching_options(enable_caching=False)
        return made

    return task


@contextlib.contextmanager
def importing_kfp() -> Iterator[None]:
    """Turn a failed import of kfp into the advice to install it.

    Raises:
        ConfigError: kfp is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError("pipelines need kfp", hint="Run `pip install 'cloudedge[pipeline]'`.") from error


def _described(each: Input) -> dict[str, Any]:
    found: dict[str, Any] = {"name": each.title, "type": _TYPES[each.type], "description": each.description}
    if not each.is_required:
        found |= {"default": str(each.default), "optional": True}
    return found
