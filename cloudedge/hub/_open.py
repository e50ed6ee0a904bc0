"""From a configured hub, a URL or a path to a `Hub`; each backend is imported only when it is used.

So is the configuration: its models take longer to import than most commands need altogether.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cloudedge.errors import ConfigError
from cloudedge.hub.core import Hub, ObjectStore
from cloudedge.hub.layout import LayoutHub, LocalHub
from cloudedge.hub.objects import DirectoryStore

if TYPE_CHECKING:
    from cloudedge.config import HubConfig
    from cloudedge.hub.objects import S3Store

__all__ = ["open_hub", "open_store", "prepare_bucket"]


def open_hub(where: HubConfig | str | os.PathLike[str]) -> Hub:
    """Open a hub. Nothing is read or made until it is used.

    Raises:
        ConfigError: the URL's scheme is not one cloudedge speaks, or an extra is not installed.
    """
    from cloudedge.config import HubConfig  # noqa: PLC0415

    config = where if isinstance(where, HubConfig) else HubConfig.model_validate(os.fspath(where))
    scheme, separator, rest = config.url.partition("://")
    if not separator or scheme == "file":
        return LocalHub(rest or config.url)
    return _oci(config) if scheme == "oci" else LayoutHub(open_store(config))


def open_store(config: HubConfig) -> ObjectStore:
    """Open a bucket (``s3://``, ``bos://``) or a directory for what is not a hub.

    Raises:
        ConfigError: the URL names neither, or an extra is not installed.
    """
    scheme, separator, rest = config.url.partition("://")
    if not separator or scheme == "file":
        return DirectoryStore(rest or config.url)
    if scheme not in _STORES:
        raise ConfigError(f"{config.url} names no bucket", hint="Write s3://bucket/prefix or bos://bucket/prefix.")
    return _STORES[scheme](config)


def prepare_bucket(config: HubConfig, *, public: bool = False) -> None:
    """Make an S3 bucket unless it is there.

    Args:
        config: Where; ``s3://bucket``.
        public: Let everybody read objects whose name they know.
    """
    _s3(config).prepare(public=public)


def _s3(config: HubConfig) -> S3Store:
    from cloudedge.config import reveal  # noqa: PLC0415
    from cloudedge.hub.objects import S3Settings, S3Store  # noqa: PLC0415 - boto3 is an extra, and slow to import

    settings = S3Settings(
        endpoint_url=config.endpoint or None,
        region=config.region or None,
        access_key=config.access_key or None,
        secret_key=reveal(config.secret_key) if config.secret_key else None,
        # A server of one's own seldom has a host name per bucket.
        path_style=bool(config.endpoint),
    )
    return S3Store(config.url, settings)


def _bos(config: HubConfig) -> ObjectStore:
    from cloudedge.config import reveal  # noqa: PLC0415
    from cloudedge.hub.objects import BosSettings, BosStore  # noqa: PLC0415 - an extra

    access_key = config.access_key or os.environ.get("BCE_ACCESS_KEY_ID", "")
    secret_key = reveal(config.secret_key or "env:BCE_SECRET_ACCESS_KEY")
    settings = BosSettings(access_key, secret_key, region=config.region or "bj", endpoint=config.endpoint or None)
    return BosStore(config.url, settings)


def _oci(config: HubConfig) -> Hub:
    from cloudedge.config import home, reveal  # noqa: PLC0415
    from cloudedge.hub.registry import RegistryHub, RegistrySettings  # noqa: PLC0415 - requests is slow to import

    settings = RegistrySettings(
        username=config.username or None,
        password=reveal(config.password) if config.password else None,
        insecure=config.insecure,
        ca_file=Path(config.ca_file) if config.ca_file else None,
        state_dir=home() / "uploads",
    )
    return RegistryHub(config.url, settings)


_STORES: Mapping[str, Callable[[HubConfig], ObjectStore]] = {"s3": _s3, "bos": _bos}
