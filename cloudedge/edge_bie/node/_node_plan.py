"""The plan of a node: the changes from its present to its desired apps, and the admission of statements. Pure.

- An app that is desired and live stays as it is.
- A desired revision replaces the live revision of the same slot, once it has passed its trial.
- Of two apps that want one host port, or one slot, the live one keeps it; else the first.
- A slot without a desired app is stopped; that comes first, because others may want its ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloudedge.edge_bie.model import (
    AppRef,
    DesiredApp,
    MountedConfig,
    Statement,
    app_name,
    content_of,
    slot_of,
    statement_config,
    texts_digest,
)
from cloudedge.edge_bie.node._units import Slot
from cloudedge.errors import Conflict, InputError, IntegrityError
from cloudedge.hub import parse_digest

__all__ = ["NodePlan", "admit", "bytes_needed", "plan"]

_TABLES = "application/vnd.cloudedge.table."
_SIZE_LIMIT = 1 << 50


@dataclass(frozen=True)
class NodePlan:
    """The changes to make, removals first."""

    remove: tuple[str, ...]
    """Slots to stop."""
    install: tuple[DesiredApp, ...]
    skip: Mapping[AppRef, str]
    """Reasons by app that cannot be installed."""


def plan(desired: Sequence[DesiredApp], slots: Mapping[str, Slot]) -> NodePlan:
    """Plan the changes."""
    chosen: dict[str, DesiredApp] = {}
    ports: dict[int, DesiredApp] = {}
    skip: dict[AppRef, str] = {}
    for app in sorted(desired, key=lambda app: not _is_live(app, slots)):  # stable: live ones first, then in order
        slot = slot_of(app)
        taken = next((ports[port] for port in app.host_ports if port in ports), None)
        if slot in chosen:
            skip[app.ref] = f"{chosen[slot].ref.name} is a revision of {slot} too, and comes first"
        elif len(set(app.host_ports)) != len(app.host_ports):
            skip[app.ref] = f"{app.ref.name} wants one host port twice"
        elif taken is not None:
            port = next(port for port in app.host_ports if port in ports)
            skip[app.ref] = f"host port {port} conflict: {taken.ref.name} has it"
        else:
            chosen[slot] = app
            ports.update(dict.fromkeys(app.host_ports, app))
    wanted = {slot_of(app) for app in desired}
    return NodePlan(
        remove=tuple(name for name, slot in slots.items() if slot.running and name not in wanted),
        install=tuple(app for app in desired if chosen.get(slot_of(app)) is app and not _is_live(app, slots)),
        skip=skip,
    )


def _is_live(app: DesiredApp, slots: Mapping[str, Slot]) -> bool:
    slot = slots.get(slot_of(app))
    return slot is not None and slot.live is not None and slot.live.ref == app.ref


def admit(statement: Statement, app: DesiredApp, configs: Mapping[str, MountedConfig], slot: Slot) -> None:
    """Check a statement with a valid signature against its app and against the statements accepted before.

    Args:
        statement: The statement.
        app: The app that mounts it.
        configs: Every config that the app mounts, by name.
        slot: The slot, with the highest accepted number.

    Raises:
        IntegrityError: It belongs to another app, or contradicts itself.
        Conflict: It is older than an accepted one: it is replayed.
    """
    name = slot_of(app)
    if statement.app != name:
        raise IntegrityError(f"the statement of {app.ref.name} speaks for {statement.app}, not for {name}")
    if app_name(statement.app, statement.revision) != app.ref.name:
        raise IntegrityError(f"the statement of {app.ref.name} makes revision {statement.revision}, which it is not")
    if statement.image and any(service.image != statement.image for service in app.services[:1]):
        raise IntegrityError(f"{app.ref.name} runs {app.services[0].image}, its statement names {statement.image}")
    if statement.manifest is None or not statement.bundle.endswith(f"@{statement.manifest.digest}"):
        raise IntegrityError(f"the statement of {app.ref.name} does not name its bundle's manifest")
    try:
        sizes = {parse_digest(blob.digest): blob.size for blob in statement.every_blob}
    except InputError as error:
        raise IntegrityError(f"the statement of {app.ref.name}: {error.message}") from error
    if not all(type(size) is int and 0 <= size < _SIZE_LIMIT for size in sizes.values()):
        raise IntegrityError(f"the statement of {app.ref.name} has a blob of an absurd size")
    _check_content(statement, app, configs)
    if statement.revision in (slot.accepted, slot.live.revision if slot.live else ""):
        return
    if type(statement.sequence) is not int or statement.sequence <= slot.highest:
        raise Conflict(
            f"the statement of {app.ref.name} has number {statement.sequence}; "
            f"number {slot.highest} of {name} was accepted before",
            hint="An old statement was sent again. To roll back, publish a new statement about the old bundle.",
            highest=slot.highest,
        )


def _check_content(statement: Statement, app: DesiredApp, configs: Mapping[str, MountedConfig]) -> None:
    """Check that an app is as signed, also for a revision that runs already: apps in the cloud can be changed.

    Raises:
        IntegrityError: The app or its scripts were changed.
    """
    own = statement_config(statement.app, statement.revision)
    stated = {blob.digest.replace(":", "-") for blob in statement.every_blob}
    for name, config in configs.items():
        if name != own and config.texts and texts_digest(config.texts) not in statement.scripts:
            raise IntegrityError(f"config {name} of {app.ref.name} is not as signed: a text was changed")
        if any(item.key not in stated for item in config.objects):
            raise IntegrityError(f"config {name} of {app.ref.name} brings files that its statement does not name")
    if content_of(app, configs, statement=own) != statement.content:
        raise IntegrityError(
            f"{app.ref.name} is not as signed: a service, its image, command, environment, ports, "
            "mounts, limits or privileges were changed",
            hint="Publish it again with cloudedge; apps of a release are never edited.",
        )


def bytes_needed(statement: Statement, present: Mapping[str, int]) -> int:
    """Return the disk space of a revision: the bytes to download, and its dense files a second time.

    Args:
        statement: Its statement.
        present: Bytes on the disk already, by digest.
    """
    coming = sum(blob.size - min(blob.size, present.get(blob.digest, 0)) for blob in statement.every_blob)
    return coming + sum(blob.size for blob in statement.blobs if not blob.media_type.startswith(_TABLES))
