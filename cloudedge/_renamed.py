"""Old public names that keep working: using one warns and names its successor."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["renamed_names"]


def renamed_names(module: str, successors: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module with old names.

    Args:
        module: The module's ``__name__``.
        successors: By old name: the new one, as ``package.Name``.
    """

    def load(name: str) -> Any:
        if name not in successors:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        package, _, new = successors[name].rpartition(".")
        warnings.warn(f"{module}.{name} is now {package}.{new}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(package), new)

    return load
