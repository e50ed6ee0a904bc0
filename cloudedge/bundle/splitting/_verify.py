"""Comparing a model in pieces with the whole, both as the runtime would load them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle.contents import Lookup, largest_difference
from cloudedge.bundle.splitting._sample_requests import Request
from cloudedge.bundle.tables import SafetensorsFile
from cloudedge.errors import InputError

__all__ = ["Predictor", "ask_whole", "compare", "last_line", "rows_of"]


class Predictor:
    """A saved model, as the runtime would load it."""

    def __init__(self, prefix: Path, suffix: str) -> None:
        from paddle import inference  # noqa: PLC0415 - heavy

        parameters = prefix.with_name(f"{prefix.name}.pdiparams")  # of a program that has any
        config = inference.Config(f"{prefix}{suffix}", str(parameters) if parameters.exists() else "")
        config.disable_glog_info()
        config.disable_mkldnn()  # answers a dense DeepFM wrongly, by 0.05, in Paddle 3.3.1
        self._predictor = inference.create_predictor(config)
        self.inputs: list[str] = self._predictor.get_input_names()
        self.outputs: list[str] = self._predictor.get_output_names()

    def __call__(self, request: Request) -> list[NDArray[Any]]:
        for name in self.inputs:
            handle = self._predictor.get_input_handle(name)
            handle.reshape(request[name].shape)
            handle.copy_from_cpu(np.ascontiguousarray(request[name]))
        self._predictor.run()
        return [self._predictor.get_output_handle(name).copy_to_cpu() for name in self.outputs]


def ask_whole(
    prefix: Path, suffix: str, requests: list[Request], *, made_up: bool
) -> tuple[list[str], list[list[NDArray[Any]]]]:
    """Return the names of the whole model's outputs, and its answers.

    Raises:
        InputError: it fails, or answers with something that is not a number.
    """
    hint = "Give requests the model can answer: --samples FILE" if made_up else "Give samples the model can answer."
    try:
        whole = Predictor(prefix, suffix)
        expected = [whole(request) for request in requests]
    except Exception as error:  # as above
        raise InputError(f"the whole model does not answer: {last_line(error)}", hint=hint) from error
    for answer in expected:
        for name, array in zip(whole.outputs, answer, strict=True):
            if not np.isfinite(array).all():
                raise InputError(f"the whole model answers {name} with something that is not a number", hint=hint)
    return whole.outputs, expected


def rows_of(lookups: tuple[Lookup, ...], files: Mapping[str, Path]) -> Callable[[Request], Request]:
    """Return what looks up a request's rows in the files that were written."""
    values = {table: SafetensorsFile(path).array("values") for table, path in files.items()}

    def look_up(request: Request) -> Request:
        inputs = {}
        for lookup in lookups:
            ids = request[lookup.feed]
            rows = values[lookup.table][ids]
            rows[ids == lookup.padding_id] = 0
            inputs[lookup.input] = rows
        return inputs

    return look_up


def compare(
    answers: list[list[NDArray[Any]]], expected: list[list[NDArray[Any]]], names: list[str], tolerance: float
) -> float:
    """Return the largest absolute difference between the answers.

    Raises:
        InputError: it is larger than allowed, or shapes or types differ.
    """
    worst = 0.0
    for answer, wanted in zip(answers, expected, strict=True):
        for name, got, want in zip(names, answer, wanted, strict=True):
            if got.shape != want.shape or got.dtype != want.dtype:
                raise InputError(
                    f"the pieces answer {name} as {got.dtype}{list(got.shape)}, "
                    f"the whole model as {want.dtype}{list(want.shape)}"
                )
            difference = largest_difference(got, want)
            worst = max(worst, difference)
            # Not "greater": what is not a number is not near either.
            if not difference <= tolerance:
                raise InputError(
                    f"the pieces answer {name} differently from the whole model: by {difference:.3g}, "
                    f"allowed is {tolerance:.3g}",
                    hint="Large answers differ by more: --tolerance. Else please report the model.",
                    max_abs_difference=difference,
                )
    return worst


def last_line(error: BaseException) -> str:
    """Return what an error of Paddle's says, without its stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Paddle puts its message above a hint in brackets that starts a line of its own.
    told = [line for line in lines if "Error:" in line or line.startswith("(")]
    return (told or lines or [type(error).__name__])[-1]
