"""From a configured hub, a URL or a path to a `Hub`; each backend is imported only when it is used."""

from __future__ import annotations

import os
from pathlib import Path

from cloudedge.config import HubConfig, home, reveal
from cloudedge.errors import ConfigError
from cloudedge.hub._layout import LayoutHub
from cloudedge.hub._local import LocalHub
from cloudedge.hub._protocol import Hub, ObjectStore

__all__ = ["open_hub", "open_store"]


def open_hub(where: HubConfig | str | os.PathLike[str]) -> Hub:
    """Open a hub. Nothing is read or made until it is used.

    Raises:
        ConfigError: the URL's scheme is not one cloudedge speaks, or an extra is not installed.
    """
    config = where if isinstance(where, HubConfig) else HubConfig.model_validate(os.fspath(where))
    scheme, separator, rest = config.url.partition("://")
    if not separator or scheme == "file":
        return LocalHub(rest or config.url)
    return _oci(config) if scheme == "oci" else LayoutHub(open_store(config))


def open_store(config: HubConfig) -> ObjectStore:
    """Open a bucket (``s3://``, ``bos://``) for what is not a hub.

    Raises:
        ConfigError: the URL names no bucket, or an extra is not installed.
    """
    scheme = config.url.partition("://")[0]
    if scheme not in _STORES:
        raise ConfigError(f"{config.url} names no bucket", hint="Write s3://bucket/prefix or bos://bucket/prefix.")
    return _STORES[scheme](config)


def _s3(config: HubConfig) -> ObjectStore:
    from cloudedge.hub._s3 import S3Settings, S3Store  # noqa: PLC0415 - boto3 is an extra, and slow to import

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
    from cloudedge.hub._bos import BosSettings, BosStore  # noqa: PLC0415 - an extra

    access_key = config.access_key or os.environ.get("BCE_ACCESS_KEY_ID", "")
    secret_key = reveal(config.secret_key or "env:BCE_SECRET_ACCESS_KEY")
    settings = BosSettings(access_key, secret_key, region=config.region or "bj", endpoint=config.endpoint or None)
    return BosStore(config.url, settings)


def _oci(config: HubConfig) -> Hub:
    from cloudedge.hub._registry import RegistryHub, RegistrySettings  # noqa: PLC0415 - requests is slow to import

    settings = RegistrySettings(
        username=config.username or None,
        password=reveal(config.password) if config.password else None,
        insecure=config.insecure,
        ca_file=Path(config.ca_file) if config.ca_file else None,
        state_dir=home() / "uploads",
    )
    return RegistryHub(config.url, settings)


_STORES = {"s3": _s3, "bos": _bos}
