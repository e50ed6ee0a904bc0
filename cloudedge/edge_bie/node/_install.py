"""The installer: fetches, verifies, stages and assembles everything that one app needs. It starts nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudedge.clock import Clock, rfc3339
from cloudedge.edge_bie.model import (
    SIGNATURE_KEY,
    STATEMENT_KEY,
    AppRef,
    DesiredApp,
    DesiredVolume,
    MountedConfig,
    Object,
    Statement,
    filled_in,
    slot_of,
)
from cloudedge.edge_bie.node._assemble import Parts, assemble
from cloudedge.edge_bie.node._node_plan import admit
from cloudedge.edge_bie.node._rights import Rights
from cloudedge.edge_bie.node._runtime import Login, Runtime
from cloudedge.edge_bie.node._store import NodeStore
from cloudedge.edge_bie.node._units import NodeState, Slot, Unit
from cloudedge.errors import CloudEdgeError, InputError, IntegrityError, NotFound, SignatureInvalid, Unavailable

__all__ = ["Installer", "checked_statement", "objects_by_digest", "read_apps", "read_configs"]

Fetch = Callable[[str, Sequence[tuple[str, str]]], Mapping[tuple[str, str], Any]]
"""Fetches resources of a kind from the cloud, each by name and version."""


def read_apps(
    refs: Sequence[AppRef], values: Mapping[tuple[str, str], Any], fields: Mapping[str, str]
) -> tuple[dict[AppRef, DesiredApp], dict[AppRef, CloudEdgeError]]:
    """Parse the received apps; return the apps, and the errors of those that cannot be parsed."""
    apps: dict[AppRef, DesiredApp] = {}
    bad: dict[AppRef, CloudEdgeError] = {}
    for ref in refs:
        try:
            app = DesiredApp.parse(filled_in(values[("application", ref.name)], fields), version=ref.version)
            if app.ref != ref:
                raise Unavailable(
                    f"app {ref.name} is at version {app.ref.version}; version {ref.version} was requested"
                )
            apps[ref] = app
        except KeyError:
            bad[ref] = NotFound(f"the cloud sent no app {ref.name}")
        except CloudEdgeError as error:
            bad[ref] = error
    return apps, bad


def read_configs(
    volumes: Sequence[DesiredVolume],
    values: Mapping[tuple[str, str], Any],
    fields: Mapping[str, str],
    *,
    kind: str = "configuration",
) -> dict[str, MountedConfig]:
    """Parse the configs (or secrets) of the versions that an app names.

    Raises:
        Unavailable: Another version came; the app will name it soon.
        InputError: One cannot be parsed.
        NotFound: One did not come.
    """
    found = {}
    parse = MountedConfig.parse_secret if kind == "secret" else MountedConfig.parse
    for volume in volumes:
        if (kind, volume.source) not in values:
            raise NotFound(f"the cloud sent no {kind} {volume.source}")
        value = values[kind, volume.source]
        config = parse(value if kind == "secret" else filled_in(value, fields))
        if volume.version and config.version != volume.version:
            raise Unavailable(
                f"{kind} {config.name} is at version {config.version}; the app is pinned to {volume.version}"
            )
        found[config.name] = config
    return found


def _statement_of(app: DesiredApp, configs: Mapping[str, MountedConfig]) -> tuple[bytes, str] | None:
    """Return an app's statement and its signature as received; None for an app that cloudedge did not publish."""
    for volume in app.configs:
        texts = configs[volume.source].texts if volume.source in configs else {}
        if STATEMENT_KEY in texts:
            return texts[STATEMENT_KEY], texts.get(SIGNATURE_KEY, b"").decode("ascii", "replace")
    return None


def checked_statement(
    app: DesiredApp, configs: Mapping[str, MountedConfig], slot: Slot, key: Path | None
) -> Statement | None:
    """Return an app's verified statement; None for an app that has none.

    Raises:
        SignatureInvalid: It was not signed with the key.
        IntegrityError: It is damaged, or belongs to another app.
        Conflict: It is older than an accepted one.
    """
    received = _statement_of(app, configs)
    if received is None:
        return None
    data, encoded = received
    statement = Statement.from_bytes(data)
    if statement.to_bytes() != data:
        raise IntegrityError(f"the statement of {app.ref.name} is not in canonical form")
    if key is not None:
        try:
            signature = base64.b64decode("".join(encoded.split()), validate=True)
        except (binascii.Error, ValueError):
            raise SignatureInvalid(f"the signature of {app.ref.name}'s statement is not base64") from None
        if not signature:
            raise SignatureInvalid(f"the statement of {app.ref.name} is not signed")
        statement.check(signature, key)
    admit(statement, app, configs, slot)
    return statement


