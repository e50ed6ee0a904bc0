"""Serving: bundles behind Paddle Serving's interfaces, on today's Paddle, several versions at once."""

from cloudedge.serving._export import TARGETS, ExportPlan, export, plan_export
from cloudedge.serving._hotload import HotLoad, load_into, publish_for_monitor

__all__ = ["TARGETS", "ExportPlan", "HotLoad", "export", "load_into", "plan_export", "publish_for_monitor"]
