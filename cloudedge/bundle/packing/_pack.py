"""Packing: store a folder of dense files, tables and descriptions as one bundle in a local hub.

`plan_pack` reads and checks all inputs; `pack` stores the layers, then the manifest, then sets the version, which
is the moment the bundle exists. Large files are linked, not copied.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudedge.bundle import media_types as media
from cloudedge.bundle.contents import (
    Lineage,
    Needs,
    ParentRef,
    Probes,
    Signature,
    installed_framework_version,
    list_files,
    write_part,
)
from cloudedge.bundle.tables import (
    CanonicalRows,
    OnDuplicate,
    PackedTable,
    ParentTable,
    TableSource,
    canonical,
    pack_table,
)
from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.config import Limits
from cloudedge.errors import Conflict, InputError
from cloudedge.hub import (
    Adoption,
    Descriptor,
    LocalHub,
    Manifest,
    Progress,
    canonical_json,
    check_name,
    check_tag,
    hash_files,
    is_version,
    next_version,
)
from cloudedge.io import who

if TYPE_CHECKING:
    from cloudedge.bundle.packing._bundle import Bundle

__all__ = ["PackPlan", "pack", "plan_pack"]

AUTO = "auto"
_LINK_FROM_BYTES = 64 * 1024 * 1024
"""Smaller files are copied: a copy costs little, and people edit small files in place."""
_PROBE_KEYS_PER_TABLE = 256
"""Keys sampled per table to read back from shards: enough that each of a few dozen shards has some."""


@dataclass(frozen=True)
class PackPlan:
    """Everything a pack needs, read and checked."""

    name: str
    version: str
    folder: Path
    files: tuple[str, ...]
    tables: Mapping[str, CanonicalRows]
    signature: Signature
    probes: Probes
    lineage: Lineage
    framework_version: str
    copy: bool
    parent: Bundle | None = None
    dense_bytes: int = 0

    def how(self, size_bytes: int) -> Adoption:
        """Return how a source file of this size gets into the hub."""
        return "copy" if self.copy or size_bytes < _LINK_FROM_BYTES else "link"

    @property
    def notes(self) -> tuple[str, ...]:
        """Faults that were found and repaired in the tables."""
        return tuple(note for table in self.tables.values() for note in table.notes)


@dataclass(frozen=True)
class Packed:
    """The result of a pack."""

    manifest: Manifest
    version: str
    tables: Mapping[str, PackedTable]
    linked: tuple[Path, ...]
    """Files that the hub shares with their owner, who must not write to them."""


def plan_pack(
    folder: str | os.PathLike[str],
    *,
    name: str,
    version: str,
    sparse: Mapping[str, TableSource],
    signature: Signature,
    probes: Probes,
    lineage: Lineage,
    framework_version: str,
    on_duplicate: OnDuplicate,
    parent: Bundle | None,
    copy: bool,
) -> PackPlan:
    """Read and check the inputs of a pack. Writes nothing.

    Raises:
        InputError: an input cannot be packed.
    """
    check_name(name)
    if version != AUTO and not is_version(version):
        raise InputError(f"not a version: {version!r} (wanted: an integer, major.minor.patch, or auto)")
    root = Path(folder)
    files = list_files(root)
    for table in sparse:
        check_tag(table)
    if not files and not sparse:
        raise InputError(f"{root} holds no files, and no tables were given", path=str(root))
    tables = {table: canonical(source, on_duplicate=on_duplicate) for table, source in sorted(sparse.items())}
    empty = [table for table, rows in tables.items() if rows.rows == 0]
    if empty:
        raise InputError(f"table {empty[0]!r} has no rows", hint="Leave it out, or give it the rows it should have.")
    unknown = set(probes.keys) - set(tables)
    if unknown:
        raise InputError(f"probes name the table {min(unknown)!r}, which is not packed")
    sampled = {table: _sample_keys(rows) for table, rows in tables.items() if table not in probes.keys}
    if parent is not None:
        ref = ParentRef(name=parent.name, version=parent.version, digest=parent.digest)
        lineage = lineage.model_copy(update={"parent": ref})
    return PackPlan(
        name=name,
        version=version,
        folder=root,
        files=tuple(files),
        tables=tables,
        signature=signature,
        probes=probes.model_copy(update={"keys": {**probes.keys, **sampled}}),
        lineage=lineage,
        framework_version=framework_version or installed_framework_version(),
        copy=copy,
        parent=parent,
        dense_bytes=sum((root / file).stat().st_size for file in files),
    )


def _sample_keys(rows: CanonicalRows) -> tuple[int, ...]:
    """Pick keys spread over the whole table, the same ones each time."""
    step = max(1, rows.rows // _PROBE_KEYS_PER_TABLE)
    picked: list[int] = []
    start = 0
    for window in rows.stream():
        first = -start % step
        picked.extend(int(key) for key in window.keys[first::step])
        start += len(window)
    return tuple(picked[:_PROBE_KEYS_PER_TABLE])


def pack(
    hub: LocalHub,
    plan: PackPlan,
    *,
    limits: Limits,
    clock: Clock | None = None,
    progress: Progress = lambda _: None,
) -> Packed:
    """Store a plan's contents and set the version.

    Raises:
        Conflict: the version exists with other content.
    """
    with hub.writing():
        dense, linked = _store_files(hub, plan, progress)
        parents = plan.parent.table_layers if plan.parent else {}
        tables: dict[str, PackedTable] = {}
        for name, rows in plan.tables.items():
            parent = None
            if plan.parent is not None and name in parents:
                parent = ParentTable(parents[name], plan.parent.sparse[name])
            size = rows.rows * (8 + rows.kind.row_bytes)
            tables[name] = pack_table(hub, name, rows, parent, limits=limits, how=plan.how(size))
            progress(size)
        parts = [
            hub.write_bytes(write_part(part), kind)
            for part, kind in (
                (plan.signature, media.SIGNATURE),
                (plan.probes, media.PROBES),
                (plan.lineage, media.LINEAGE),
                (_needs(plan, tables), media.NEEDS),
            )
        ]
        layers = [*dense, *(layer for table in tables.values() for layer in table.layers), *parts]
        at = rfc3339((clock or SystemClock()).now())
        while True:
            version = next_version(hub.tags(plan.name)) if plan.version == AUTO else plan.version
            manifest = _write_manifest(hub, plan.name, version, layers)
            try:
                hub.move_tag(plan.name, version, manifest.descriptor, by=who(), at=at)
            except Conflict:
                if plan.version != AUTO:
                    raise
            else:
                linked += [table.linked for table in tables.values() if table.linked]
                return Packed(manifest, version, tables, tuple(linked))


def _store_files(hub: LocalHub, plan: PackPlan, progress: Progress) -> tuple[list[Descriptor], list[Path]]:
    paths = [plan.folder / file for file in plan.files]
    layers, linked = [], []
    for file, path, hashed in zip(plan.files, paths, hash_files(paths, progress=progress), strict=True):
        layers.append(Descriptor(media.of_file(file), hashed.digest, hashed.size, {media.FILE_PATH: file}))
        if hub.adopt(path, hashed, how=plan.how(hashed.size)):
            linked.append(path)
    return layers, linked


def _needs(plan: PackPlan, tables: Mapping[str, PackedTable]) -> Needs:
    sparse = {name: rows.rows * (8 + rows.kind.row_bytes) for name, rows in plan.tables.items()}
    # Beside its parent, a table with a delta adds only the delta; any other table adds a second copy of itself.
    second = sum(t.shipped_bytes if t.is_delta else sparse[name] for name, t in tables.items())
    one = plan.dense_bytes + sum(sparse.values())
    return Needs(
        framework_version=plan.framework_version,
        memory_one_bytes=one,
        memory_two_bytes=one + plan.dense_bytes + second,
    )


def _write_manifest(hub: LocalHub, name: str, version: str, layers: list[Descriptor]) -> Manifest:
    # The manifest records no time of packing: the same content under the same version is always the same bundle.
    config = {
        "descriptor": {"name": name, "version": version},
        "modelfs": {"type": "layers", "diffIds": [layer.digest for layer in layers]},
        "config": {"format": "paddle"},
    }
    manifest = Manifest.build(
        artifact_type=media.ARTIFACT,
        config=hub.write_bytes(canonical_json(config), media.CONFIG),
        layers=layers,
        annotations={media.TITLE: name, media.VERSION: version},
    )
    hub.write_manifest(name, manifest)
    return manifest
