"""Moves one tag several times, as a process of its own: URL, number, moves, JSON list of descriptors."""

from __future__ import annotations

import json
import sys

from cloudedge.hub.core._oci import Descriptor
from cloudedge.hub.registry._registry_hub import RegistryHub

url, number, targets = sys.argv[1], sys.argv[2], [Descriptor.from_json(v) for v in json.loads(sys.argv[3])]
hub = RegistryHub(url)
sys.stdout.write("ready\n")
sys.stdout.flush()
sys.stdin.readline()
for i, target in enumerate(targets):
    assert hub.move_tag("ctr", "live", target, by=f"mover {number}", at=f"2026-01-01T00:00:{i:02d}Z")
