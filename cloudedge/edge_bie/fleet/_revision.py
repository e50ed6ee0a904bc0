"""Revisions of an app, and their objects in BIE: from a bundle and settings to configs and one app. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cloudedge.bundle import Bundle
from cloudedge.config import EdgeLeg
from cloudedge.edge_bie.client import App, Config, File, Mount, Port, Service, Text, Volume
from cloudedge.edge_bie.model import (
    APP_LABEL,
    OWNER_LABEL,
    PROBE,
    REVISION_LABEL,
    SIGNATURE_KEY,
    STATEMENT_KEY,
    Blob,
    Object,
    Statement,
    app_name,
    blob_config,
    content_of,
    node_label,
    script_config,
    statement_config,
    texts_digest,
)
from cloudedge.edge_bie.model import DesiredApp as NodeApp
from cloudedge.edge_bie.model import MountedConfig as NodeConfig
from cloudedge.errors import InputError, IntegrityError
from cloudedge.hub import Descriptor, current, signature_tag

__all__ = [
    "BLOBS",
    "NO_IMAGE",
    "STATEMENT_MOUNT",
    "STATE_MOUNT",
    "Revision",
    "app_body",
    "blob_body",
    "bundle_statement",
    "read_revisions",
    "script_body",
    "statement_body",
    "with_content",
]

BLOBS = "/cloudedge/blobs"
STATEMENT_MOUNT = "/cloudedge/statement"
STATE_MOUNT = "/cloudedge/state"
NO_IMAGE = "cloudedge.invalid/process"
"""A placeholder that no registry has: BIE requires an image, and nodes that run plain processes need none."""
_RUN = """#! /usr/bin/env bash
set -euo pipefail
root="${{CLOUDEDGE_ROOT:-}}"
export PORT="${{PORT:-$CLOUDEDGE_PORT}}"
exec python3 "$root{mount}/entry.py" -- bash -c 'cd "$CLOUDEDGE_MODEL" && exec python3 web_service.py'
"""


@dataclass(frozen=True)
class Revision:
    """One published revision of an app."""

    statement: Statement
    title: str = ""
    """The bundle's name and version, for people."""

    @property
    def name(self) -> str:
        """The value of the node label."""
        return self.statement.revision

    @property
    def app(self) -> str:
        """The name of this revision's app in BIE."""
        return app_name(self.statement.app, self.name)

    @property
    def size_bytes(self) -> int:
        """Bytes that an empty node would fetch."""
        return sum(blob.size for blob in self.statement.every_blob)

    def new_bytes(self, had: Revision | None) -> int:
        """Return the bytes that a node with another revision would fetch."""
        present = {blob.digest for blob in had.statement.every_blob} if had else set()
        return sum(blob.size for blob in self.statement.every_blob if blob.digest not in present)

    def again(self, sequence: int) -> Revision:
        """Return a revision of the same content with another number."""
        return replace(self, statement=replace(self.statement, sequence=sequence))


def bundle_statement(bundle: Bundle, leg: EdgeLeg, script: Config) -> Statement:
    """Make the statement of a revision that runs a bundle; the publisher sets its number."""
    manifest = bundle.manifest.descriptor
    blobs = [*bundle.manifest.blobs]
    signed = current(bundle.hub.tags(bundle.name), signature_tag(bundle.digest))
    if signed is not None:
        signatures = bundle.hub.read_manifest(bundle.name, signed.target.digest)
        blobs += [signatures.descriptor, *signatures.blobs]
    statement = Statement(
        app=leg.app,
        sequence=0,
        bundle=f"{bundle.name}@{bundle.digest}",
        pin=bundle.pin,
        image=leg.image,
        manifest=_blob(manifest),
        blobs=tuple({blob.digest: _blob(blob) for blob in blobs}.values()),
    )
    return with_content(statement, leg, script)


def with_content(statement: Statement, leg: EdgeLeg, script: Config) -> Statement:
    """Set the content digest and the script digests of a statement, computed like nodes compute them."""
    revision = Revision(statement)
    app = NodeApp.parse(app_body(leg, revision, script.name).to_json())
    texts = {key: item.value.encode() for key, item in script.items.items() if isinstance(item, Text)}
    configs = {script.name: NodeConfig(script.name, "", texts)}
    for blob in statement.every_blob:
        name = blob_config(leg.model, blob.digest)
        configs[name] = NodeConfig(name, "", {}, (Object(blob.digest.replace(":", "-"), ""),))
    content = content_of(app, configs, statement=statement_config(leg.app, revision.name))
    return replace(statement, content=content, scripts=(texts_digest(texts),))


