"""The files of Paddle Serving's own tools: a model's description, a server's work directory, a client's routing.

Pure: names and values in, messages and texts out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cloudedge.bundle import Signature, Variable
from cloudedge.errors import ConfigError
from cloudedge.serving.conf._messages import (
    GeneralModelConfig,
    InferServiceConf,
    ModelToolkitConf,
    ResourceConf,
    SDKConf,
    WorkflowConf,
    write_text,
)

__all__ = [
    "TYPE_NUMBERS",
    "ClientVariant",
    "EngineOptions",
    "model_config",
    "sdk_config",
    "signature_of",
    "work_directory",
]

TYPE_NUMBERS = {
    "int64": 0,
    "float32": 1,
    "int32": 2,
    "float64": 3,
    "int16": 4,
    "float16": 5,
    "uint8": 7,
    "int8": 8,
    "bool": 9,
    "string": 20,
}
"""The numbers of element types in ``feed_type`` and ``fetch_type``."""
_TYPE_NAMES = {number: name for name, number in TYPE_NUMBERS.items()}

InferOp = Literal["GeneralInferOp", "GeneralDistKVInferOp", "GeneralDistKVQuantInferOp"]


def model_config(signature: Signature, *, lod: Sequence[str] = ()) -> Any:
    """Describe a model as ``serving_server_conf.prototxt`` does.

    Args:
        signature: The program's feeds and fetches.
        lod: Names of the feeds with levels of detail.
    """
    config = GeneralModelConfig()
    for variable in signature.feed:
        _add(config.feed_var, "feed_type", variable, is_lod=variable.name in lod)
    # In the program's own order: servers find an output by its position in this list. Upstream's saver sorts both.
    for variable in signature.fetch:
        _add(config.fetch_var, "fetch_type", variable, is_lod=False)
    return config


def _add(variables: Any, type_field: str, variable: Variable, *, is_lod: bool) -> None:
    added = variables.add(name=variable.name, alias_name=variable.alias or variable.name, is_lod_tensor=is_lod)
    setattr(added, type_field, TYPE_NUMBERS[variable.dtype])
    # Sizes that vary are left out, as upstream does; a feed with levels of detail has no other size.
    added.shape.extend([-1] if is_lod else [size for size in variable.shape if size >= 0])


def signature_of(config: Any) -> Signature:
    """Read a signature back from a model's description.

    The description holds neither sizes that vary nor look-ups.

    Raises:
        ConfigError: An element type is unknown.
    """

    def variables(listed: Any, type_field: str) -> tuple[Variable, ...]:
        found = []
        for variable in listed:
            number = getattr(variable, type_field)
            if number not in _TYPE_NAMES:
                raise ConfigError(f"{variable.name}: {type_field} {number} is not an element type", number=number)
            dtype: Any = _TYPE_NAMES[number]
            alias = "" if variable.alias_name == variable.name else variable.alias_name
            found.append(Variable(name=variable.name, alias=alias, dtype=dtype, shape=tuple(variable.shape)))
        return tuple(found)

    return Signature(feed=variables(config.feed_var, "feed_type"), fetch=variables(config.fetch_var, "fetch_type"))


@dataclass(frozen=True)
class EngineOptions:
    """The options of a C++ server for one model; the defaults are upstream's."""

    port: int = 9393
    op: InferOp = "GeneralInferOp"
    memory_optimization: bool = True
    ir_optimization: bool = False
    runtime_thread_num: int = 0
    """Number of threads that batch queued requests; 0: no queue."""
    batch_infer_size: int = 32
    gpu_ids: tuple[int, ...] = ()
    reload_on: Literal["timestamp_ne", "timestamp_gt", "none"] = "timestamp_ne"
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of EngineDesc, by name."""


def work_directory(workdir: str, model_dir: str, config: Any, options: EngineOptions) -> dict[str, str]:
    """Return the files of a C++ server's work directory, by path below it.

    Args:
        workdir: Path of the work directory, relative to the server's current directory.
        model_dir: Path of the model, likewise.
        config: The model's description.
        options: The options of the server.

    Raises:
        ConfigError: The engine does not know an option.
    """
    node = f"{options.op}_0"
    chain = [("GeneralReaderOp_0", "GeneralReaderOp"), (node, options.op), ("GeneralResponseOp_0", "GeneralResponseOp")]
    workflow = WorkflowConf()
    sequence = workflow.workflows.add(name="workflow1", workflow_type="Sequence")
    for place, (name, kind) in enumerate(chain):
        added = sequence.nodes.add(name=name, type=kind)
        if place:
            added.dependencies.add(name=chain[place - 1][0], mode="RO")
    service = InferServiceConf(port=options.port)
    service.services.add(name="GeneralModelService", workflows=["workflow1"])
    resource = ResourceConf(
        model_toolkit_path=[workdir],
        model_toolkit_file=[f"{node}/model_toolkit.prototxt"],
        general_model_path=[workdir],
        general_model_file=[f"{node}/general_model.prototxt"],
    )
    if options.op != "GeneralInferOp":
        resource.cube_config_path, resource.cube_config_file = workdir, "cube.conf"
        if options.op == "GeneralDistKVQuantInferOp":
            resource.cube_quant_bits = 8
    toolkit = ModelToolkitConf()
    engine = toolkit.engines.add(
        name=node,
        type="PADDLE_INFER",
        reloadable_meta=f"{model_dir}/fluid_time_file",
        reloadable_type=options.reload_on,
        model_dir=model_dir,
        gpu_ids=options.gpu_ids or [-1],
        enable_memory_optimization=options.memory_optimization,
        enable_ir_optimization=options.ir_optimization,
        runtime_thread_num=options.runtime_thread_num,
        batch_infer_size=options.batch_infer_size,
        use_gpu=bool(options.gpu_ids),
        enable_overrun=False,
        allow_split_request=True,
        combined_model=False,
        gpu_multi_stream=False,
        **dict.fromkeys(("use_trt", "use_lite", "use_xpu", "use_ascend_cl"), False),
    )
    for name, value in options.more.items():
        try:
            setattr(engine, name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"engine option {name}={value!r}: {error}", field=name) from error
    return {
        "infer_service.prototxt": write_text(service),
        "workflow.prototxt": write_text(workflow),
        "resource.prototxt": write_text(resource),
        f"{node}/model_toolkit.prototxt": write_text(toolkit),
        f"{node}/general_model.prototxt": write_text(config),
        f"{node}/fluid_time_file": "",
    }


@dataclass(frozen=True)
class ClientVariant:
    """Servers that share a part of a client's calls."""

    tag: str
    endpoints: tuple[str, ...]
    """``host:port``."""
    weight: int


