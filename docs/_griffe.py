"""The site's extension of griffe, which reads docstrings: an ``Example:`` with a prompt is a section of examples.

Griffe knows ``Examples:`` as a section and takes ``Example:`` for a remark, in which prompts would become quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Reads ``Example:`` as ``Examples:`` where a prompt follows."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rename the section in the docstring of every object that is read."""
        del kwargs
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^Example:(?=\n\s*>>> )", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )
