"""Predictors: a dense program in Paddle's inference engine, loaded, cloned for each worker, run on arrays.

Lessons from running it:

- The loader decides by file extension, and a bundle's blobs have none: files are linked under their own names first.
- A predictor is not safe to share between threads; clones share the parameters and nothing else. The first freed clone
  of an old program frees the parameters too: all clones stay until none is in use (`_family`).
- Paddle's binding keeps the interpreter lock while a predictor is made, cloned or run; `_paddle_nogil` avoids that.
- After every operator the executor wakes a thread to free unused tensors, which costs small models more than the
  operators do. A flag makes it keep them until the next run: memory then stays at that of the largest batch, which is
  bounded.
- oneDNN, on by default since 3.3, makes small CPU models two to three times slower; memory optimisation breaks PIR
  programs. Both stay off.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cloudedge.bundle import find_program, join_files
from cloudedge.errors import InputError, Unavailable
from cloudedge.serving.engine import ModelFailed
from cloudedge.serving.model._paddle_nogil import PredictorMaker, run_without_gil
from cloudedge.serving.model._program import require_no_parameters

__all__ = ["DenseModel", "Predictor", "engine"]

_KEEP_MEMORY = "FLAGS_eager_delete_tensor_gb"
_INPUT_ERRORS = ("InvalidArgument", "OutOfRange")
"""The engine's error kinds that the inputs cause: names, types and ranks were checked before."""
_MAX_SHAPES_SHOWN = 8

_log = logging.getLogger("cloudedge.serving")


@lru_cache(maxsize=1)
def engine() -> Any:
    """Import Paddle's engine, once.

    It warns about build tools that serving does not need. It also takes over SIGTERM and other signals, which would
    keep a server from finishing its requests: their handlers are restored, if this is the main thread.
    """
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import paddle  # noqa: PLC0415 - heavy
            from paddle import inference  # noqa: PLC0415 - heavy
        except ImportError as error:
            raise Unavailable(
                f"serving needs paddlepaddle: {error}", hint="Run `pip install 'cloudedge[paddle,serve]'`."
            ) from error
    if _KEEP_MEMORY not in os.environ:
        paddle.set_flags({_KEEP_MEMORY: -1.0})
    paddle.disable_signal_handler()
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
    return inference


@lru_cache(maxsize=1)
def _maker() -> PredictorMaker:
    return PredictorMaker(engine().create_predictor)


class Predictor:
    """One clone of a program, for one thread at a time; it lives as long as its family of clones."""

    def __init__(self, native: Any, family: list[Any]) -> None:
        self._family = family
        self.inputs: dict[str, Any] = {name: native.get_input_handle(name) for name in native.get_input_names()}
        self.outputs: list[Any] = [native.get_output_handle(name) for name in native.get_output_names()]
        unlocked = run_without_gil(native)
        self.releases_lock = unlocked is not None
        """Other Python threads go on while it runs."""
        self._run: Callable[[], object] = unlocked or native.run

    def run(self, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the program; outputs come in the program's order, as copies.

        Raises:
            InputError: The engine refused the arrays: their shapes or values do not fit together in the program.
            ModelFailed: The engine failed for another reason.
        """
        # Copied: the engine borrows only Paddle's own tensors, and making them of arrays costs more than the copy
        # (docs/decisions/serving-inputs.md).
        for name, array in feed.items():
            self.inputs[name].copy_from_cpu(array)
        try:
            self._run()
        except Exception as error:
            raise _classify_error(feed, error) from error
        return [output.copy_to_cpu() for output in self.outputs]

    def close_family(self) -> None:
        """Free the program with all its clones; none of them may run any more.

        They are freed one by one: freeing keeps the interpreter lock, and other threads get it in between.
        """
        self.inputs, self.outputs = {}, []
        del self._run
        while self._family:
            del self._family[-1]


def _classify_error(feed: Mapping[str, NDArray[Any]], error: Exception) -> InputError | ModelFailed:
    """Separate errors that the caller can mend from those for the operator; the engine's message goes to the log."""
    reason = _reason(error)
    if not any(kind in reason for kind in _INPUT_ERRORS):
        return ModelFailed(f"the engine failed: {reason}")
    _log.warning("the engine refused inputs: %s", reason)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in list(feed.items())[:_MAX_SHAPES_SHOWN])
    return InputError(
        f"the model cannot be run on these inputs ({shapes}): their shapes do not go together, "
        "or a value is out of the range it takes"
    )


def _reason(error: Exception) -> str:
    """Return the message of an engine's error without its stack."""
    lines = [line.strip() for line in str(error).splitlines()]
    messages = [line for line in lines if "Error:" in line or line.startswith("[Hint")]
    return " ".join(messages or lines[-1:])[:500]


class DenseModel:
    """A program and its parameters, loaded once.

    Args:
        files: The file of each path in the bundle; the path's extension gives its kind.
        threads: Threads of the math library in each run.

    Raises:
        InputError: There is not one program with its parameters, or the engine does not load them.
    """

    def __init__(self, files: Mapping[str, Path], *, threads: int = 1) -> None:
        program, parameters = find_program(files)
        if not parameters and program.endswith(".json"):
            require_no_parameters(files[program], program)  # the engine would use uninitialised memory for them
        self.threads = threads
        inference = engine()
        # Cloning reads the program again, so the links stay until all clones are made.
        self._folder = tempfile.TemporaryDirectory(prefix="cloudedge-model-")
        folder = Path(self._folder.name)
        config = inference.Config(
            str(join_files([files[program]], folder / Path(program).name)),
            str(join_files([files[path] for path in parameters], folder / Path(parameters[0]).name))
            if parameters
            else "",
        )
        config.disable_gpu()
        config.disable_mkldnn()
        config.set_cpu_math_library_num_threads(threads)
        config.disable_glog_info()
        try:
            self._native = _maker().create(config)
        except Exception as error:
            self.close()
            raise InputError(f"Paddle does not load {program}: {_reason(error)}", path=program) from error
        self._family: list[Any] = [self._native]
        self.input_names: list[str] = list(self._native.get_input_names())
        self.output_names: list[str] = list(self._native.get_output_names())

    def predictor(self) -> Predictor:
        """Make a clone for one thread."""
        clone = _maker().clone(self._native)
        self._family.append(clone)
        return Predictor(clone, self._family)

    def close(self) -> None:
        """End the cloning; existing clones stay usable."""
        self._folder.cleanup()

    def __enter__(self) -> DenseModel:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
