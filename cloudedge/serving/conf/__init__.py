"""Paddle Serving's own configuration files: readers and writers."""

from cloudedge.serving.conf._files import (
    ClientVariant,
    EngineOptions,
    model_config,
    sdk_config,
    signature_of,
    work_directory,
)
from cloudedge.serving.conf._flags import read_flags, server_flags, write_flags
from cloudedge.serving.conf._messages import (
    GeneralModelConfig,
    InferServiceConf,
    ModelToolkitConf,
    ResourceConf,
    SDKConf,
    WorkflowConf,
    read_binary,
    read_text,
    write_binary,
    write_text,
)
from cloudedge.serving.conf._pipeline_config import (
    Dag,
    LocalService,
    PipelineConfig,
    PipelineOp,
    Tracer,
    read_pipeline,
    write_pipeline,
)

__all__ = [
    "ClientVariant",
    "Dag",
    "EngineOptions",
    "GeneralModelConfig",
    "InferServiceConf",
    "LocalService",
    "ModelToolkitConf",
    "PipelineConfig",
    "PipelineOp",
    "ResourceConf",
    "SDKConf",
    "Tracer",
    "WorkflowConf",
    "model_config",
    "read_binary",
    "read_flags",
    "read_pipeline",
    "read_text",
    "sdk_config",
    "server_flags",
    "signature_of",
    "work_directory",
    "write_binary",
    "write_flags",
    "write_pipeline",
    "write_text",
]
