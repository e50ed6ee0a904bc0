"""Assembly of a unit: its mounts and the bundle's dense files below one folder, and the commands that start it.

A container sees the mounts at the paths of the app. A process has no mounts: it gets the folder's name in
``CLOUDEDGE_ROOT``, its port in ``PORT``, and mount paths at the beginning of its words replaced. One script serves
both.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from cloudedge.bundle import Bundle, published
from cloudedge.edge_bie.model import DesiredApp, DesiredService, DesiredVolume, MountedConfig, Statement, slot_of
from cloudedge.edge_bie.node._rights import host_path
from cloudedge.edge_bie.node._store import NodeStore
from cloudedge.edge_bie.node._units import Bind, Lead, ServiceRun, Unit
from cloudedge.errors import InputError
from cloudedge.hub import Descriptor, Digest
from cloudedge.io import path_below, write_synced

__all__ = ["Kind", "Parts", "assemble", "free_port"]

Kind = Literal["process", "docker"]
HUB = "/cloudedge/hub"
KEY = "/cloudedge/key.pub"
_TABLES = ".bundle/tables/"


@dataclass(frozen=True)
class Parts:
    """The fetched parts of an app."""

    app: DesiredApp
    configs: Mapping[str, MountedConfig]
    secrets: Mapping[str, MountedConfig]
    statement: Statement | None = None
    bundle: Bundle | None = None


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def assemble(parts: Parts, store: NodeStore, *, kind: Kind, node: str, key: Path | None, created: str) -> Unit:
    """Make a unit's folder, which appears complete or not at all, and return the unit.

    Raises:
        StorageError: The disk is full; nothing appears.
        InputError: Two mounts overlap, or one is not possible here.
    """
    app, statement = parts.app, parts.statement
    bare = Unit(app.ref, slot_of(app), created)
    folder = store.unit_folder(bare.id)
    objects = {
        volume.source: store.bring_objects(parts.configs[volume.source])
        for volume in app.configs
        if parts.configs[volume.source].objects and not _is_blob(parts, volume)
    }
    model = _model_path(parts)
    if kind == "process":
        _check_nesting(app, objects, (model, KEY))
    if not folder.is_dir():
        with published(folder, f"assembling {app.ref.name}") as temporary:
            temporary.mkdir()
            for path, volume in _mounts(app).items():
                if kind == "process" or not _is_linked(volume, objects):
                    _fill(_below(temporary, path), volume, parts, store, objects)
            if parts.bundle is not None:
                _unpack(parts.bundle, _below(temporary, model))
            if key is not None:
                _write(_below(temporary, KEY), key.read_bytes(), 0o644)
    return Unit(
        app.ref,
        bare.slot,
        created,
        runs=tuple(
            _run(service, parts, folder, store, objects, kind=kind, node=node, key=key) for service in app.services
        ),
        sequence=statement.sequence if statement else 0,
        revision=statement.revision if statement else "",
        bundle=statement.bundle if statement else "",
        blobs=tuple(blob.digest for blob in statement.every_blob) if statement else (),
        objects=tuple(str(path) for path in objects.values()),
        probe=_probe_service(parts),
    )


def _mounts(app: DesiredApp) -> dict[str, DesiredVolume]:
    volumes = {volume.name: volume for volume in app.volumes}
    found: dict[str, DesiredVolume] = {}
    for service in app.services:
        for mount in service.mounts:
            volume = volumes[mount.volume]
            if found.setdefault(mount.path, volume) != volume:
                raise InputError(f"app {app.ref.name} mounts two volumes at {mount.path}")
    return dict(sorted(found.items()))


def _is_linked(volume: DesiredVolume, objects: Mapping[str, Path]) -> bool:
    """Return True if a volume is a folder elsewhere: containers mount it from there, processes get a link to it."""
    return volume.kind == "hostPath" or (volume.kind == "config" and volume.source in objects)


def _check_nesting(app: DesiredApp, objects: Mapping[str, Path], own: Sequence[str]) -> None:
    """Refuse a mount below one that is a link for a process: it would be written into the folder behind the link.

    Raises:
        InputError: There is such a mount.
    """
    mounts = _mounts(app)
    for path in [path for path, volume in mounts.items() if _is_linked(volume, objects)]:
        below = next((each for each in (*mounts, *own) if each.startswith(f"{path}/")), "")
        if below:
            raise InputError(f"app {app.ref.name}: {below} is inside of {path}, which is a folder of the host")


def _fill(target: Path, volume: DesiredVolume, parts: Parts, store: NodeStore, objects: Mapping[str, Path]) -> None:
    """Put a volume's content at its mount path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if volume.kind == "config" and _is_blob(parts, volume):
        target.mkdir()
        for item in parts.configs[volume.source].objects:
            _link(store, item.key, target / item.key, parts)
    elif volume.kind == "config" and volume.source in objects:
        target.symlink_to(objects[volume.source])
    elif volume.kind in ("config", "secret"):
        target.mkdir(exist_ok=True)
        config = (parts.configs if volume.kind == "config" else parts.secrets)[volume.source]
        for key, data in config.texts.items():
            _write(target / key, data, 0o755 if volume.kind == "config" else 0o600)
    elif volume.kind == "hostPath":
        source = host_path(store.host, volume)
        source.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
    else:
        target.mkdir()


def _is_blob(parts: Parts, volume: DesiredVolume) -> bool:
    """Return True if a config refers to blobs of the app's own bundle, which are in the hub."""
    if parts.statement is None or volume.kind != "config":
        return False
    items = parts.configs[volume.source].objects
    return bool(items) and all(_digest_of(item.key) in _stated(parts.statement) for item in items)


