"""``cloudedge.yaml``: which hubs and targets there are, and the limits cloudedge keeps to.

The file is found by `load` (argument, then ``CLOUDEDGE_CONFIG``, then ``cloudedge.yaml`` here or in a folder
above); without one, the defaults hold. An unknown key or a bad value is refused with its path, the value and
the accepted form. Secrets are named, never written: ``env:NAME`` or ``file:PATH``.

This module reads configuration; it opens no hub and talks to no target.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from cloudedge.errors import ConfigError

__all__ = [
    "Config",
    "DenseLeg",
    "EdgeLeg",
    "HubConfig",
    "Limits",
    "Secret",
    "SparseLeg",
    "TargetConfig",
    "home",
    "load",
]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}


def home() -> Path:
    """Return the folder for cloudedge's own state: ``CLOUDEDGE_HOME``, else ``~/.cloudedge``."""
    return Path(os.environ.get("CLOUDEDGE_HOME") or Path.home() / ".cloudedge")


def _duration(value: Any) -> Any:
    if isinstance(value, str) and value[:-1].isdecimal() and value[-1:] in _UNITS:
        return timedelta(seconds=int(value[:-1]) * _UNITS[value[-1]])
    raise ValueError("wanted a number and a unit, such as 30s, 10m, 12h, 30d or 4w")


