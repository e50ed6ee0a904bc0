"""Serving: bundles behind Paddle Serving's interfaces, on today's Paddle, several versions at once."""

__all__: list[str] = []
