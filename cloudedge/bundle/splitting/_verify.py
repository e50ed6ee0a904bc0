"""Compare the answers of a split model with the whole model's, both loaded as the serving runtime loads them."""

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
    """A saved model, loaded as the serving runtime loads it."""

    def __init__(self, prefix: Path, suffix: str) -> None:
        from paddle import inference  # noqa: PLC0415 - heavy

        parameters = prefix.with_name(f"{prefix.name}.pdiparams")  # a program may have none
        config = inference.Config(f"{prefix}{suffix}", str(parameters) if parameters.exists() else "")
        config.disable_glog_info()
        config.disable_mkldnn()  # in Paddle 3.3.1 it is off by 0.05 for a dense DeepFM
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
        InputError: the model fails, or answers NaN.
    """
    hint = (
        "Give requests the model can answer with `--samples FILE`." if made_up else "Give samples the model can answer."
    )
    try:
        whole = Predictor(prefix, suffix)
        expected = [whole(request) for request in requests]
    except Exception as error:  # Paddle raises whatever its C++ half throws
        raise InputError(f"the whole model does not answer: {last_line(error)}", hint=hint) from error
    for answer in expected:
        for name, array in zip(whole.outputs, answer, strict=True):
            if not np.isfinite(array).all():
                raise InputError(f"the whole model answers {name} with NaN", hint=hint)
    return whole.outputs, expected


def rows_of(lookups: tuple[Lookup, ...], files: Mapping[str, Path]) -> Callable[[Request], Request]:
    """Return a function that looks up a request's rows in the written table files."""
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
        InputError: the difference is over the tolerance, or shapes or types differ.
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
            # Not "greater": NaN must fail, too.
            if not difference <= tolerance:
                raise InputError(
                    f"the pieces answer {name} differently from the whole model: by {difference:.3g}, "
                    f"over the tolerance of {tolerance:.3g}",
                    hint="If the answers are large numbers, raise `--tolerance`. Otherwise please report the model.",
                    max_abs_difference=difference,
                )
    return worst


def last_line(error: BaseException) -> str:
    """Return the message of a Paddle error without its stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Paddle puts its message above a bracketed hint on a line of its own.
    messages = [line for line in lines if "Error:" in line or line.startswith("(")]
    return (messages or lines or [type(error).__name__])[-1]
