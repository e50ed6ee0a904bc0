"""Releases: what joins serving, cube and the edge."""

from cloudedge.release._rows import CubeRows

__all__ = ["CubeRows"]
