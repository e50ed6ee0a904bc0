"""The files of a node: blobs by digest, downloaded files by config and version, one folder per unit.

    hub/                     blobs of bundles, an OCI layout
    downloads/               files on their way
    objects/CONFIG/VERSION/  files of configs that cloudedge did not publish, and the content of their archives
    units/APP.VERSION/       the files of a unit: mounts at their paths
    host/                    hostPath volumes with a relative path

Everything appears complete, by rename. Files of the live or the previous version of any app are never removed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from cloudedge.bundle import Bundle, check_signature, published
from cloudedge.edge_bie.model import Blob, MountedConfig, Object, Statement
from cloudedge.edge_bie.node._archives import unpack_archive
from cloudedge.edge_bie.node._download import Downloads, digest_name
from cloudedge.edge_bie.node._node_plan import bytes_needed
from cloudedge.edge_bie.node._units import Unit
from cloudedge.errors import InputError, IntegrityError, NotFound, StorageError
from cloudedge.hub import IMAGE_MANIFEST, Descriptor, Digest, Hashed, LocalHub, Manifest, hash_file, signature_tag
from cloudedge.io import digest_file, map_in_threads, storage_errors

__all__ = ["NodeStore"]

_SPARE = 16 << 20
"""Bytes to keep free: logs and the node's own state need space too."""
_JOBS = 4
_IDLE_S = 7 * 86400.0


