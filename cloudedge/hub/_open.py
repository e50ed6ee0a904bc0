"""Open a hub from its configuration, URL or path.

`HUB_SCHEMES` of `cloudedge.config` is the table of backends: each scheme names the function that opens it, as
``module:function``, and the settings it takes. A backend, and the configuration itself, is imported only when it is
used: both are slow to import.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from cloudedge.errors import ConfigError
from cloudedge.hub.core import Hub, ObjectStore
from cloudedge.hub.layout import LayoutHub, LocalHub
from cloudedge.hub.objects import DirectoryStore

if TYPE_CHECKING:
    from cloudedge.config import HubConfig

__all__ = ["open_hub", "open_store", "prepare_bucket"]


def open_hub(where: HubConfig | str | os.PathLike[str]) -> Hub:
    """Open a hub. Nothing is read or created until it is used.

    Raises:
        ConfigError: no backend has the URL's scheme, or an extra is not installed.
    """
    from cloudedge.config import HUB_SCHEMES, HubConfig  # noqa: PLC0415

    config = where if isinstance(where, HubConfig) else HubConfig.model_validate(os.fspath(where))
    scheme, separator, rest = config.url.partition("://")
    if not separator or scheme == "file":
        return LocalHub(rest or config.url)
    if HUB_SCHEMES[scheme].hub:
        hub: Hub = _call(HUB_SCHEMES[scheme].hub, config)
        return hub
    return LayoutHub(open_store(config))


def open_store(config: HubConfig) -> ObjectStore:
    """Open an object store (``s3://``, ``bos://`` or a directory) for data that is not a hub.

    Raises:
        ConfigError: the URL names no object store, or an extra is not installed.
    """
    from cloudedge.config import HUB_SCHEMES  # noqa: PLC0415

    scheme, separator, rest = config.url.partition("://")
    if not separator or scheme == "file":
        return DirectoryStore(rest or config.url)
    if scheme not in HUB_SCHEMES or not HUB_SCHEMES[scheme].store:
        raise ConfigError(f"{config.url} names no bucket", hint="Write s3://bucket/prefix or bos://bucket/prefix.")
    store: ObjectStore = _call(HUB_SCHEMES[scheme].store, config)
    return store


def prepare_bucket(config: HubConfig, *, public: bool = False) -> None:
    """Create an S3 bucket unless it exists.

    Args:
        config: The bucket, ``s3://bucket``.
        public: Let everyone read objects whose name they know.
    """
    from cloudedge.hub.objects import open_s3  # noqa: PLC0415 - boto3 is an extra, and slow to import

    open_s3(config).prepare(public=public)


def _call(opener: str, config: HubConfig) -> Any:
    module, _, function = opener.partition(":")
    return getattr(importlib.import_module(module), function)(config)
