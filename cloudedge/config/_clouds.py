"""BIE control planes in ``cloudedge.yaml``, and the stores of their nodes' files."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from cloudedge.config._fields import Duration, Secret, Section, explain
from cloudedge.config._hubs import HubConfig
from cloudedge.errors import ConfigError

__all__ = ["CloudConfig", "ObjectsConfig"]


class ObjectsConfig(Section):
    """The store of the files that edge nodes download."""

    store: HubConfig = Field(description="a directory, s3://bucket/prefix or bos://bucket/prefix, as for a hub")
    public_url: str = Field("", description="the prefix of a file's URL as nodes see it; buckets have their own")


class CloudConfig(Section):
    """A BIE control plane: the public one, or your own baetyl-cloud."""

    url: str = Field(pattern=r"^https?://[^/@?#]+/?$", description="its address, such as https://host:9004")
    prefix: str = Field("", description="the part of its paths before the version; {namespace} is filled in")
    version: str = Field("v1", pattern=r"^[a-z0-9.-]+$", description="the API's version, as in /v1/configs")
    namespace: str = Field("", description="the account's namespace; an answer about another one is refused")
    signer: Literal["none", "bce-auth-v1", "header"] = Field("none", description="the authentication of requests")
    access_key: str = Field("", description="bce-auth-v1: the access key id")
    secret_key: Secret | None = Field(None, description="bce-auth-v1: the secret key, as env:NAME or file:PATH")
    session_token: Secret | None = Field(None, description="bce-auth-v1: the token of temporary keys")
    auth_header: str = Field("Authorization", description="header: the header's name")
    auth_value: Secret | None = Field(None, description="header: the header's value, as env:NAME or file:PATH")
    headers: dict[str, str] = Field({}, description="additional headers, none of them secret; {namespace} is filled in")
    ca_file: str = Field("", description="the file of your own certificate authority")
    timeout: Duration = Field(timedelta(seconds=30), description="time limit of one answer")
    deadline: Duration = Field(timedelta(minutes=2), description="time limit of one call, retries included")
    objects: ObjectsConfig | None = Field(None, description="the store of the files that nodes download")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> CloudConfig:
        """Make a configuration without a file.

        Raises:
            ConfigError: a setting is not valid.
        """
        try:
            return cls.model_validate({"url": url, **settings})
        except ValidationError as error:
            raise ConfigError(explain(f"the cloud {url}", error)) from None