def objects_by_digest(configs: Mapping[str, MountedConfig]) -> dict[str, Object]:
    """Return the sources of blobs, by digest."""
    return {
        f"sha256:{item.key.removeprefix('sha256-')}": item
        for config in configs.values()
        for item in config.objects
        if item.key.startswith("sha256-")
    }


class Installer:
    """Prepares apps on this node.

    Args:
        fetch: Fetches resources from the cloud.
        store: The node's files.
        runtime: Runs apps.
        node: The node's name.
        key: Public key that statements must be signed with; None: unsigned apps are installed too.
        rights: What apps may ask for.
        clock: Source of time.
    """

    def __init__(
        self,
        fetch: Fetch,
        store: NodeStore,
        *,
        runtime: Runtime,
        node: str,
        namespace: str,
        key: Path | None,
        rights: Rights,
        clock: Clock,
    ) -> None:
        self._fetch = fetch
        self._store = store
        self._runtime = runtime
        self._node = node
        self._key = key
        self._rights = rights
        self._clock = clock
        self._fields = {"BAETYL_NODE_NAME": node, "BAETYL_NAMESPACE": namespace}

    def apps(self, refs: Sequence[AppRef]) -> tuple[dict[AppRef, DesiredApp], dict[AppRef, CloudEdgeError]]:
        """Fetch apps. A missing one fails the whole request: they are then fetched one by one."""
        try:
            values = dict(self._fetch("application", [(ref.name, ref.version) for ref in refs]))
        except NotFound:
            values = {}
            for ref in refs:
                try:
                    values.update(self._fetch("application", [(ref.name, ref.version)]))
                except NotFound:
                    continue
        return read_apps(refs, values, self._fields)

    def prepare(self, app: DesiredApp, state: NodeState, at: Callable[[str], None]) -> tuple[Unit, int]:
        """Prepare an app; return its unit, and the needed bytes that were on the node already.

        Args:
            app: The app.
            state: The node's saved state.
            at: Called with each step before it is taken.

        Raises:
            CloudEdgeError: It is not possible, or not now; no running app is touched.
        """
        at("fetch-configs")
        configs = read_configs(
            app.configs, self._fetch("configuration", _pins(app.configs)), self._fields
        )  # fmt: skip
        secrets = read_configs(
            app.secrets, self._fetch("secret", _pins(app.secrets)), self._fields, kind="secret"
        )  # fmt: skip
        statement = checked_statement(app, configs, state.slots.get(slot_of(app), Slot()), self._key)
        if statement is None and self._key is not None:
            raise SignatureInvalid(
                f"{app.ref.name} comes without a statement, and this node runs only signed apps",
                hint="Publish it with cloudedge, or start the node without `--key`.",
            )
        self._rights.check(app, self._store.host, in_container=self._runtime.kind == "docker")
        if statement is None:
            self._bring_images(app, secrets, at)
            at("assemble")
            return self._assemble(Parts(app, configs, secrets)), 0
        at("make-room")
        self._store.make_room(statement, state.units)
        at("download")
        kept = self._store.bring(statement, objects_by_digest(configs))
        self._bring_images(app, secrets, at)
        at("open-bundle")
        bundle = self._store.open_bundle(statement, self._key)
        at("assemble")
        return self._assemble(Parts(app, configs, secrets, statement, bundle)), kept

    def _bring_images(self, app: DesiredApp, secrets: Mapping[str, MountedConfig], at: Callable[[str], None]) -> None:
        at("bring-images")
        texts = [
            {key: data.decode("utf-8", "replace") for key, data in each.texts.items()} for each in secrets.values()
        ]
        logins = [Login(**each) for each in texts if set(each) == {"address", "username", "password"}]
        self._runtime.bring_images([service.image for service in app.services], logins)

    def _assemble(self, parts: Parts) -> Unit:
        kind = self._runtime.kind
        if kind == "docker" and not all(service.image for service in parts.app.services):
            raise InputError(f"{parts.app.ref.name} has a service without an image")
        if kind == "process" and not all((*service.command, *service.args) for service in parts.app.services):
            raise InputError(f"{parts.app.ref.name} has a service without a command")
        created = rfc3339(self._clock.now())
        return assemble(parts, self._store, kind=kind, node=self._node, key=self._key, created=created)


def _pins(volumes: Sequence[DesiredVolume]) -> list[tuple[str, str]]:
    return list({volume.source: (volume.source, volume.version) for volume in volumes}.values())