def blob_body(leg: EdgeLeg, blob: Blob, *, url: str, md5: str) -> Config:
    """Return the config that leads nodes to one blob."""
    digest = blob.digest.removeprefix("sha256:")
    item = File(url=url, md5=md5, sha256=digest)
    return Config(blob_config(leg.model, digest), {f"sha256-{digest}": item}, {OWNER_LABEL: "owned"})


def script_body(leg: EdgeLeg, entry: str) -> Config:
    """Return the config with the scripts that start the server.

    Args:
        leg: The settings.
        entry: The text of container_entrypoint.py.

    Raises:
        InputError: The script cannot be read, or BIE's templates would fail on it.
    """
    run = _RUN.format(mount=leg.mount)
    if leg.run:
        try:
            run = Path(leg.run).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the script {leg.run}: {error}") from error
    items = {"run.sh": run, "entry.py": entry}
    for key, text in items.items():
        if "{{" in text:
            raise InputError(
                f"{key} contains '{{{{', and BIE runs every config through a template: no node would get it",
                hint="Write it another way, such as `{ {` or a variable that holds the brace.",
            )
    digest = hashlib.sha256("\0".join(f"{key}\0{text}" for key, text in sorted(items.items())).encode()).hexdigest()
    return Config(
        script_config(leg.script, digest), {key: Text(text) for key, text in items.items()}, {OWNER_LABEL: "owned"}
    )


def statement_body(revision: Revision, signature: bytes) -> Config:
    """Return the config with the signed statement."""
    items = {
        STATEMENT_KEY: Text(revision.statement.to_bytes().decode()),
        SIGNATURE_KEY: Text(base64.b64encode(signature).decode()),
    }
    app = revision.statement.app
    return Config(statement_config(app, revision.name), items, _labels(app, revision.name), revision.title)


def app_body(leg: EdgeLeg, revision: Revision, script: str) -> App:
    """Return the one app of a revision.

    Args:
        leg: The settings.
        revision: The revision.
        script: The name of the script config.
    """
    blobs = [blob_config(leg.model, blob.digest) for blob in revision.statement.every_blob]
    volumes = [Volume("script", script), Volume("statement", statement_config(leg.app, revision.name))]
    mounts = [Mount("script", leg.mount, read_only=True), Mount("statement", STATEMENT_MOUNT, read_only=True)]
    for config in blobs:
        volume = f"blob-{config.rpartition('-')[2]}"
        volumes.append(Volume(volume, config))
        mounts.append(Mount(volume, f"{BLOBS}/{config}", read_only=True))
    if leg.state:
        volumes.append(Volume("state", extra={"hostPath": {"path": leg.state}}))
        mounts.append(Mount("state", STATE_MOUNT))
    service = Service(
        name=leg.service,
        image=revision.statement.image or NO_IMAGE,
        # As the command, so that an image with its own entry point runs the script instead.
        command=("/bin/bash",),
        args=(f"{leg.mount}/run.sh",),
        env={"CLOUDEDGE_APP": leg.app, "CLOUDEDGE_SERVICE": leg.service, "CLOUDEDGE_PORT": str(leg.port), **leg.env},
        ports=(Port(leg.port, leg.port),),
        mounts=tuple(mounts),
        limits=leg.limits,
    )
    trial = replace(
        service,
        name=PROBE,
        command=("python3",),
        args=(f"{leg.mount}/entry.py", "--trial", "--", *service.command, *service.args),
        ports=(),
    )
    is_tried = bool(revision.statement.image) and leg.probe != "off"
    return App(
        name=revision.app,
        selector=f"{node_label(leg.app)}={revision.name}",
        services=(service,),
        volumes=tuple(volumes),
        registries=leg.registries,
        labels=_labels(leg.app, revision.name),
        description=revision.title,
        extra={"initServices": [trial.to_json()]} if is_tried else {},
    )


def read_revisions(app: str, configs: Sequence[Config]) -> dict[str, Revision]:
    """Read the revisions of an app from its statement configs, by name, the highest number first.

    Unreadable ones, and those whose name does not match their content, are left out: nodes refuse them too.
    """
    found: list[Revision] = []
    for config in configs:
        item = config.items.get(STATEMENT_KEY)
        if config.labels.get(APP_LABEL) != app or not isinstance(item, Text):
            continue
        try:
            revision = Revision(Statement.from_bytes(item.value.encode()), config.description)
        except IntegrityError:
            continue
        if revision.statement.app == app and config.name == statement_config(app, revision.name):
            found.append(revision)
    return {each.name: each for each in sorted(found, key=lambda each: -each.statement.sequence)}


def _labels(app: str, revision: str) -> Mapping[str, str]:
    return {OWNER_LABEL: "owned", APP_LABEL: app, REVISION_LABEL: revision}


def _blob(descriptor: Descriptor) -> Blob:
    return Blob(descriptor.digest, descriptor.size, descriptor.media_type)
