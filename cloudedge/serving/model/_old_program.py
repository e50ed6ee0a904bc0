"""The signature of an old program: the feeds and fetches in a `.pdmodel` file, which is a protobuf message.

`formats.make_messages` explains the notation of the table below.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from cloudedge.bundle import Signature, Variable
from cloudedge.serving.formats import make_messages

__all__ = ["read_old_signature"]

_TYPES = {0: "bool", 1: "int16", 2: "int32", 3: "int64", 4: "float16", 5: "float32", 6: "float64"}
_TYPES |= {20: "uint8", 21: "int8"}
_Program: Any = make_messages(
    "paddle.framework.proto",
    {
        "TensorDesc": "1 data_type int32, 2 dims *int64",
        "DenseTensor": "1 tensor TensorDesc",
        "VarType": "3 dense_tensor DenseTensor",
        "VarDesc": "1 name string, 2 type VarType",
        "Arguments": "1 parameter string, 2 arguments *string",
        "Attribute": "1 name string, 3 i int32",
        "OpDesc": "1 inputs *Arguments, 2 outputs *Arguments, 3 type string, 4 attrs *Attribute",
        "BlockDesc": "3 vars *VarDesc, 4 ops *OpDesc",
        "ProgramDesc": "1 blocks *BlockDesc",
    },
    syntax="proto2",
)["ProgramDesc"]


def read_old_signature(path: Path) -> Signature:
    """Read feeds and fetches, in their order.

    Raises:
        ValueError, LookupError: The file is no such program, or a feed has a type that clients cannot send.
    """
    try:
        block = _Program.FromString(path.read_bytes()).blocks[0]
    except DecodeError as error:
        raise ValueError("not a program") from error
    kinds = {variable.name: variable.type.dense_tensor.tensor for variable in block.vars}
    return Signature(
        feed=tuple(_variable(name, kinds[name]) for name in _names(block, "feed", "outputs")),
        fetch=tuple(_variable(name, kinds[name]) for name in _names(block, "fetch", "inputs")),
    )


def _names(block: Any, kind: str, side: str) -> Iterator[str]:
    """Return the variables on one side of the operators of a kind, in the order of their columns."""
    found = [
        (next((attribute.i for attribute in operator.attrs if attribute.name == "col"), 0), getattr(operator, side)[0])
        for operator in block.ops
        if operator.type == kind
    ]
    return (argument.arguments[0] for _, argument in sorted(found, key=lambda each: each[0]))


def _variable(name: str, tensor: Any) -> Variable:
    return Variable.model_validate({"name": name, "dtype": _TYPES[tensor.data_type], "shape": tuple(tensor.dims)[1:]})