def _size(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip().lower().removesuffix("b")
    digits = text.rstrip("kmgi")
    if digits.isdecimal() and text[len(digits) :] in _BYTES:
        return int(digits) * _BYTES[text[len(digits) :]]
    raise ValueError("wanted bytes, such as 500MB, 64MiB or 1048576")


def _secret(value: str) -> str:
    kind, colon, rest = value.partition(":")
    if kind not in ("env", "file") or not colon or not rest:
        # The value itself may be the secret somebody pasted here: it is not repeated.
        raise ValueError("wanted env:NAME or file:PATH; secrets are not written into cloudedge.yaml")
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(lambda t: f"{int(t.total_seconds())}s")]
Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Secret = Annotated[str, AfterValidator(_secret)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


def reveal(secret: str) -> str:
    """Return the secret that ``env:NAME`` or ``file:PATH`` stands for.

    Raises:
        ConfigError: the variable is not set or the file cannot be read.
    """
    kind, _, where = secret.partition(":")
    if kind == "env":
        value = os.environ.get(where)
        if value is None:
            raise ConfigError(f"the environment variable {where} is not set", hint=f"It holds a secret: {secret}.")
        return value
    try:
        # A trailing newline is the editor's, not the secret's.
        return Path(where).expanduser().read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise ConfigError(f"cannot read the secret file {where}: {error.strerror}") from error


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class HubConfig(_Section):
    """A place bundles are kept."""

    url: str = Field(description="a directory, or s3://bucket/prefix, bos://bucket/prefix, oci://host/prefix")
    endpoint: str = Field("", description="s3, bos: the service's address, if it is not the public one")
    region: str = Field("", description="s3, bos: the region")
    access_key: str = Field("", description="s3, bos: the access key id; empty: the SDK's own search")
    secret_key: Secret | None = Field(None, description="s3, bos: the secret key, as env:NAME or file:PATH")
    username: str = Field("", description="oci: the user; empty: what `docker login` left, else anonymous")
    password: Secret | None = Field(None, description="oci: the password or token, as env:NAME or file:PATH")
    insecure: bool = Field(False, description="oci: speak plain HTTP; loopback addresses always do")
    ca_file: str = Field("", description="oci: a certificate authority of your own")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fields_fit_the_scheme(self) -> HubConfig:
        scheme = self.url.partition("://")[0] if "://" in self.url else "file"
        if scheme not in _FIELDS:
            raise ValueError(f"no hub speaks {scheme}://; wanted a directory, s3://, bos:// or oci://")
        extra = self.model_fields_set - {"url"} - _FIELDS[scheme]
        if extra:
            raise ValueError(f"{', '.join(sorted(extra))} means nothing to a {scheme} hub")
        return self


_KEYS = {"endpoint", "region", "access_key", "secret_key"}
_FIELDS: dict[str, set[str]] = {
    "file": set(),
    "s3": _KEYS,
    "bos": _KEYS,
    "oci": {"username", "password", "insecure", "ca_file"},
}


class SparseLeg(_Section):
    """Where sparse tables go: cube shards, each with replicas."""

    shards: int = Field(1, ge=1, le=4096)
    replicas: int = Field(1, ge=1, le=64)


class DenseLeg(_Section):
    """Where the dense part goes: serving replicas."""

    replicas: int = Field(1, ge=1, le=1024)


class EdgeLeg(_Section):
    """Which edge nodes take part: all whose labels match."""

    selector: str = Field(description="a label selector, such as site=berlin")


class TargetConfig(_Section):
    """A named place that can run a bundle."""

    kind: Literal["local", "kubernetes", "bie"]
    hub: Name | None = Field(None, description="the hub releases come from; the default hub if left out")
    key: str = Field("", description="file of the public key that bundles must be signed with; empty: any bundle")
    sparse: SparseLeg | None = None
    dense: DenseLeg | None = None
    edge: EdgeLeg | None = None


class Limits(_Section):
    """What cloudedge keeps to, whatever the other side asks for."""

    transfer_jobs: int = Field(4, ge=1, le=64, description="blobs that travel at the same time")
    history: Duration = Field(timedelta(days=30), description="how long untagged bundles stay in a hub")
    max_deltas: int = Field(8, ge=0, le=64, description="deltas on a table's base before it is packed anew")
    max_delta_share: float = Field(0.5, gt=0, le=1, description="their bytes, as a share of the base, before that")
    max_bundle: Size = Field(1 << 44, description="the largest bundle that is pulled")


class Config(_Section):
    """The whole of ``cloudedge.yaml``."""

    hubs: dict[Name, HubConfig] = {}
    default_hub: Name | None = Field(None, description="the hub for push and pull when none is named")
    targets: dict[Name, TargetConfig] = {}
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _names_exist(self) -> Config:
        wanted = {"default_hub": self.default_hub} | {f"targets.{n}.hub": t.hub for n, t in self.targets.items()}
        for where, hub in wanted.items():
            if hub is not None and hub not in self.hubs:
                raise ValueError(f"{where} names the hub {hub!r}, and hubs has {sorted(self.hubs) or 'none'}")
        return self


def load(path: str | os.PathLike[str] | None = None) -> Config:
    """Read the configuration.

    Args:
        path: The file; None to look for it, and to take the defaults when there is none.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or says something cloudedge does not understand.
    """
    named = path or os.environ.get("CLOUDEDGE_CONFIG")
    found = Path(named) if named else _search(Path.cwd())
    if found is None:
        return Config()
    try:
        text = found.read_text(encoding="utf-8")
        value = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"cannot read {found}: {error.strerror}", path=str(found)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{found} is not YAML: {error}", path=str(found)) from error
    try:
        return Config.model_validate(value if value is not None else {})
    except ValidationError as error:
        raise ConfigError(_explain(found, error), path=str(found)) from None


def _search(start: Path) -> Path | None:
    return next((f for d in (start, *start.parents) if (f := d / "cloudedge.yaml").is_file()), None)


def _explain(path: Path, error: ValidationError) -> str:
    lines = [f"{path}:"]
    for item in error.errors():
        where = ".".join(str(step) for step in item["loc"]) or "the file"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "cloudedge knows no such key"
        shown = item["input"] if isinstance(item["input"], (str, int, float, bool)) else type(item["input"]).__name__
        is_secret = where.rsplit(".", 1)[-1] in {"secret_key", "password"}
        lines.append(f"  {where}: {message}" + ("" if is_secret else f" (found {shown!r})"))
    return "\n".join(lines)
