"""Paddle's predictors made, cloned and run without the interpreter lock, which Paddle's own binding keeps meanwhile.

A server that loads a version would otherwise stand still for tens of milliseconds, and for every run of a model. The
engine's functions are exported symbols, and where a Python object keeps its engine's object is plain to see in one
that the binding made: if it looks as known here (`_Layout`), they are called directly. Elsewhere everything goes
through the binding, slower for other threads and as right.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from cloudedge import _core

__all__ = ["PredictorMaker", "unlocked_run"]

_CREATE = "_ZN12paddle_infer9PredictorC1ERKN6paddle14AnalysisConfigE"
_CLONE = "_ZN12paddle_infer9Predictor5CloneEPv"
_RUN = "_ZN12paddle_infer9Predictor3RunEv"


class _Layout(ctypes.Structure):
    """A pybind11 object with one plain base on 64-bit CPython; what is behind Python's own head of it."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("holder", ctypes.c_void_p),
        ("holder_more", ctypes.c_void_p),
        ("weak_references", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )
    value: int | None
    holder: int | None
    holder_more: int | None
    flags: int

    IS_OWNED, IS_SIMPLE, HAS_HOLDER, IS_REGISTERED = 1, 2, 4, 8

    @classmethod
    def of(cls, found: Any) -> _Layout | None:
        """Look into an object; None if it cannot be one of these."""
        kind = type(found)
        base = kind.__base__
        if base is None or base.__name__ != "pybind11_object":
            return None
        if kind.__basicsize__ != object.__basicsize__ + ctypes.sizeof(cls):
            return None
        return cls.from_address(id(found) + object.__basicsize__)

    @property
    def is_whole(self) -> bool:
        """Whether it has its object, in a std::unique_ptr."""
        has = self.IS_OWNED | self.IS_SIMPLE | self.HAS_HOLDER
        is_held = bool(self.value) and self.value == self.holder and not self.holder_more
        return is_held and self.flags & ~self.IS_REGISTERED == has

    @property
    def is_empty(self) -> bool:
        """Whether it was made without one."""
        return self.flags == self.IS_OWNED | self.IS_SIMPLE and not (self.value or self.holder or self.holder_more)


@lru_cache(maxsize=8)
def _address(symbol: str) -> int | None:
    """Find one of the engine's functions, or None where this Paddle does not export it."""
    from paddle.base import libpaddle  # noqa: PLC0415 - heavy

    try:
        function = getattr(ctypes.CDLL(libpaddle.__file__), symbol)
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def _call_on(found: Any, symbol: str) -> tuple[int, int] | None:
    """Return a function of the engine and the object behind a Python one, or None if either is not as known here."""
    function, layout = _address(symbol), _Layout.of(found)
    if function is None or layout is None or not layout.is_whole or layout.value is None:
        return None
    return function, layout.value


def unlocked_run(predictor: Any) -> Callable[[], object] | None:
    """Return a call that runs a predictor without the interpreter lock, if that is possible."""
    call = _call_on(predictor, _RUN)
    return None if call is None else lambda: _core.call_unlocked(*call)


class PredictorMaker:
    """Makes and clones predictors; the first one it makes shows whether it can do without the interpreter lock.

    Args:
        create: The binding's way to make one.
    """

    def __init__(self, create: Callable[[Any], Any]) -> None:
        self._create = create
        self._kind: Any = None
        """Of predictors, once one was seen that looks as known."""

    def create(self, config: Any) -> Any:
        """Make a predictor; raises whatever the engine does."""
        call = _call_on(config, _CREATE) if self._kind is not None else None
        if call is not None:
            return _adopted(self._kind, _core.construct_unlocked(*call))
        made = self._create(config)
        self._kind = type(made) if _is_known(made) else None
        return made

    def clone(self, predictor: Any) -> Any:
        """Clone a predictor."""
        call = _call_on(predictor, _CLONE) if type(predictor) is self._kind else None
        if call is None:
            return predictor.clone()
        return _adopted(type(predictor), _core.clone_unlocked(*call))


def _is_known(predictor: Any) -> bool:
    """Tell whether a predictor of the binding looks as those that are put together here will."""
    kind: Any = type(predictor)
    unborn = kind.__new__(kind)
    layout, empty = _Layout.of(predictor), _Layout.of(unborn)
    return layout is not None and layout.is_whole and empty is not None and empty.is_empty


def _adopted(kind: Any, made: int) -> Any:
    """Give an engine's object to Python, which frees it with the last reference."""
    predictor = kind.__new__(kind)
    layout = _Layout.of(predictor)
    if layout is None or not layout.is_empty:  # seen otherwise before: `_is_known`
        raise RuntimeError(f"{kind.__name__} has another layout than a moment ago")
    layout.value = layout.holder = made
    layout.flags |= _Layout.HAS_HOLDER
    return predictor
