"""Old keywords of public functions, and old fields of public dataclasses, that still work.

Using one warns and names the new one. For old names of a package, see `renamed_names` in `_lazy`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["renamed_arguments"]

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def renamed_arguments(**successors: str) -> Callable[[_Decorated], _Decorated]:
    """Make a decorator that keeps old keywords working; of a dataclass, the old attributes can be read too.

    An old keyword wins over a new one: `dataclasses.replace` with an old keyword passes both.

    Args:
        successors: By old keyword: the new one.
    """

    def decorate(decorated: _Decorated) -> _Decorated:
        if not isinstance(decorated, type):
            return _accepting(decorated, decorated.__qualname__, successors)
        decorated.__init__ = _accepting(decorated.__init__, decorated.__name__, successors)  # type: ignore[misc]
        for old, new in successors.items():
            setattr(decorated, old, _old_attribute(decorated.__name__, old, new))
        return decorated

    return decorate


def _accepting(function: _Decorated, where: str, successors: Mapping[str, str]) -> _Decorated:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for old in successors.keys() & kwargs.keys():
            warnings.warn(f"{where}: {old} is now {successors[old]}", DeprecationWarning, stacklevel=2)
            kwargs[successors[old]] = kwargs.pop(old)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def _old_attribute(where: str, old: str, new: str) -> property:
    def read(self: Any) -> Any:
        warnings.warn(f"{where}.{old} is now {where}.{new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(read, doc=f"The old name of `{new}`.")
