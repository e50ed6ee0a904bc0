"""Paddle predictors without the GIL: create, clone and run them while other Python threads go on.

Paddle's own binding keeps the interpreter lock. A server would stand still for tens of milliseconds while it loads a
version, and for every run of a model. The engine's functions are exported symbols, and a predictor that the binding
made shows where it keeps the engine's object: if its memory has the known layout (`_PybindLayout`), this module calls
the functions directly. Otherwise everything goes through the binding: equally right, slower for other threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from cloudedge import _core

__all__ = ["PredictorMaker", "run_without_gil"]

_CREATE = "_ZN12paddle_infer9PredictorC1ERKN6paddle14AnalysisConfigE"
_CLONE = "_ZN12paddle_infer9Predictor5CloneEPv"
_RUN = "_ZN12paddle_infer9Predictor3RunEv"


class _PybindLayout(ctypes.Structure):
    """The memory behind the object header of a pybind11 object with one plain base, on 64-bit CPython."""

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
    def of(cls, found: Any) -> _PybindLayout | None:
        """Return the layout of an object; None if it is no such object."""
        kind = type(found)
        base = kind.__base__
        if base is None or base.__name__ != "pybind11_object":
            return None
        if kind.__basicsize__ != object.__basicsize__ + ctypes.sizeof(cls):
            return None
        return cls.from_address(id(found) + object.__basicsize__)

    @property
    def is_whole(self) -> bool:
        """The Python object owns its engine object through a std::unique_ptr."""
        has = self.IS_OWNED | self.IS_SIMPLE | self.HAS_HOLDER
        is_held = bool(self.value) and self.value == self.holder and not self.holder_more
        return is_held and self.flags & ~self.IS_REGISTERED == has

    @property
    def is_empty(self) -> bool:
        """The Python object was made without an engine object."""
        return self.flags == self.IS_OWNED | self.IS_SIMPLE and not (self.value or self.holder or self.holder_more)


@lru_cache(maxsize=8)
def _address(symbol: str) -> int | None:
    """Return the address of an engine function, or None where this Paddle does not export it."""
    from paddle.base import libpaddle  # noqa: PLC0415 - heavy

    try:
        function = getattr(ctypes.CDLL(libpaddle.__file__), symbol)
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def _native_call(found: Any, symbol: str) -> tuple[int, int] | None:
    """Return the addresses of an engine function and of the object behind a Python one, or None if one is unknown."""
    function, layout = _address(symbol), _PybindLayout.of(found)
    if function is None or layout is None or not layout.is_whole or layout.value is None:
        return None
    return function, layout.value


def run_without_gil(predictor: Any) -> Callable[[], object] | None:
    """Return a call that runs a predictor without the interpreter lock, if that is possible."""
    call = _native_call(predictor, _RUN)
    return None if call is None else lambda: _core.call_unlocked(*call)


class PredictorMaker:
    """Makes and clones predictors; the first one it makes shows if the interpreter lock can be released.

    Args:
        create: The binding's own function.
    """

    def __init__(self, create: Callable[[Any], Any]) -> None:
        self._create = create
        self._kind: Any = None
        """The class of predictors, once one with the known layout was made."""

    def create(self, config: Any) -> Any:
        """Make a predictor; errors of the engine pass through."""
        call = _native_call(config, _CREATE) if self._kind is not None else None
        if call is not None:
            return _adopt(self._kind, _core.construct_unlocked(*call))
        made = self._create(config)
        self._kind = type(made) if _has_known_layout(made) else None
        return made

    def clone(self, predictor: Any) -> Any:
        """Clone a predictor."""
        call = _native_call(predictor, _CLONE) if type(predictor) is self._kind else None
        if call is None:
            return predictor.clone()
        return _adopt(type(predictor), _core.clone_unlocked(*call))


def _has_known_layout(predictor: Any) -> bool:
    """Return True if a predictor of the binding has the layout that `_adopt` writes."""
    kind: Any = type(predictor)
    blank = kind.__new__(kind)
    layout, empty = _PybindLayout.of(predictor), _PybindLayout.of(blank)
    return layout is not None and layout.is_whole and empty is not None and empty.is_empty


def _adopt(kind: Any, made: int) -> Any:
    """Hand an engine object over to Python, which frees it with the last reference."""
    predictor = kind.__new__(kind)
    layout = _PybindLayout.of(predictor)
    if layout is None or not layout.is_empty:  # `_has_known_layout` saw it empty
        raise RuntimeError(f"{kind.__name__} has another layout than a moment ago")
    layout.value = layout.holder = made
    layout.flags |= _PybindLayout.HAS_HOLDER
    return predictor
