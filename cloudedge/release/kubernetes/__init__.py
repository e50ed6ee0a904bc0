"""The kubernetes kind of target: a release's places as pods of a cluster."""

from cloudedge.release.kubernetes._kubernetes_target import Standing, down, layouts, manifests, places, up
from cloudedge.release.kubernetes._objects import Facts, objects

__all__ = ["Facts", "Standing", "down", "layouts", "manifests", "objects", "places", "up"]
