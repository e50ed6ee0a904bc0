"""The protobuf messages of Paddle Serving's configuration files, and their text form.

`cloudedge.serving.formats._protobuf_tables` explains the notation of the table below.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError, EncodeError, Message

from cloudedge.errors import ConfigError
from cloudedge.serving.formats import make_messages

__all__ = [
    "GeneralModelConfig",
    "InferServiceConf",
    "ModelToolkitConf",
    "ResourceConf",
    "SDKConf",
    "WorkflowConf",
    "read_binary",
    "read_text",
    "write_binary",
    "write_text",
]

PACKAGE = "baidu.paddle_serving.configure"
LIMIT = 16 * 1024 * 1024
"""Larger than any of these files needs to be."""

_VARIABLE = "1 name string, 2 alias_name string, 3 is_lod_tensor bool=false, 4 {} int32=0, 5 shape *int32"
_MESSAGES = {
    "FeedVar": _VARIABLE.format("feed_type"),
    "FetchVar": _VARIABLE.format("fetch_type"),
    "GeneralModelConfig": "1 feed_var *FeedVar, 2 fetch_var *FetchVar",
    "EngineDesc": "1 name !string, 2 type !string, 3 reloadable_meta !string, 4 reloadable_type !string, "
    "5 model_dir !string, 6 gpu_ids *int32, 7 version_file string, 8 version_type string, "
    "10 sparse_param_service_type Sparse, 11 sparse_param_service_table_name string, "
    "12 enable_memory_optimization bool, 13 enable_ir_optimization bool, 14 use_trt bool, 15 use_lite bool, "
    "16 use_xpu bool, 17 use_gpu bool, 18 combined_model bool, 19 encrypted_model bool, 20 gpu_multi_stream bool, "
    "21 use_ascend_cl bool, 22 gpu_memory_mb int32=100, 23 cpu_math_thread_num int32=1, "
    "24 trt_workspace_size int32=33554432, 25 trt_use_static bool=false, 30 runtime_thread_num int32=0, "
    "31 batch_infer_size int32=32, 32 enable_overrun bool=false, 33 allow_split_request bool=true, "
    "34 min_subgraph_size int32=3, 35 min_input_shape %string, 36 max_input_shape %string, "
    "37 opt_input_shape %string, 40 enable_dist_model bool=false, 41 dist_carrier_id string=inference, "
    "42 dist_cfg_file string, 43 dist_nranks int32=0, 44 dist_endpoints *string, 45 dist_subgraph_index int32=0",
    "ModelToolkitConf": "1 engines *EngineDesc",
    "ResourceConf": "1 model_toolkit_path *string, 2 model_toolkit_file *string, 3 general_model_path *string, "
    "4 general_model_file *string, 10 cube_config_path string, 11 cube_config_file string, 12 cube_quant_bits int32, "
    "13 cube_cache_path string, 20 auth_product_name string, 21 auth_container_id string",
    "DAGNodeDependency": "1 name !string, 2 mode !string",
    "DAGNode": "1 name !string, 2 type !string, 3 address *string, 4 dependencies *DAGNodeDependency",
    "Workflow": "1 name !string, 2 workflow_type !string, 3 nodes *DAGNode",
    "WorkflowConf": "1 workflows *Workflow",
    "ValueMappedWorkflow": "1 request_field_value !string, 2 workflow !string",
    "InferService": "1 name !string, 2 merger string, 3 enable_map_request_to_workflow bool=false, "
    "4 request_field_key string, 5 value_mapped_workflows *ValueMappedWorkflow, 6 workflows *string",
    "InferServiceConf": "1 port uint32, 2 services *InferService",
    "ConnectionConf": "1 connect_timeout_ms !int32=2000, 2 rpc_timeout_ms !int32=20000, "
    "3 connect_retry_count !int32=2, 4 max_connection_per_host !int32=100, 5 hedge_request_timeout_ms !int32=-1, "
    "6 hedge_fetch_retry_count !int32=2, 7 connection_type !string=pooled",
    "NamingConf": "1 cluster_filter_strategy string=Default, 2 load_balance_strategy string=la, 3 cluster string",
    "RpcParameter": "1 compress_type !int32=0, 2 package_size !int32=20, 3 protocol !string=baidu_std, "
    "4 max_channel_per_request !int32=3",
    "SplitConf": "1 split_tag_name string, 2 tag_candidates string",
    "VariantConf": "1 tag !string, 2 connection_conf ConnectionConf, 3 naming_conf NamingConf, "
    "4 rpc_parameter RpcParameter, 5 split_conf SplitConf, 6 variant_router string",
    "WeightedRandomRenderConf": "1 variant_weight_list !string=50",
    "Predictor": "1 name !string=general_model, "
    "2 service_name !string=baidu.paddle_serving.predictor.general_model.GeneralModelService, "
    "3 endpoint_router !string=WeightedRandomRender, 4 weighted_random_render_conf !WeightedRandomRenderConf, "
    "5 variants *VariantConf",
    "SDKConf": "1 default_variant_conf !VariantConf, 2 predictors *Predictor",
}
_classes = make_messages(PACKAGE, _MESSAGES, syntax="proto2", enums={"Sparse": ("NONE", "LOCAL", "REMOTE")})

GeneralModelConfig: Any = _classes["GeneralModelConfig"]
ModelToolkitConf: Any = _classes["ModelToolkitConf"]
ResourceConf: Any = _classes["ResourceConf"]
WorkflowConf: Any = _classes["WorkflowConf"]
InferServiceConf: Any = _classes["InferServiceConf"]
SDKConf: Any = _classes["SDKConf"]


def read_text(kind: Any, text: str, what: str) -> Any:
    """Read a message from its text form.

    Raises:
        ConfigError: A line cannot be parsed, or a required field is missing.
    """
    if len(text) > LIMIT:
        raise ConfigError(f"{what} is {len(text)} characters long; no such file is longer than {LIMIT}")
    try:
        return _complete(text_format.Parse(text, kind()), what)
    except text_format.ParseError as error:
        raise ConfigError(f"{what}: {error}", hint="The file is a protobuf message in text form.") from error


def read_binary(kind: Any, raw: bytes, what: str) -> Any:
    """Read a message from its binary form (``.stream.prototxt``).

    Raises:
        ConfigError: The bytes are no such message.
    """
    try:
        return _complete(kind.FromString(raw), what)
    except DecodeError as error:
        raise ConfigError(f"{what} is not a binary {kind.DESCRIPTOR.name}: {error}") from error


def write_text(message: Message) -> str:
    """Write a message as upstream's tools do: only the fields that are set, in the order of their numbers."""
    return text_format.MessageToString(_complete(message, type(message).DESCRIPTOR.name), as_utf8=False)


def write_binary(message: Message) -> bytes:
    """Write a message in binary form."""
    try:
        return message.SerializeToString(deterministic=True)
    except EncodeError as error:
        raise ConfigError(f"{type(message).DESCRIPTOR.name}: {error}") from error


def _complete(message: Message, what: str) -> Message:
    missing = message.FindInitializationErrors()  # type: ignore[attr-defined] # all implementations have it
    if missing:
        raise ConfigError(f"{what} lacks {', '.join(missing)}", fields=missing)
    return message
