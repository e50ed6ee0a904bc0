"""Environment variables through which a local run addresses its launchers."""

from typing import Final

__all__ = ["LOCAL", "RESULTS"]

LOCAL: Final = "CLOUDEDGE_PIPELINE_LOCAL"
"""The folder of a local run; without it, steps run on a cluster."""
RESULTS: Final = "CLOUDEDGE_PIPELINE_RESULTS"
"""The file to which steps append their results, one JSON object a line."""
