"""Building parts from SequenceFiles and tables, and reading, checking and dumping them."""

from __future__ import annotations

from cloudedge.cube.builder._build import BuildReport, PartReport, build, reserved_key, run_build
from cloudedge.cube.builder._build_inputs import Input
from cloudedge.cube.builder._build_plan import BuildPlan, plan_build
from cloudedge.cube.builder._check import CheckReport, check
from cloudedge.cube.builder._dump import DumpReport, dump
from cloudedge.cube.builder._inspect import inspect
from cloudedge.cube.builder._merge_seqfiles import Layer, merge_rows, row_files
from cloudedge.cube.builder._part_store import MAX_VALUE_BYTES, PartStore

__all__ = [
    "MAX_VALUE_BYTES",
    "BuildPlan",
    "BuildReport",
    "CheckReport",
    "DumpReport",
    "Input",
    "Layer",
    "PartReport",
    "PartStore",
    "build",
    "check",
    "dump",
    "inspect",
    "merge_rows",
    "plan_build",
    "reserved_key",
    "row_files",
    "run_build",
]
