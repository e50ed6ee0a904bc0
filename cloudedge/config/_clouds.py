"""BIE control planes in ``cloudedge.yaml``, and where their nodes' files are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from cloudedge.config._fields import Duration, Secret, Section, explain
from cloudedge.config._hubs import HubConfig
from cloudedge.errors import ConfigError

__all__ = ["CloudConfig", "ObjectsConfig"]


class ObjectsConfig(Section):
    """Where files that edge nodes download are kept."""

    store: HubConfig = Field(description="a directory, s3://bucket/prefix or bos://bucket/prefix, as for a hub")
    public_url: str = Field("", description="what nodes put before a file's name; buckets have one of their own")


class CloudConfig(Section):
    """A BIE control plane: the public one, or a baetyl-cloud of one's own."""

    url: str = Field(pattern=r"^https?://[^/@?#]+/?$", description="its address, such as https://host:9004")
    prefix: str = Field("", description="what stands before the version in its paths; {namespace} is filled in")
    version: str = Field("v1", pattern=r"^[a-z0-9.-]+$", description="the API's version, as in /v1/configs")
    namespace: str = Field("", description="the account's; an answer about another one is refused")
    signer: Literal["none", "bce-auth-v1", "header"] = Field("none", description="how requests say who sends them")
    access_key: str = Field("", description="bce-auth-v1: the access key id")
    secret_key: Secret | None = Field(None, description="bce-auth-v1: the secret key, as env:NAME or file:PATH")
    session_token: Secret | None = Field(None, description="bce-auth-v1: comes with temporary keys")
    auth_header: str = Field("Authorization", description="header: its name")
    auth_value: Secret | None = Field(None, description="header: its value, as env:NAME or file:PATH")
    headers: dict[str, str] = Field({}, description="more headers, none of them secret; {namespace} is filled in")
    ca_file: str = Field("", description="a certificate authority of your own")
    timeout: Duration = Field(timedelta(seconds=30), description="how long one answer may take")
    deadline: Duration = Field(timedelta(minutes=2), description="how long one call may take, with every retry")
    objects: ObjectsConfig | None = Field(None, description="where files that nodes download are kept")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> CloudConfig:
        """Make one without a file.

        Raises:
            ConfigError: one of these cannot be.
        """
        try:
            return cls.model_validate({"url": url, **settings})
        except ValidationError as error:
            raise ConfigError(explain(f"the cloud {url}", error)) from None
