"""Hooks around a prediction, with the names and the rules of Paddle Serving's `web_service.py`.

    class UciOp(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            (_, inputs), = input_dicts.items()
            return {"x": numpy.fromstring(inputs["x"], sep=",").reshape(1, 13)}, False, None, ""

        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            return {"price": str(fetch_dict["price"][0, 0])}, None, ""

Ops form a graph by their `input_ops` and run one after another. Each op calls the model between its two hooks unless
it sets `with_serving = False` or `preprocess` asks to skip. Hooks run on the server's own thread, one at a time, so
they need no locks. A hook that computes for long sets `threaded = True`; it must then be safe to call concurrently.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle import Signature
from cloudedge.errors import ConfigError
from cloudedge.serving.engine import Call, Engine, RequestVersion
from cloudedge.serving.formats import plan_of

__all__ = ["Op", "OpFault", "Ops", "RequestOp", "Results", "WebService", "load_ops"]

Array = NDArray[Any]
Results: TypeAlias = Mapping[str, "str | Array"]

INPUT, TYPE, UNKNOWN = 5000, 7000, 10000

_log = logging.getLogger("cloudedge.serving")


class OpFault(Exception):
    """A hook refused or failed; carries the answer to the caller."""

    def __init__(self, err_no: int, err_msg: str) -> None:
        super().__init__(err_msg)
        self.err_no = err_no
        self.err_msg = err_msg


class Op:
    """One step of a service. Subclass it and override the hooks that are needed.

    Args:
        name: Its name in the `input_dicts` of the ops after it.
        input_ops: The ops whose results it takes.
    """

    with_serving = True
    """The model is called between `preprocess` and `postprocess`."""
    threaded = False
    """Hooks run concurrently, each call in a thread."""

    def __init__(self, name: str | None = None, input_ops: Sequence[Op] = ()) -> None:
        self.name = name or type(self).__name__
        self.input_ops = list(input_ops)
        self.init_op()

    def init_op(self) -> None:
        """Prepare the state of the hooks; called once."""

    def preprocess(
        self, input_dicts: dict[str, dict[str, Any]], data_id: int, log_id: int  # noqa: ARG002 - upstream's signature
    ) -> tuple[dict[str, Any], bool, int | None, str]:  # fmt: skip
        """Make the feed of the model.

        Returns:
            The feed (arrays by alias), True to skip the model, a product error code (50 to 99) or None, its text.
        """
        (inputs,) = input_dicts.values()  # several inputs need a preprocess of their own; see `Ops`
        return inputs, False, None, ""

    def postprocess(
        self, input_data: dict[str, dict[str, Any]], fetch_data: dict[str, Any], data_id: int, log_id: int  # noqa: ARG002
    ) -> tuple[dict[str, Any], int | None, str]:  # fmt: skip
        """Make the result from the model's answer.

        Returns:
            The result (arrays only, or strings only), a product error code or None, and its text.
        """
        return fetch_data, None, ""


class RequestOp(Op):
    """The request itself, the first op of every graph."""

    with_serving = False

    def __init__(self) -> None:
        super().__init__("@DAGExecutor")


class WebService:
    """A service by name, as upstream's `web_service.py` declares it; override `get_pipeline_response`."""

    def __init__(self, name: str = "default_service") -> None:
        self.name = name

    def get_pipeline_response(self, read_op: Op) -> Op:
        """Build the graph on top of the request and return its last op."""
        return Op("op", [read_op])


