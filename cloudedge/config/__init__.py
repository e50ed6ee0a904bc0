"""``cloudedge.yaml``: the hubs, targets, clouds and transfers, and cloudedge's limits.

`load` finds the file: its argument, then ``CLOUDEDGE_CONFIG``, then ``cloudedge.yaml`` in this folder or one above.
Without a file, the defaults hold. An unknown key or a bad value is refused with its path, the value and the accepted
form. Secrets are referenced, never written: ``env:NAME`` or ``file:PATH``.

This package reads configuration; it opens no hub and contacts no target.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, ValidationError, model_validator

from cloudedge.config._clouds import CloudConfig, ObjectsConfig
from cloudedge.config._edge import EdgeAbort, EdgeLeg, EdgeNeeds, EdgeTimeouts
from cloudedge.config._fields import Duration, Name, Secret, Section, Share, Size, explain, reveal
from cloudedge.config._hubs import HUB_SCHEMES, HubConfig, HubScheme
from cloudedge.config._targets import (
    CubePods,
    DenseLeg,
    KnativeConfig,
    PeerConfig,
    PodsConfig,
    ServingPods,
    SparseLeg,
    TargetConfig,
    accept_target_kind,
)
from cloudedge.config._transfers import TransferConfig, TransferServer, TransferTable
from cloudedge.errors import ConfigError

__all__ = [
    "HUB_SCHEMES",
    "CloudConfig",
    "Config",
    "CubePods",
    "DenseLeg",
    "Duration",
    "EdgeAbort",
    "EdgeLeg",
    "EdgeNeeds",
    "EdgeTimeouts",
    "HubConfig",
    "HubScheme",
    "KnativeConfig",
    "Limits",
    "ObjectsConfig",
    "PeerConfig",
    "PodsConfig",
    "Secret",
    "ServingPods",
    "Share",
    "SparseLeg",
    "TargetConfig",
    "TrainingConfig",
    "TransferConfig",
    "TransferServer",
    "TransferTable",
    "accept_target_kind",
    "home",
    "load",
    "reveal",
]


def home() -> Path:
    """Return the folder for cloudedge's own state: ``CLOUDEDGE_HOME``, else ``~/.cloudedge``."""
    return Path(os.environ.get("CLOUDEDGE_HOME") or Path.home() / ".cloudedge")


class TrainingConfig(Section):
    """Settings for training jobs: the queues in which they compete on a cluster."""

    queues: dict[Annotated[str, Field(pattern="^(guaranteed|opportunistic)$")], str] = Field(
        default={}, description="the Volcano queue of each job class; Volcano's default queue if left out"
    )


class Limits(Section):
    """Limits cloudedge keeps, whatever the other side asks for."""

    transfer_jobs: int = Field(4, ge=1, le=64, description="blobs transferred at the same time")
    history: Duration = Field(timedelta(days=30), description="time for which untagged bundles stay in a hub")
    max_deltas: int = Field(8, ge=0, le=64, description="deltas on a table's base before it is packed anew")
    max_delta_share: float = Field(
        0.5, gt=0, le=1, description="share of the base that the deltas may reach before that"
    )
    max_bundle: Size = Field(1 << 44, description="the largest bundle that is pulled")


class Config(Section):
    """The whole of ``cloudedge.yaml``."""

    hubs: dict[Name, HubConfig] = Field({}, description="hubs that keep bundles, by name")
    default_hub: Name | None = Field(None, description="the hub for push and pull when none is named")
    targets: dict[Name, TargetConfig] = Field({}, description="places that can run a bundle, by name")
    clouds: dict[Name, CloudConfig] = Field({}, description="BIE control planes, by name")
    transfers: dict[Name, TransferConfig] = Field({}, description="deliveries of tables to their servers, by name")
    training: TrainingConfig = TrainingConfig()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _names_exist(self) -> Config:
        wanted = {"default_hub": self.default_hub} | {f"targets.{n}.hub": t.hub for n, t in self.targets.items()}
        for where, hub in wanted.items():
            if hub is not None and hub not in self.hubs:
                raise ValueError(f"{where} names the hub {hub!r}; hubs has {sorted(self.hubs) or 'none'}")
        return self


def load(path: str | os.PathLike[str] | None = None) -> Config:
    """Read the configuration.

    Args:
        path: The file; None to search for it, and to use the defaults when there is none.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or has an unknown key or a bad value.
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
        raise ConfigError(explain(found, error), path=str(found)) from None


def _search(start: Path) -> Path | None:
    return next((f for d in (start, *start.parents) if (f := d / "cloudedge.yaml").is_file()), None)
