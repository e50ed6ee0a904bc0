"""The steps as components: one file each, in the format that both generations of Kubeflow's SDK read."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import yaml

from cloudedge.errors import ConfigError, InputError
from cloudedge.images import local_name
from cloudedge.pipeline._inputs import STEPS, Input, inputs_of

__all__ = ["IMAGE_VARIABLE", "LAUNCHER", "component", "component_yaml", "launcher_image"]

LAUNCHER = ("python3", "-m", "cloudedge.pipeline")
"""What runs in a step's container; the step and its inputs follow."""
IMAGE_VARIABLE = "CLOUDEDGE_PIPELINE_IMAGE"
"""Names the image of the launcher: for who writes pipelines, and in the container for the objects it makes."""
_TYPES = {str: "String", int: "Integer", bool: "Boolean"}


def launcher_image() -> str:
    """Return the image that steps run in; what `cloudedge image build pipeline` makes unless told otherwise."""
    return os.environ.get(IMAGE_VARIABLE) or local_name("pipeline")


def component_yaml(step: str, *, image: str = "") -> str:
    """Write a step as a component file.

    Args:
        step: dataset, training, modelhub, serving or visualdl.
        image: Of the launcher; `launcher_image` if left out.

    Raises:
        InputError: there is no such step.
    """
    if step not in STEPS:
        raise InputError(f"there is no step {step!r}", hint=f"There are {', '.join(STEPS)}.")
    kind, runs = STEPS[step], image or launcher_image()
    inputs = inputs_of(kind)
    # No outputs: what a step makes is found by its name. No if-then arguments: every input has a value, so that both
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
    """Return a step for use in a ``@dsl.pipeline``; it takes its inputs by name and gives the task.

    The task is never taken from Kubeflow's cache: a training that was run before would do nothing.

    Raises:
        ConfigError: kfp is not installed.
    """
    try:
        from kfp import components  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise ConfigError("pipelines need kfp", hint="pip install 'cloudedge[pipeline]'") from error
    loaded = components.load_component_from_text(component_yaml(step, image=image))

    @functools.wraps(loaded)
    def task(**inputs: Any) -> Any:
        made = loaded(**inputs)
        made.set_caching_options(enable_caching=False)
        return made

    return task


def _described(each: Input) -> dict[str, Any]:
    found: dict[str, Any] = {"name": each.title, "type": _TYPES[each.type], "description": each.description}
    if not each.is_required:
        found |= {"default": str(each.default), "optional": True}
    return found
