"""Loading of a version from a delivered artifact, verified against the artifact's rows and checksum."""

from __future__ import annotations

import numpy as np

from cloudedge import _core
from cloudedge.bundle.tables import DeltaFile, RowType
from cloudedge.cube.builder import PartStore
from cloudedge.cube.formats import DELTA_FILE, Artifact
from cloudedge.errors import InputError, IntegrityError

__all__ = ["load_artifact"]

_HINT = "Deliver the version again; loaded versions keep answering."


def load_artifact(artifact: Artifact, name: str, base: _core.Version | None) -> _core.Version:
    """Load a version from an artifact's files, and verify that it has the rows that the artifact states.

    Args:
        artifact: The artifact, with the directory of its files.
        name: The version's name.
        base: The version that a delta goes on top of.

    Raises:
        IntegrityError: a file is damaged, or the rows are not those that the artifact states.
        InputError: the delta is for another base, or the part for another shard.
    """
    if artifact.kind == "base":
        shard = (artifact.shard, artifact.shards)
        store = PartStore.open(artifact.directory, name=name, checksum=artifact.checksum, shard=shard)
    elif base is None:
        raise InputError(
            f"version {name!r} is a delta for rows {artifact.base}, and no loaded version has them",
            hint="Deliver it as a base.",
            base=artifact.base,
        )
    else:
        store = _apply(artifact, name, PartStore(base))
    if store.checksum != artifact.checksum or len(store) != artifact.rows:
        raise IntegrityError(
            f"version {name!r} has {len(store)} rows {store.checksum}, not {artifact.rows} rows {artifact.checksum}",
            hint=_HINT,
        )
    return store.native


def _apply(artifact: Artifact, name: str, base: PartStore) -> PartStore:
    file = DeltaFile(artifact.directory / DELTA_FILE, RowType(np.dtype("u1"), artifact.width))
    if (file.base, file.result) != (artifact.base, artifact.checksum):
        raise IntegrityError(f"{file.path} is not the delta that its artifact describes", hint=_HINT)
    rows, removed = list(file.rows()), list(file.removed())
    keys = np.concatenate([window.keys for window in rows]) if rows else np.empty(0, np.uint64)
    values = np.concatenate([window.columns[0] for window in rows]) if rows else np.empty((0, 0), np.uint8)
    gone = np.concatenate([window.keys for window in removed]) if removed else np.empty(0, np.uint64)
    return base.apply(keys, values, removed=gone, name=name, base_checksum=artifact.base)
