"""What a node does, decided: desired and present in, changes out. Nothing here opens a file or a connection.

- Whatever is desired and live stays as it is.
- An app whose line of revisions has another one live takes its place, and only once it is trusted.
- Of two apps that want one port of the host, or one line, the one that is live keeps it; else the first.
- A line that nothing desires any more is stopped; that comes first, because others may want its ports.
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
    """What is to be done, removals first."""

    remove: tuple[str, ...]
    """Lines to stop."""
    install: tuple[DesiredApp, ...]
    skip: Mapping[AppRef, str]
    """Apps that cannot be installed, and why."""


def plan(desired: Sequence[DesiredApp], slots: Mapping[str, Slot]) -> NodePlan:
    """Decide what to do."""
    lines: dict[str, DesiredApp] = {}
    ports: dict[int, DesiredApp] = {}
    skip: dict[AppRef, str] = {}
    for app in sorted(desired, key=lambda app: not _is_live(app, slots)):  # stable: live ones first, then in order
        slot = slot_of(app)
        taken = next((ports[port] for port in app.host_ports if port in ports), None)
        if slot in lines:
            skip[app.ref] = f"{lines[slot].ref.name} is a revision of {slot} too, and comes first"
        elif len(set(app.host_ports)) != len(app.host_ports):
            skip[app.ref] = f"{app.ref.name} wants one host port twice"
        elif taken is not None:
            port = next(port for port in app.host_ports if port in ports)
            skip[app.ref] = f"host port {port} conflict: {taken.ref.name} has it"
        else:
            lines[slot] = app
            ports.update(dict.fromkeys(app.host_ports, app))
    wanted = {slot_of(app) for app in desired}
    return NodePlan(
        remove=tuple(name for name, slot in slots.items() if slot.running and name not in wanted),
        install=tuple(app for app in desired if lines.get(slot_of(app)) is app and not _is_live(app, slots)),
        skip=skip,
    )


def _is_live(app: DesiredApp, slots: Mapping[str, Slot]) -> bool:
    slot = slots.get(slot_of(app))
    return slot is not None and slot.live is not None and slot.live.ref == app.ref


def admit(statement: Statement, app: DesiredApp, configs: Mapping[str, MountedConfig], slot: Slot) -> None:
    """Check a statement, whose signature is good, against what it came with and what was accepted before.

    Args:
        statement: The statement.
        app: The app that mounts it.
        configs: Every config that the app mounts, by name.
        slot: What was accepted before.

    Raises:
        IntegrityError: it speaks for something else, or contradicts itself.
        Conflict: it is older than one that was accepted: somebody sends it again.
    """
    name = slot_of(app)
    if statement.app != name:
        raise IntegrityError(f"the statement of {app.ref.name} speaks for {statement.app}, not for {name}")
    if app_name(statement.app, statement.revision) != app.ref.name:
        raise IntegrityError(f"the statement of {app.ref.name} makes revision {statement.revision}, which it is not")
    if statement.image and any(service.image != statement.image for service in app.services[:1]):
        raise IntegrityError(f"{app.ref.name} runs {app.services[0].image}, its statement says {statement.image}")
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
            hint="An old statement was sent again. To go back, write a new statement about the old bundle.",
            highest=slot.highest,
        )


def _check_content(statement: Statement, app: DesiredApp, configs: Mapping[str, MountedConfig]) -> None:
    """Check that what would be run is what was signed, also for a revision that runs already: apps can be written to.

    Raises:
        IntegrityError: somebody changed the app or what starts the server.
    """
    own = statement_config(statement.app, statement.revision)
    stated = {blob.digest.replace(":", "-") for blob in statement.every_blob}
    for name, config in configs.items():
        if name != own and config.texts and texts_digest(config.texts) not in statement.scripts:
            raise IntegrityError(f"config {name} of {app.ref.name} is not what was signed: a text was changed")
        if any(item.key not in stated for item in config.objects):
            raise IntegrityError(f"config {name} of {app.ref.name} brings files that its statement does not name")
    if content_of(app, configs, statement=own) != statement.content:
        raise IntegrityError(
            f"{app.ref.name} would run otherwise than was signed: a service, its image, command, environment, ports, "
            "mounts, limits or privileges were changed",
            hint="Publish it again with cloudedge; apps of a release are never edited.",
        )


def bytes_needed(statement: Statement, present: Mapping[str, int]) -> int:
    """Return what a revision takes on this disk: the bytes still to come, and its dense files a second time.

    Args:
        statement: What it consists of.
        present: Bytes that are here already, by digest.
    """
    coming = sum(blob.size - min(blob.size, present.get(blob.digest, 0)) for blob in statement.every_blob)
    return coming + sum(blob.size for blob in statement.blobs if not blob.media_type.startswith(_TABLES))
