"""Hubs in ``cloudedge.yaml``."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import Field, model_validator

from cloudedge.config._fields import Secret, Section

__all__ = ["HUB_SCHEMES", "HubConfig", "HubScheme"]


class HubScheme(NamedTuple):
    """A hub backend: the settings it takes and the function (``module:function``) that opens it."""

    fields: tuple[str, ...] = ()
    store: str = ""
    """Takes a `HubConfig` and returns an `ObjectStore`, in which an OCI layout is kept."""
    hub: str = ""
    """Takes a `HubConfig` and returns a `Hub` that keeps bundles in its own way."""


class HubConfig(Section):
    """A place where bundles are kept."""

    url: str = Field(description="a directory, or s3://bucket/prefix, bos://bucket/prefix, oci://host/prefix")
    endpoint: str = Field("", description="s3, bos: the service's address, unless it is the public one")
    region: str = Field("", description="s3, bos: the region")
    access_key: str = Field("", description="s3, bos: the access key id; if empty, the SDK searches for credentials")
    secret_key: Secret | None = Field(None, description="s3, bos: the secret key, as env:NAME or file:PATH")
    username: str = Field("", description="oci: the user; if empty, the credentials of `docker login`, else anonymous")
    password: Secret | None = Field(None, description="oci: the password or token, as env:NAME or file:PATH")
    insecure: bool = Field(False, description="oci: use plain HTTP; loopback addresses always do")
    ca_file: str = Field("", description="oci: the file of your own certificate authority")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fields_fit_the_scheme(self) -> HubConfig:
        scheme = self.url.partition("://")[0] if "://" in self.url else "file"
        if scheme not in HUB_SCHEMES:
            *others, last = (f"{known}://" for known in HUB_SCHEMES if known != "file")
            raise ValueError(f"no hub has the scheme {scheme}://; wanted a directory, {', '.join(others)} or {last}")
        extra = self.model_fields_set - {"url"} - set(HUB_SCHEMES[scheme].fields)
        if extra:
            raise ValueError(f"{', '.join(sorted(extra))} does not apply to a {scheme} hub")
        return self


_BUCKET_FIELDS = ("endpoint", "region", "access_key", "secret_key")
_REGISTRY_FIELDS = ("username", "password", "insecure", "ca_file")

HUB_SCHEMES: dict[str, HubScheme] = {
    "file": HubScheme(),
    "s3": HubScheme(_BUCKET_FIELDS, store="cloudedge.hub.objects:open_s3"),
    "bos": HubScheme(_BUCKET_FIELDS, store="cloudedge.hub.objects:open_bos"),
    "oci": HubScheme(_REGISTRY_FIELDS, hub="cloudedge.hub.registry:open_registry"),
}
"""Every scheme of a hub's URL. A new backend is one module with such a function, and one line here."""
