"""The edge leg of a target in ``cloudedge.yaml``: its nodes, and how a release reaches them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, model_validator

from cloudedge.config._fields import Duration, Name, Secret, Section, Share, Size

__all__ = ["EdgeAbort", "EdgeLeg", "EdgeNeeds", "EdgeTimeouts"]


class EdgeAbort(Section):
    """The failure share at which a rollout gives up and rolls back every touched node."""

    failed: Share = Field(0.1, description="share of the nodes that tried; with more failures the rollout gives up")
    at_least: int = Field(10, ge=1, description="nodes that must have tried before the share counts")
    then: Literal["rollback", "pause"] = Field(
        "rollback", description="roll touched nodes back, or wait for an operator"
    )


class EdgeTimeouts(Section):
    """Time limits of a rollout for one node."""

    failed: Duration = Field(
        timedelta(minutes=15), description="a node that is online and not done after this has failed"
    )
    offline: Duration = Field(
        timedelta(minutes=5),
        description="a node away for this long counts as offline, and the wave does not wait for it",
    )


class EdgeNeeds(Section):
    """Requirements a node must meet before anything is sent to it; a value the node does not report is not checked."""

    arch: tuple[str, ...] = Field((), description="processor architectures, such as amd64, arm64; any if empty")
    accelerator: str = Field("", description="nvidia, jetson, ascend, bitmain, cambricon, kunlun; any if empty")
    disk: Size | None = Field(None, description="free bytes; twice the bytes to transfer if left out")
    memory: Size | None = Field(None, description="free bytes; the bundle's own requirement if left out")


class EdgeLeg(Section):
    """The edge nodes that take part, the app they run, and the waves in which a release reaches them."""

    cloud: Name = Field(description="the nodes' control plane: a name in clouds")
    selector: str = Field("", description="a label selector, such as site=berlin; all nodes if empty")
    app: str = Field(pattern=r"^[a-z][-a-z0-9]{0,40}[a-z0-9]$", description="the app's name without its revision")
    model: str = Field(
        pattern=r"^[a-z0-9][-a-z0-9.]{0,48}[a-z0-9]$", description="the prefix of the names of blob configs"
    )
    script: str = Field(
        pattern=r"^[a-z0-9][-a-z0-9.]{0,48}[a-z0-9]$", description="the prefix of the names of script configs"
    )
    run: str = Field("", description="the script that starts the server; one that runs web_service.py if left out")
    key: str = Field(description="the private key file that signs statements; nodes have the public half")
    passphrase: Secret | None = Field(None, description="passphrase of that key, as env:NAME or file:PATH")
    image: str = Field(
        "", pattern=r"^(\S+@sha256:[0-9a-f]{64})?$", description="the Serving image by digest; none for plain processes"
    )
    registries: tuple[str, ...] = Field((), description="BIE registries with the passwords for that image")
    service: str = Field(
        "model",
        pattern=r"^[a-z0-9][-a-z0-9]{0,61}[a-z0-9]$",
        description="the service in the app, and in POST /SERVICE/prediction",
    )
    port: int = Field(18082, ge=1, le=65535, description="the port on the node, and the one the server listens on")
    mount: str = Field("/home/work/script", pattern=r"^/\S+$", description="the script's folder in the container")
    state: str = Field(
        "cloudedge",
        pattern=r"^(/?[-_a-zA-Z0-9][-._a-zA-Z0-9]*(/[-_a-zA-Z0-9][-._a-zA-Z0-9]*)*)?$",
        description="stock nodes: a folder there that keeps the highest number accepted, so that older statements are "
        "refused; a relative one is below /var/lib/baetyl/host; empty: forgotten with the container",
    )
    limits: dict[str, str] = Field({}, description="the container's limits: cpu, memory, nvidia.com/gpu")
    env: dict[str, str] = Field({}, description="the container's environment variables")
    needs: EdgeNeeds = EdgeNeeds()
    waves: tuple[str, ...] = Field(
        ("1", "10%", "50%"),
        description="each a number of further nodes, a percentage of all to reach, or a label; then the rest",
    )
    bake: Duration = Field(timedelta(minutes=1), description="time to watch a finished wave before the next")
    success: Share = Field(
        0.95, description="share of the nodes that tried in a wave that must succeed before the next"
    )
    abort: EdgeAbort = EdgeAbort()
    timeouts: EdgeTimeouts = EdgeTimeouts()
    windows: tuple[str, ...] = Field(
        (), description="when nodes may be moved: Mon-Fri 22:00-06:00 Europe/Berlin; always if empty"
    )
    approval: Literal["never", "after-first", "every"] = Field(
        "never", description="when an operator must approve: never, after the first wave, or before every one"
    )
    probe: Literal["required", "reachable", "off"] = Field(
        "reachable",
        description="probe the server directly: always, where it can be reached, or never; our nodes always probe",
    )
    jobs: int = Field(16, ge=1, le=256, description="labels written at the same time")
    every: Duration = Field(timedelta(seconds=5), description="time between two reads of the nodes' state")

    @model_validator(mode="before")
    @classmethod
    def _plain_numbers(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("waves"), list):
            return value | {"waves": [str(wave) for wave in value["waves"]]}
        return value

    @model_validator(mode="after")
    def _waves_are_waves(self) -> EdgeLeg:
        for wave in self.waves:
            if not _WAVE.fullmatch(wave):
                raise ValueError(f"wave {wave!r} is no count (3), percentage (10%) or label (ring=canary)")
        return self


_WAVE = re.compile(r"[1-9][0-9]*|(100|[1-9]?[0-9])%|[^\s=]+(=|!=| in | notin )[^=]+|!?[a-zA-Z][-._/a-zA-Z0-9]*")
