"""Targets: the object behind `cloudedge release`, the kinds there are, and the source of their bundles."""

from __future__ import annotations

from cloudedge.release.target._bundle_source import HubBundleSource
from cloudedge.release.target._release import Release
from cloudedge.release.target._target import Target
from cloudedge.release.target._target_kinds import register_kind

__all__ = ["HubBundleSource", "Release", "Target", "register_kind"]
