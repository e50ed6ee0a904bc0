"""Rows from cube's shards, pinned to the version that runs."""

import json

import numpy as np
import pytest
from serving_models import row_table

from cloudedge import _core
from cloudedge.cube import CubeConf, ServerConfig
from cloudedge.cube import Server as CubeServer
from cloudedge.errors import ConfigError, NotFound, Unavailable
from cloudedge.release import CubeRows
from cloudedge.serving import Runtime, RuntimeConfig

SHARDS = 2
FEED = {"ids": np.array([[4], [5], [6]]), "more": np.array([[2], [7], [0]])}


def version(name, shard, shift=0.0):
    arrays = row_table()
    mine = arrays["keys"] % SHARDS == shard if shard else arrays["keys"] % 4 == 0
    mine = arrays["keys"] // 2 % SHARDS == shard
    values = np.ascontiguousarray(arrays["values"][mine] + np.float32(shift))
    return _core.memory_version(name, arrays["keys"][mine], values.view(np.uint8))
