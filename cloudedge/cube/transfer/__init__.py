"""Cube delivery: from what a trainer finished to versions that servers answer from."""

from __future__ import annotations

from cloudedge.cube.transfer._fetch import Fetched, Throttle, fetch
from cloudedge.cube.transfer._files import FileServer

__all__ = ["Fetched", "FileServer", "Throttle", "fetch"]
