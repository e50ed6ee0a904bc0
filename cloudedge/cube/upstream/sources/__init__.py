"""Sources of rows: the donefiles of Paddle's trainers, and the files that they name on disk, HTTP, FTP and buckets."""

from __future__ import annotations

from cloudedge.cube.upstream.sources._donefile_source import Choice, Donefiles, DonefileSource, Work, choose

__all__ = ["Choice", "DonefileSource", "Donefiles", "Work", "choose"]