def sdk_config(variants: Sequence[ClientVariant], *, rpc_timeout_ms: int = 200_000) -> Any:
    """Make the configuration of a brpc client: its servers and their weights (``predictors.prototxt``).

    Raises:
        ConfigError: There is no variant, or one has no servers or a negative weight, or a tag occurs twice.
    """
    tags = [variant.tag for variant in variants]
    total = sum(variant.weight for variant in variants)
    if total <= 0 or len(set(tags)) != len(tags) or any(v.weight < 0 or not v.endpoints for v in variants):
        raise ConfigError(
            "a client needs variants with different tags, with servers, and with weights that are not all 0",
            variants=[(v.tag, v.weight, len(v.endpoints)) for v in variants],
        )
    config = SDKConf()
    default = config.default_variant_conf
    default.tag = "default"
    connection = default.connection_conf
    connection.connect_timeout_ms, connection.rpc_timeout_ms = 2000, rpc_timeout_ms
    connection.connect_retry_count, connection.max_connection_per_host = 2, 100
    connection.hedge_request_timeout_ms, connection.hedge_fetch_retry_count = -1, 2
    connection.connection_type = "pooled"
    default.naming_conf.cluster_filter_strategy = "Default"
    default.naming_conf.load_balance_strategy = "la"
    rpc = default.rpc_parameter
    rpc.compress_type, rpc.package_size, rpc.protocol, rpc.max_channel_per_request = 0, 20, "baidu_std", 3
    predictor = config.predictors.add(
        name="general_model",
        service_name="baidu.paddle_serving.predictor.general_model.GeneralModelService",
        endpoint_router="WeightedRandomRender",
    )
    predictor.weighted_random_render_conf.variant_weight_list = "|".join(str(v.weight) for v in variants)
    for variant in variants:
        predictor.variants.add(tag=variant.tag).naming_conf.cluster = f"list://{','.join(variant.endpoints)}"
    return config