class NodeStore:
    """The files of a node.

    Args:
        folder: The node's folder.
        downloads: Downloads files.
    """

    def __init__(self, folder: Path, downloads: Downloads) -> None:
        self.folder = folder
        self.hub = LocalHub(folder / "hub")
        self.downloads = downloads

    @property
    def host(self) -> Path:
        """The folder of hostPath volumes with a relative path."""
        return self.folder / "host"

    def unit_folder(self, unit_id: str) -> Path:
        """Return the folder of a unit's files."""
        return self.folder / "units" / unit_id

    def free_bytes(self) -> int:
        """Return the free bytes of the disk."""
        stat = os.statvfs(self.folder)
        return stat.f_bavail * stat.f_frsize

    # -- bundles ------------------------------------------------------------------------------------------------------

    def make_room(self, statement: Statement, units: Iterable[Unit]) -> None:
        """Check that a revision fits on the disk; remove unneeded files first.

        Raises:
            StorageError: it does not.
        """
        blobs = statement.every_blob
        present = {
            blob.digest: blob.size if self.has(blob) else self.downloads.has(_hex(blob.digest)) for blob in blobs
        }
        needed = bytes_needed(statement, present) + _SPARE
        if needed > self.free_bytes():
            self.collect(units, keep=[blob.digest for blob in blobs], idle_s=0.0)
        free = self.free_bytes()
        if needed > free:
            raise StorageError(
                f"revision {statement.revision} of {statement.app} needs {needed} bytes, {free} are free",
                hint="Nothing was changed. Free disk space; the node tries again by itself.",
                errno=errno.ENOSPC,
                needed=needed,
                free=free,
            )

    def has(self, blob: Blob) -> bool:
        """Return True if a blob is in the hub."""
        return self.hub.has_blob("", _descriptor(blob))

    def bring(self, statement: Statement, objects: Mapping[str, Object]) -> int:
        """Download the missing blobs, each checked against its digest.

        Args:
            statement: The statement with the needed blobs.
            objects: The sources of blobs, by digest.

        Returns:
            Bytes of the blobs that were on the node already.

        Raises:
            NotFound: A blob has no source, or is not there.
            IntegrityError: A blob does not match the statement.
            Unavailable: The network failed; the received bytes are kept.
            StorageError: The disk is full.
        """
        blobs = statement.every_blob
        missing = [blob for blob in blobs if not self.has(blob)]
        for blob in missing:
            if blob.digest not in objects:
                raise NotFound(f"no config of {statement.app} leads to blob {blob.digest}", digest=blob.digest)
        map_in_threads(lambda blob: self._bring_one(blob, objects[blob.digest]), missing, _JOBS)
        return sum(blob.size for blob in blobs) - sum(blob.size for blob in missing)

    def _bring_one(self, blob: Blob, item: Object) -> None:
        name = _hex(blob.digest)
        try:
            part = self.downloads.fetch(name, item.url, size=blob.size, token=item.token, sure=True)
            hashed = _checked(part, blob, item)
        except (IntegrityError, StorageError):
            # Resuming would repeat the damage; on a full disk the live version needs the space.
            self.downloads.drop(name)
            raise
        self.hub.adopt(part, hashed, how="move")
        self.downloads.drop(name)

    def open_bundle(self, statement: Statement, key: Path | None) -> Bundle:
        """Return the bundle of a statement, after a check that all its blobs are here and in its manifest.

        Args:
            statement: Its statement.
            key: Public key of the bundle's signatures, if it has any.

        Raises:
            IntegrityError: The manifest names a blob that the statement does not.
            SignatureInvalid: It is signed, but not with that key.
        """
        name = statement.bundle.rpartition("@")[0].rpartition(":")[0] or statement.bundle.rpartition("@")[0]
        assert statement.manifest is not None  # noqa: S101 - `admit` checked it
        manifest = self._manifest(name, statement.manifest)
        stated = {blob.digest: blob.size for blob in statement.blobs}
        for named in manifest.blobs:
            if stated.get(named.digest) != named.size:
                raise IntegrityError(f"the manifest of {statement.bundle} names {named.digest}, its statement does not")
        self.hub.write_manifest(name, manifest)
        bundle = Bundle(self.hub, name, manifest)
        signatures = [blob for blob in statement.blobs if blob.media_type == IMAGE_MANIFEST]
        for blob in signatures:
            tag = signature_tag(bundle.digest)
            self.hub.move_tag(name, tag, self._manifest(name, blob).descriptor, by="node", at="")
        if key is not None and signatures:
            check_signature(bundle, key)
        return bundle

    def _manifest(self, name: str, blob: Blob) -> Manifest:
        try:
            return self.hub.read_manifest(name, Digest(blob.digest))
        except (InputError, NotFound) as error:
            raise IntegrityError(f"blob {blob.digest} is no manifest: {error.message}") from error

    # -- files of configs ---------------------------------------------------------------------------------------------

    def bring_objects(self, config: MountedConfig) -> Path:
        """Download and unpack the files of a config, as BIE does; return their folder.

        Raises:
            IntegrityError: A file does not have the expected MD5 or SHA-256.
            InputError: An archive must not be unpacked.
            Unavailable: The network failed.
            StorageError: The disk is full.
        """
        folder = self.folder / "objects" / config.name / config.version
        if folder.is_dir():
            return folder
        with published(folder, f"downloading the files of config {config.name}") as temporary:
            temporary.mkdir()
            for item in config.objects:
                self._bring_object(config, item, temporary)
        for item in config.objects:
            self.downloads.drop(digest_name(item.url, config.version, item.key))
        return folder

    def _bring_object(self, config: MountedConfig, item: Object, folder: Path) -> None:
        name = digest_name(item.url, config.version, item.key)
        try:
            room = max(0, self.free_bytes() + self.downloads.has(name) - _SPARE)
            part = self.downloads.fetch(name, item.url, most=room, token=item.token, sure=bool(item.md5 or item.sha256))
            _check_object(config, item, part)
        except (IntegrityError, StorageError):
            self.downloads.drop(name)
            raise
        target = folder / item.key
        with storage_errors("downloading", target):
            os.link(part, target)  # the download stays until all of the config's files are complete
            target.chmod(0o755)
        if item.unpack:
            unpack_archive(target, item.unpack, folder, room=max(0, self.free_bytes() - _SPARE))

    # -- garbage ------------------------------------------------------------------------------------------------------

    def collect(self, units: Iterable[Unit], keep: Iterable[str] = (), *, idle_s: float = _IDLE_S) -> int:
        """Remove the files that no unit needs; return the bytes of removed blobs.

        Args:
            units: Live and previous units, and those on trial.
            keep: Further digests to keep.
            idle_s: Age from which unfinished downloads are removed too; younger ones may belong to a coming app.
        """
        units = list(units)
        wanted = {*keep, *(digest for unit in units for digest in unit.blobs)}
        freed = 0
        with storage_errors("removing old versions", self.folder):
            _remove_others(self.folder / "units", {unit.id for unit in units})
            kept = {folder for unit in units for folder in unit.objects}
            for config in _folders(self.folder / "objects"):
                _remove_others(config, {Path(folder).name for folder in kept if Path(folder).parent == config})
            with self.hub.collecting():
                for name in self.hub.names():
                    for entry in self.hub.tags(name):
                        if entry.target.digest not in wanted and entry.is_current:
                            self.hub.move_tag(name, entry.tag, None, by="node", at="")
                    self.hub.forget(name, [entry for entry in self.hub.tags(name) if not entry.is_current])
                for item in list(self.hub.stored()):
                    if item.digest not in wanted:
                        self.hub.discard(item.digest)
                        freed += item.size
            self.downloads.sweep({_hex(digest) for digest in wanted}, idle_s=idle_s)
        return freed

    def sweep_unfinished(self) -> None:
        """Remove unfinished folders of a killed agent; downloads stay."""
        for parent in (self.folder / "units", *_folders(self.folder / "objects")):
            for path in _folders(parent):
                if path.name.startswith("."):
                    shutil.rmtree(path, ignore_errors=True)


def _checked(part: Path, blob: Blob, item: Object) -> Hashed:
    hashed = hash_file(part)
    if hashed.digest != blob.digest:
        raise IntegrityError(
            f"{item.url.partition('?')[0]} holds {hashed.digest}, the statement says {blob.digest}",
            hint="The object was changed: upload the blob again.",
            digest=blob.digest,
        )
    return hashed


def _check_object(config: MountedConfig, item: Object, part: Path) -> None:
    digests = digest_file(part, md5=True)
    for kind, wanted, found in (("MD5", item.md5, digests.md5), ("SHA-256", item.sha256, digests.sha256)):
        if wanted and wanted != found:
            raise IntegrityError(f"{item.key} of config {config.name} has {kind} {found}, expected {wanted}")


def _descriptor(blob: Blob) -> Descriptor:
    return Descriptor(blob.media_type, Digest(blob.digest), blob.size)


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _remove_others(folder: Path, keep: set[str]) -> None:
    for path in _folders(folder):
        if path.name not in keep:
            shutil.rmtree(path, ignore_errors=True)