class Ops:
    """A graph of ops, ready to run.

    Args:
        last: The op whose result is the answer; the graph is this op and all ops before it.

    Raises:
        ConfigError: Two ops have one name, they form a circle, or one takes several results without its own preprocess.
    """

    def __init__(self, last: Op) -> None:
        self.order: list[Op] = []
        self._sort(last, ())
        if len({op.name for op in self.order}) != len(self.order):
            raise ConfigError(f"two ops have the same name: {sorted(op.name for op in self.order)}")
        for op in self.order:
            if len(op.input_ops) > 1 and type(op).preprocess is Op.preprocess:
                raise ConfigError(
                    f"op {op.name!r} takes the results of {sorted(each.name for each in op.input_ops)}",
                    hint="Override its preprocess to make the model's feed of them.",
                )
        self._data_ids = itertools.count()

    def _sort(self, op: Op, path: tuple[Op, ...]) -> None:
        if op in path:
            raise ConfigError(f"ops form a circle through {op.name!r}")
        for before in op.input_ops:
            self._sort(before, (*path, op))
        if op not in self.order:
            self.order.append(op)

    async def run(
        self, engine: Engine, inputs: Mapping[str, str | Array], lods: Mapping[str, Sequence[int]], call: Call
    ) -> tuple[Results, str, str, float]:
        """Run the graph with a call that only lacks its feed; one version makes all its predictions.

        Returns:
            The last op's result, pin and tag of the version that predicted, and the largest share of declared defaults
            in a prediction.

        Raises:
            OpFault: A hook failed or refused.
            CloudEdgeError: As `Engine.hold` and `RequestVersion.predict`.
        """
        first = dict[str, Any](inputs) | {f"{n}.lod": np.array(lod, np.int32).reshape(2, -1) for n, lod in lods.items()}
        data_id = next(self._data_ids)
        done: dict[str, dict[str, Any]] = {}
        pin = tag = ""
        defaulted = 0.0
        version: RequestVersion | None = None  # chosen when an op needs it: a graph may need none
        with ExitStack() as stack:
            for op in self.order:
                if isinstance(op, RequestOp):
                    done[op.name] = first
                    continue
                taken = {before.name: done[before.name] for before in op.input_ops} or {"@DAGExecutor": first}
                feed, skip = await _hook(op, "preprocess", 2, taken, data_id, call.log_id)
                if op.with_serving and not skip:
                    version = version or stack.enter_context(engine.hold(call.tag))
                    answer = await version.predict(replace(call, feed=_feed_of(op, version.signature, feed)))
                    feed, pin, tag = dict(answer.outputs), answer.pin, answer.tag
                    defaulted = max(defaulted, answer.defaulted)
                (result,) = await _hook(op, "postprocess", 1, taken, feed, data_id, call.log_id)
                if not isinstance(result, dict):
                    raise OpFault(TYPE, f"op {op.name}: postprocess must return a dict")
                done[op.name] = result
        return _strings(done[self.order[-1].name]), pin, tag, defaulted


async def _hook(op: Op, stage: str, results: int, *arguments: Any) -> list[Any]:
    """Run a hook and return its results; a product error behind them is raised."""
    hook = getattr(op, stage)
    try:
        returned = await asyncio.to_thread(hook, *arguments) if op.threaded else hook(*arguments)
        found, (code, text) = list(returned[:results]), returned[results:]
        code = None if code is None else int(code)
    except Exception as error:
        _log.warning("op %s failed in %s", op.name, stage, exc_info=error)
        raise OpFault(UNKNOWN, f"op {op.name} failed in {stage}; the server's log says why") from error
    if code is not None:
        raise OpFault(code, str(text))
    return found


def _feed_of(op: Op, signature: Signature, feed: Any) -> dict[str, Array]:
    """Check that the feed has exactly the model's inputs, and fit them to the signature."""
    if not isinstance(feed, dict):
        raise OpFault(TYPE, f"op {op.name}: preprocess must return a dict of arrays")
    plan = plan_of(signature)
    names = {name for name in feed if "lod" not in name}
    wanted = {variable.alias or variable.name for variable in signature.feed}
    if names != wanted:
        raise OpFault(INPUT, f"invalid arg list: the model takes {sorted(wanted)}, op {op.name} made {sorted(names)}")
    if not all(isinstance(feed[name], np.ndarray) for name in names):
        raise OpFault(TYPE, "feed_batch must be npdata")
    lods = {name: np.ravel(feed.get(f"{name}.lod", ())) for name in names}
    return {name: plan.feeds[name].fit(feed[name], lods[name].tolist()) for name in sorted(names)}


def _strings(result: dict[str, Any]) -> Results:
    if result and all(isinstance(value, np.ndarray) for value in result.values()):
        with np.printoptions(threshold=sys.maxsize):
            return {name: repr(value) for name, value in result.items()}
    if not all(isinstance(value, str) for value in result.values()):
        raise OpFault(TYPE, "fetch var type must be str")
    return result


def load_ops(reference: str) -> tuple[Ops, str | None]:
    """Load hooks named `module:Name` or `path/to/file.py:Name`: a class or an instance of Op or WebService.

    Returns:
        The graph, and the service's name if a WebService has one.

    Raises:
        ConfigError: The name cannot be imported, does not exist, or is neither.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise ConfigError(
            f"hooks {reference!r} are not named module:Name", hint="Write for example `web_service:UciOp`."
        )
    try:
        module = _import(where)
        found = getattr(module, name)
        made = found() if isinstance(found, type) else found
    except Exception as error:
        raise ConfigError(f"hooks {reference!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if isinstance(made, WebService):
        return Ops(made.get_pipeline_response(RequestOp())), made.name
    if isinstance(made, Op):
        return Ops(made), None
    raise ConfigError(f"{reference} is neither an Op nor a WebService", hint="Derive it from `cloudedge.serving.Op`.")


def _import(where: str) -> Any:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
