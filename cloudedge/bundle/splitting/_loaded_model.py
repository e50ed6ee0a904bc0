"""A saved model in Paddle's memory: the code that both program formats share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LoadedModel"]


class LoadedModel:
    """A program with its parameters in the global scope of a process that does nothing else."""

    def __init__(self, prefix: Path) -> None:
        import paddle  # noqa: PLC0415 - heavy

        self._paddle: Any = paddle
        paddle.enable_static()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._program: Any
        self._feeds: list[str]
        self._program, self._feeds, _ = paddle.static.load_inference_model(str(prefix), self._executor)

    def table(self, parameter: str) -> NDArray[Any]:
        """Return a parameter as a view on Paddle's own memory; numpy's other conversions copy it."""
        tensor = self._paddle.static.global_scope().find_var(parameter).get_tensor()
        return np.from_dlpack(_CpuTensor(tensor))

    def drop(self, parameters: list[str]) -> None:
        """Free parameters that have been written to files."""
        self._paddle.static.global_scope().erase(parameters)


class _CpuTensor:
    """A tensor of Paddle's scope behind the DLPack interface that numpy reads."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return self._tensor._to_dlpack()  # noqa: SLF001 - there is no public way to a tensor in a scope

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0
