"""Names of a package that are imported when they are first used, and old names that still work.

A package whose modules are slow to import, or need an extra, lists its names for type checkers under
``if TYPE_CHECKING:`` and hands the same list to `lazy_names`:

    __getattr__, __dir__ = lazy_names(__name__, {"_cluster": ("Cluster",), "_watch": ("Event",)})

Every package imports this module first, so it imports nothing itself until a name is used.

A public name that changed stays readable under its old name; using that warns and names the new one.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["lazy_names", "renamed_names"]


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
        import importlib  # noqa: PLC0415

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
        import importlib  # noqa: PLC0415
        import warnings  # noqa: PLC0415

        package, _, new = successors[name].rpartition(".")
        warnings.warn(f"{module}.{name} is now {package}.{new}", DeprecationWarning, stacklevel=stacklevel)
        return getattr(importlib.import_module(package), new)

    return load
