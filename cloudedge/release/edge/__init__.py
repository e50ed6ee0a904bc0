"""The edge leg of a release: a whole fleet as one place."""

from cloudedge.release.edge._place import FleetPlace, fleet_place

__all__ = ["FleetPlace", "fleet_place"]
