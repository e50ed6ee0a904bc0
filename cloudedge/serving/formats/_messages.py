"""The protobuf messages of Paddle Serving's two services and of baidu_std's frames.

`_protobuf_tables` explains the notation of the tables below.
"""

from __future__ import annotations

from typing import Any

from cloudedge.serving.formats._protobuf_tables import make_messages

__all__ = [
    "GENERAL_SERVICE",
    "PIPELINE_SERVICE",
    "GeneralOutput",
    "GeneralRequest",
    "GeneralResponse",
    "GeneralTensor",
    "PipelineRequest",
    "PipelineResponse",
    "PipelineTensor",
    "RpcMeta",
]

PIPELINE = "baidu.paddle_serving.pipeline_serving"
GENERAL = "baidu.paddle_serving.predictor.general_model"
FRAMES = "brpc.policy"
PIPELINE_SERVICE = f"{PIPELINE}.PipelineService"
GENERAL_SERVICE = f"{GENERAL}.GeneralModelService"

# The ten kinds of data a Tensor may carry have the same numbers in both services.
DATA = (
    "1 int64_data *int64, 2 float_data *float, 3 int_data *int32, 4 float64_data *double, 5 uint32_data *uint32, "
    "6 bool_data *bool, 7 complex64_data *float, 8 complex128_data *double, "
)
MESSAGES = {
    PIPELINE: {
        "Tensor": DATA
        + "9 str_data *string, 10 byte_data bytes, 20 elem_type int32, 21 shape *int32, 22 lod *int32, 23 name string",
        "Request": "1 key *string, 2 value *string, 3 tensors *Tensor, 4 name string, 5 method string, "
        "6 logid int64, 7 clientip string",
        "Response": "1 err_no int32, 2 err_msg string, 3 key *string, 4 value *string, 5 tensors *Tensor",
    },
    GENERAL: {
        "Tensor": DATA
        + "9 data *string, 10 elem_type int32, 11 shape *int32, 12 lod *int32, 13 name string, 14 alias_name string, "
        "15 tensor_content bytes",
        "Request": "1 tensor *Tensor, 2 fetch_var_names *string, 3 profile_server bool, 4 log_id uint64",
        "ModelOutput": "1 tensor *Tensor, 2 engine_name string",
        "Response": "1 outputs *ModelOutput, 2 profile_time *int64, 3 profile_server bool, 4 log_id uint64, "
        "5 err_no int32, 6 err_msg string",
    },
    FRAMES: {
        "RpcRequestMeta": "1 service_name string, 2 method_name string, 3 log_id int64",
        "RpcResponseMeta": "1 error_code int32, 2 error_text string",
        "RpcMeta": "1 request RpcRequestMeta, 2 response RpcResponseMeta, 3 compress_type int32, "
        "4 correlation_id int64, 5 attachment_size int32, "
        "1001 pin string, 1002 defaulted double",  # these two are cloudedge's; other programs ignore them
    },
}


# brpc's own messages are proto2, which writes a zero that was set, such as an error_code of 0.
_pipeline, _general, _frames = (
    make_messages(package, messages, syntax="proto2" if package == FRAMES else "proto3")
    for package, messages in MESSAGES.items()
)

PipelineTensor: Any = _pipeline["Tensor"]
PipelineRequest: Any = _pipeline["Request"]
PipelineResponse: Any = _pipeline["Response"]
GeneralTensor: Any = _general["Tensor"]
GeneralRequest: Any = _general["Request"]
GeneralOutput: Any = _general["ModelOutput"]
GeneralResponse: Any = _general["Response"]
RpcMeta: Any = _frames["RpcMeta"]
