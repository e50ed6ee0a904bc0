"""Hubs in ``cloudedge.yaml``."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from cloudedge.config._fields import Secret, Section

__all__ = ["HubConfig"]


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
        if scheme not in _FIELDS:
            raise ValueError(f"no hub has the scheme {scheme}://; wanted a directory, s3://, bos:// or oci://")
        extra = self.model_fields_set - {"url"} - _FIELDS[scheme]
        if extra:
            raise ValueError(f"{', '.join(sorted(extra))} does not apply to a {scheme} hub")
        return self


_KEYS = {"endpoint", "region", "access_key", "secret_key"}
_FIELDS: dict[str, set[str]] = {
    "file": set(),
    "s3": _KEYS,
    "bos": _KEYS,
    "oci": {"username", "password", "insecure", "ca_file"},
}
