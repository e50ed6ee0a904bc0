"""Names of a package that are imported when they are first used.

A package whose modules are slow to import, or need an extra, lists its names for type checkers under
``if TYPE_CHECKING:`` and hands the same list to `lazy_names`:

    __getattr__, __dir__ = lazy_names(__name__, {"_cluster": ("Cluster",), "_watch": ("Event",)})
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: The package's ``__name__``.
        homes: By module, relative to the package: the names it supplies. An empty tuple exposes the module itself.
    """
    home_of = {name: module for module, names in homes.items() for name in names or (module,)}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{home_of[name]}")
        return module if not homes[home_of[name]] else getattr(module, name)

    def listing() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return load, listing
