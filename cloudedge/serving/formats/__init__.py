"""Wire formats: the messages of Paddle Serving's services, and arrays in JSON, text and protobuf."""

from __future__ import annotations

from cloudedge.serving.formats._body_cost import (
    GENERAL_ANSWER,
    GENERAL_COST,
    PIPELINE_COST,
    BodyLimits,
    TooLarge,
    json_cost,
    message_cost,
)
from cloudedge.serving.formats._feeds import plan_of
from cloudedge.serving.formats._gzip import GZIP, ZLIB, deflate, inflate, most_inflated
from cloudedge.serving.formats._messages import (
    GENERAL_SERVICE,
    PIPELINE_SERVICE,
    GeneralRequest,
    GeneralResponse,
    PipelineRequest,
    PipelineResponse,
    RpcMeta,
)
from cloudedge.serving.formats._protobuf_tables import make_messages
from cloudedge.serving.formats._tensors import Malformed, malformed, npy_array, string_array, tensor_fields
from cloudedge.serving.formats._text_arrays import json_numbers, json_text, nested_array, parse_array
from cloudedge.serving.formats._wire_tensor import GENERAL, PIPELINE, WireTensor, from_json, from_message

__all__ = [
    "GENERAL",
    "GENERAL_ANSWER",
    "GENERAL_COST",
    "GENERAL_SERVICE",
    "GZIP",
    "PIPELINE",
    "PIPELINE_COST",
    "PIPELINE_SERVICE",
    "ZLIB",
    "BodyLimits",
    "GeneralRequest",
    "GeneralResponse",
    "Malformed",
    "PipelineRequest",
    "PipelineResponse",
    "RpcMeta",
    "TooLarge",
    "WireTensor",
    "deflate",
    "from_json",
    "from_message",
    "inflate",
    "json_cost",
    "json_numbers",
    "json_text",
    "make_messages",
    "malformed",
    "message_cost",
    "most_inflated",
    "nested_array",
    "npy_array",
    "parse_array",
    "plan_of",
    "string_array",
    "tensor_fields",
]
