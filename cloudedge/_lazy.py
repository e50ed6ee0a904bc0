"""Names of a package that are imported when they are first used, and old names and keywords that still work.

A package whose modules are slow to import, or need an extra, lists its names for type checkers under
``if TYPE_CHECKING:`` and hands the same list to `lazy_names`:

    __getattr__, __dir__ = lazy_names(__name__, {"_cluster": ("Cluster",), "_watch": ("Event",)})

A public name that changed stays readable under its old name; using that warns and names the new one. The same holds
for a keyword of a public function and for a field of a public dataclass: `renamed_arguments` decorates both.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["lazy_names", "renamed_arguments", "renamed_names"]

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]], renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: The package's ``__name__``.
        homes: By module, relative to the package: the names it supplies. An empty tuple exposes the module itself.
        renamed: As for `renamed_names`.
    """
    home_of = {name: module for module, names in homes.items() for name in names or (module,)}
    old_name = renamed_names(package, renamed or {}, stacklevel=3)

    def load(name: str) -> Any:
        if name not in home_of:
            return old_name(name)
        module = importlib.import_module(f"{package}.{home_of[name]}")
        return module if not homes[home_of[name]] else getattr(module, name)

    def listing() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return load, listing


def renamed_names(module: str, successors: Mapping[str, str], *, stacklevel: int = 2) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module that had other names before.

    Args:
        module: The module's ``__name__``.
        successors: By old name: the new one, as ``package.Name``.
        stacklevel: As for `warnings.warn`.
    """

    def load(name: str) -> Any:
        if name not in successors:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        package, _, new = successors[name].rpartition(".")
        warnings.warn(f"{module}.{name} is now {package}.{new}", DeprecationWarning, stacklevel=stacklevel)
        return getattr(importlib.import_module(package), new)

    return load


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
