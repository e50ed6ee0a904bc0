"""Data sets on this machine: a real JuiceFS volume, mounted by FUSE, cached in folders of your choice."""

from cloudedge.cache.local._dataset import (
    DatasetSettings,
    LocalDataset,
    LocalDatasets,
    LocalStatus,
    Synced,
    Warmed,
)
from cloudedge.cache.local._deal import deal

__all__ = ["DatasetSettings", "LocalDataset", "LocalDatasets", "LocalStatus", "Synced", "Warmed", "deal"]
