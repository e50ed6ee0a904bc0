"""Exports for stock Paddle Serving servers, and hot loading into running ones."""

from __future__ import annotations

from cloudedge.serving.stock._export import TARGETS, ExportPlan, export, plan_export
from cloudedge.serving.stock._hotload import HotLoad, follow, load_into, publish_for_monitor

__all__ = ["TARGETS", "ExportPlan", "HotLoad", "export", "follow", "load_into", "plan_export", "publish_for_monitor"]
