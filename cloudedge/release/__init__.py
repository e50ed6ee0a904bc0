"""Releases: one bundle, one version, on every place of a target, or nothing."""

__all__: list[str] = []
