"""The edge leg of a target in ``cloudedge.yaml``: which nodes, and how a release gets to them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, model_validator

from cloudedge.config._fields import Duration, Name, Secret, Section, Share, Size

__all__ = ["EdgeAbort", "EdgeLeg", "EdgeNeeds", "EdgeTimeouts"]


class EdgeAbort(Section):
    """When a rollout gives up and takes every touched node back."""

    failed: Share = Field(0.1, description="failed nodes as a share of those that tried, above which it gives up")
    at_least: int = Field(10, ge=1, description="how many have to have tried before that is concluded")
    then: Literal["rollback", "pause"] = Field("rollback", description="take touched nodes back, or wait for somebody")


class EdgeTimeouts(Section):
    """How long a rollout waits for one node."""

    failed: Duration = Field(timedelta(minutes=15), description="online and not done after so long: failed")
    offline: Duration = Field(
        timedelta(minutes=5), description="away for so long: counted as offline, and not waited for"
    )


class EdgeNeeds(Section):
    """What a node has to have before anything is sent to it; what a node does not report is not held against it."""

    arch: tuple[str, ...] = Field((), description="processors, such as amd64, arm64; any if empty")
    accelerator: str = Field("", description="nvidia, jetson, ascend, bitmain, cambricon, kunlun; any if empty")
    disk: Size | None = Field(None, description="free bytes; what has to travel, twice, if left out")
    memory: Size | None = Field(None, description="free bytes; what the bundle says it needs if left out")


class EdgeLeg(Section):
    """Which edge nodes take part, what runs there, and how a release gets to them: in waves."""

    cloud: Name = Field(description="whose nodes: a name in clouds")
    selector: str = Field("", description="a label selector, such as site=berlin; all nodes if empty")
    app: str = Field(pattern=r"^[a-z][-a-z0-9]{0,40}[a-z0-9]$", description="the app without its revision")
    model: str = Field(pattern=r"^[a-z0-9][-a-z0-9.]{0,48}[a-z0-9]$", description="blob configs begin with this")
    script: str = Field(pattern=r"^[a-z0-9][-a-z0-9.]{0,48}[a-z0-9]$", description="script configs begin with this")
    run: str = Field("", description="the script that starts the server; one that runs web_service.py if left out")
    key: str = Field(description="the private key file that statements are signed with; nodes have the public half")
    passphrase: Secret | None = Field(None, description="of that key, as env:NAME or file:PATH")
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
    mount: str = Field("/home/work/script", pattern=r"^/\S+$", description="where the script is in the container")
    state: str = Field(
        "cloudedge",
        pattern=r"^(/?[-_a-zA-Z0-9][-._a-zA-Z0-9]*(/[-_a-zA-Z0-9][-._a-zA-Z0-9]*)*)?$",
        description="stock nodes: a folder there that keeps the highest number accepted, so that older statements are "
        "refused; a relative one is below /var/lib/baetyl/host; empty: forgotten with the container",
    )
    limits: dict[str, str] = Field({}, description="of the container: cpu, memory, nvidia.com/gpu")
    env: dict[str, str] = Field({}, description="of the container")
    needs: EdgeNeeds = EdgeNeeds()
    waves: tuple[str, ...] = Field(
        ("1", "10%", "50%"),
        description="so many nodes more, until so many % have moved, or those with a label; then the rest",
    )
    bake: Duration = Field(timedelta(minutes=1), description="how long a wave that is done is watched before the next")
    success: Share = Field(0.95, description="share of a wave's nodes that tried and must be done before the next wave")
    abort: EdgeAbort = EdgeAbort()
    timeouts: EdgeTimeouts = EdgeTimeouts()
    windows: tuple[str, ...] = Field(
        (), description="when nodes may be moved: Mon-Fri 22:00-06:00 Europe/Berlin; always if empty"
    )
    approval: Literal["never", "after-first", "every"] = Field(
        "never", description="whether somebody says yes after the first wave, or before every one"
    )
    probe: Literal["required", "reachable", "off"] = Field(
        "reachable", description="ask the server itself: must, where it can be reached, or not; our nodes always do"
    )
    jobs: int = Field(16, ge=1, le=256, description="labels written at the same time")
    every: Duration = Field(timedelta(seconds=5), description="time between two looks at the nodes")

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
