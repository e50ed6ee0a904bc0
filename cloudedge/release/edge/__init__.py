"""The edge leg of a release: a whole fleet as one place."""

from cloudedge.release.edge._fleet_place import FleetPlace, fleet_place, places

__all__ = ["FleetPlace", "fleet_place", "places"]