def _digest_of(key: str) -> str:
    return key.replace("sha256-", "sha256:", 1)


def _stated(statement: Statement) -> dict[str, int]:
    return {blob.digest: blob.size for blob in statement.every_blob}


def _link(store: NodeStore, key: str, target: Path, parts: Parts) -> None:
    assert parts.statement is not None  # noqa: S101 - `_is_blob` checked it
    digest = _digest_of(key)
    source = store.hub.blob_path(Descriptor("", Digest(digest), _stated(parts.statement)[digest]))
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _unpack(bundle: Bundle, target: Path) -> None:
    """Write a bundle's dense files and parts; tables stay in the hub and are read from there."""
    for member in bundle.members():
        if not member.path.startswith(_TABLES):
            path = path_below(target, member.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                for chunk in member.chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_synced(path, data, mode=mode)


def _below(root: Path, path: str) -> Path:
    return path_below(root, PurePosixPath(path).as_posix().strip("/"), "a path to mount at")


def _model_path(parts: Parts) -> str:
    if parts.bundle is None:
        return ""
    own = parts.app.services[0].env
    named = own.get("CLOUDEDGE_MODEL", "")
    if named and (not named.startswith("/") or ".." in Path(named).parts):
        raise InputError(f"CLOUDEDGE_MODEL={named!r} is no absolute path")
    return named or f"/home/work/{_probe_service(parts)}"


def _probe_service(parts: Parts) -> str:
    if parts.bundle is None:
        return ""
    service = parts.app.services[0].env.get("CLOUDEDGE_SERVICE") or parts.bundle.name.rpartition("/")[2]
    if not service.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise InputError(f"CLOUDEDGE_SERVICE={service!r} is no name of a service")
    return service


def _run(
    service: DesiredService,
    parts: Parts,
    folder: Path,
    store: NodeStore,
    objects: Mapping[str, Path],
    *,
    kind: Kind,
    node: str,
    key: Path | None,
) -> ServiceRun:
    in_container = kind == "docker"
    model = _model_path(parts)
    own = [path for path in (*_mounts(parts.app), model, "/cloudedge") if path]

    def placed(word: str) -> str:
        is_own = not in_container and any(word == path or word.startswith(f"{path}/") for path in own)
        return f"{folder}{word}" if is_own else word

    leads = tuple(Lead(port.host, port.container, free_port()) for port in service.ports)
    env = {
        "BAETYL_APP_NAME": parts.app.ref.name,
        "BAETYL_APP_VERSION": parts.app.ref.version,
        "BAETYL_NODE_NAME": node,
        "BAETYL_SERVICE_NAME": service.name,
        "BAETYL_RUN_MODE": "kube" if in_container else "native",
        **service.env,
        "CLOUDEDGE_ROOT": "" if in_container else str(folder),
        **_own_env(parts, placed(model), store, in_container=in_container, key=placed(KEY) if key else ""),
        # For this unit alone. The node itself remembers the highest number for good; if all units shared this file, a
        # version that was tried and given up would keep the live one from ever starting again.
        "CLOUDEDGE_STATE": "/tmp/cloudedge-state" if in_container else placed("/cloudedge/own-state"),  # noqa: S108
    }
    for lead in leads:
        port = lead.container if in_container else lead.private
        if lead is leads[0]:
            env["PORT"] = str(port)
        env[f"PORT_{lead.container}"] = str(port)
    if not in_container:
        env["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return ServiceRun(
        service.name,
        tuple(placed(word) for word in (*service.command, *service.args)),
        env,
        cwd=placed(service.cwd) or ("" if in_container else str(folder)),
        image=service.image,
        leads=leads,
        binds=_binds(service, parts, folder, store, objects=objects, model=model) if in_container else (),
        cpus=service.cpus,
        memory=service.memory,
        gpus=service.gpus,
        privileged=service.privileged,
        entry_words=len(service.command),
    )


def _own_env(parts: Parts, model: str, store: NodeStore, *, in_container: bool, key: str) -> dict[str, str]:
    if parts.bundle is None:
        return {}
    return {
        "CLOUDEDGE_BUNDLE": f"{parts.bundle.name}@{parts.bundle.digest}",
        "CLOUDEDGE_HUB": HUB if in_container else str(store.hub.root),
        "CLOUDEDGE_MODEL": model,
        # For container_entrypoint.py, which repeats this node's checks with the same key.
        **({"CLOUDEDGE_KEY": key} if key else {"CLOUDEDGE_ALLOW_UNSIGNED": "1"}),
    }


def _binds(
    service: DesiredService, parts: Parts, folder: Path, store: NodeStore, *, objects: Mapping[str, Path], model: str
) -> tuple[Bind, ...]:
    volumes = {volume.name: volume for volume in parts.app.volumes}
    found = []
    for mount in service.mounts:
        volume = volumes[mount.volume]
        source = _below(folder, mount.path)
        if volume.kind == "config" and volume.source in objects:
            source = objects[volume.source]
        elif volume.kind == "hostPath":
            source = host_path(store.host, volume)
        # Blobs are links into the hub: a write to one would change every version that has it.
        found.append(Bind(str(source), mount.path, mount.read_only or _is_blob(parts, volume)))
    if parts.bundle is not None:
        found.append(Bind(str(_below(folder, model)), model))
        found.append(Bind(str(store.hub.root), HUB, read_only=True))
        key = _below(folder, KEY)
        if key.exists():
            found.append(Bind(str(key), KEY, read_only=True))
    return tuple(found)
