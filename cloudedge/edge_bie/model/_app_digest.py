"""The content digest of an app: computed when a revision is published, and again on the node before it runs.

It covers everything that this kind of node acts upon: services with image, command, arguments, environment, ports,
limits and privileges, and the content of each mount. It omits names that BIE or a revision's number decide: those of
the app, of its configs and of their versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cloudedge.edge_bie.model._apps import DesiredApp, DesiredService, DesiredVolume
from cloudedge.edge_bie.model._mounts import MountedConfig
from cloudedge.hub import canonical_json, digest_of

__all__ = ["content_of", "texts_digest"]


def texts_digest(texts: Mapping[str, bytes]) -> str:
    """Return the digest of a config's texts."""
    return digest_of(canonical_json({key: digest_of(data) for key, data in texts.items()}))


def content_of(app: DesiredApp, configs: Mapping[str, MountedConfig], *, statement: str) -> str:
    """Return the digest of an app's content.

    Args:
        app: The app.
        configs: The configs it mounts, by name; the statement's is ignored.
        statement: The name of the config with the statement, which cannot contain its own digest.
    """
    volumes = {volume.name: _volume_content(volume, configs, statement) for volume in app.volumes}
    services = [_service(service, volumes) for service in app.services]
    return digest_of(canonical_json({"workload": app.workload, "services": services}))


def _service(service: DesiredService, volumes: Mapping[str, Any]) -> dict[str, Any]:
    mounts = sorted((mount.path, mount.read_only, volumes[mount.volume]) for mount in service.mounts)
    return {**asdict(service), "mounts": mounts}


def _volume_content(volume: DesiredVolume, configs: Mapping[str, MountedConfig], statement: str) -> list[str]:
    """Return the content of a volume; a secret counts by name, since every writer of the account may change it."""
    if volume.kind != "config":
        return [volume.kind, volume.source]
    if volume.source == statement:
        return ["statement"]
    config = configs[volume.source]
    return ["config", texts_digest(config.texts), *sorted(item.key for item in config.objects)]
