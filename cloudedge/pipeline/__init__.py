"""Pipelines: data set, training, model hub, serving and VisualDL as steps that Kubeflow or this machine runs.

    from kfp import dsl
    from cloudedge.pipeline import component

    @dsl.pipeline
    def ctr(source: str):
        data = component("dataset")(name="clicks", source_uri=source, source_secret="none")
        component("training")(name="ctr", project="Script", ...).after(data)

Each step is a container with the launcher, ``python3 -m cloudedge.pipeline``. It makes the same Kubernetes objects as
the commands `cloudedge dataset`, `train` and `serving`, waits for them, and may be repeated at any time. The names
are imported on first use: writing pipelines needs no Kubernetes client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge._lazy import lazy_names
from cloudedge.pipeline._inputs import (
    STEPS,
    Action,
    DatasetInputs,
    ModelHubInputs,
    ServingInputs,
    StepInputs,
    TrainingInputs,
    VisualDLInputs,
)

if TYPE_CHECKING:
    from cloudedge.pipeline._cluster import ClusterSteps
    from cloudedge.pipeline._components import component, component_yaml, launcher_image
    from cloudedge.pipeline._graph import Compiled, PipelineStep, compile_file, steps_of
    from cloudedge.pipeline._local import LocalSteps, stop
    from cloudedge.pipeline._modelhub import ModelHub, ModelRecord
    from cloudedge.pipeline._objects import objects_of
    from cloudedge.pipeline._run import PipelineFailed, default_root, run_local, submit
    from cloudedge.pipeline._suites import Suite, SuitePaths, register, suites

__all__ = [
    "STEPS",
    "Action",
    "ClusterSteps",
    "Compiled",
    "DatasetInputs",
    "LocalSteps",
    "ModelHub",
    "ModelHubInputs",
    "ModelRecord",
    "PipelineFailed",
    "PipelineStep",
    "ServingInputs",
    "StepInputs",
    "Suite",
    "SuitePaths",
    "TrainingInputs",
    "VisualDLInputs",
    "compile_file",
    "component",
    "component_yaml",
    "default_root",
    "launcher_image",
    "objects_of",
    "register",
    "run_local",
    "steps_of",
    "stop",
    "submit",
    "suites",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_cluster": ("ClusterSteps",),
        "_components": ("component", "component_yaml", "launcher_image"),
        "_graph": ("Compiled", "PipelineStep", "compile_file", "steps_of"),
        "_local": ("LocalSteps", "stop"),
        "_modelhub": ("ModelHub", "ModelRecord"),
        "_objects": ("objects_of",),
        "_run": ("PipelineFailed", "default_root", "run_local", "submit"),
        "_suites": ("SuitePaths", "Suite", "register", "suites"),
    },
    {
        "Place": "cloudedge.pipeline.SuitePaths",
        "Record": "cloudedge.pipeline.ModelRecord",
        "Step": "cloudedge.pipeline.PipelineStep",
    },
)
