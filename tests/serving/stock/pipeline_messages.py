"""The Pipeline service's messages, written down for the test client alone: our own code is what it tests."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "baidu.paddle_serving.pipeline_serving"
METHOD = f"/{PACKAGE}.PipelineService/inference"

MESSAGES = {
    "Tensor": (
        "1 int64_data *int64, 2 float_data *float, 3 int_data *int32, 4 float64_data *double, 5 uint32_data *uint32, "
        "6 bool_data *bool, 7 complex64_data *float, 8 complex128_data *double, 9 str_data *string, "
        "10 byte_data bytes, 20 elem_type int32, 21 shape *int32, 22 lod *int32, 23 name string"
    ),
    "Request": (
        "1 key *string, 2 value *string, 3 tensors *Tensor, 4 name string, 5 method string, 6 logid int64, "
        "7 clientip string"
    ),
    "Response": "1 err_no int32, 2 err_msg string, 3 key *string, 4 value *string, 5 tensors *Tensor",
}


def _describe() -> descriptor_pb2.FileDescriptorProto:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="stock_pipeline_test.proto", package=PACKAGE, syntax="proto3")
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for text in fields.split(", "):
            number, name, kind = text.split()
            field = described.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if kind[0] == "*" else kinds.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            if kind in MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_describe())
Request, Response, Tensor = (
    message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    for name in ("Request", "Response", "Tensor")
)
