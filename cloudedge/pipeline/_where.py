"""How a launcher learns where it is: two environment variables, set by a local run only."""

from typing import Final

__all__ = ["LOCAL", "RESULTS"]

LOCAL: Final = "CLOUDEDGE_PIPELINE_LOCAL"
"""The folder of a local run; without it, steps are done on a cluster."""
RESULTS: Final = "CLOUDEDGE_PIPELINE_RESULTS"
"""The file to which steps add what they made, one JSON object a line."""
