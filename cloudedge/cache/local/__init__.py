"""Data sets on this machine: a real JuiceFS volume, mounted by FUSE, cached in folders of your choice."""

from cloudedge.cache.local._dataset import LocalDataset, LocalStatus, Synced, Warmed
from cloudedge.cache.local._partition import deal
from cloudedge.cache.local._registry import LocalDatasets
from cloudedge.cache.local._settings import DatasetSettings, keys_given

__all__ = ["DatasetSettings", "LocalDataset", "LocalDatasets", "LocalStatus", "Synced", "Warmed", "deal", "keys_given"]
