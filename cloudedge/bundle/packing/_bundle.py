"""A bundle in a local hub: pack, open, pull, push, read its files and tables, verify it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cloudedge.bundle import media_types as media
from cloudedge.bundle.contents import OWN_FOLDER, Lineage, Outline, Probes, Signature
from cloudedge.bundle.packing._pack import AUTO, pack, plan_pack
from cloudedge.bundle.packing._verified_files import VerifiedFiles
from cloudedge.bundle.tables import OnDuplicate, RowType, Table, TableSource, base_header, table_bytes
from cloudedge.clock import SystemClock, rfc3339
from cloudedge.config import HubConfig, Limits
from cloudedge.errors import Conflict, IntegrityError, NotFound
from cloudedge.hub import (
    CopyPlan,
    Descriptor,
    Hub,
    LocalHub,
    Manifest,
    Progress,
    Ref,
    hash_files,
    open_hub,
    resolve,
    verified,
)
from cloudedge.hub import copy as copy_bundle
from cloudedge.io import who

__all__ = ["Bundle", "Member"]


@dataclass(frozen=True)
class Member:
    """A file of an unpacked bundle, produced while it is read."""

    path: str
    size: int
    chunks: Iterator[bytes]


class Bundle(Outline):
    """One trained model, immutable, named by the digest of its manifest.

    Example:
        >>> bundle = Bundle.pack("out/ctr", name="ctr", sparse={"dict": "emb.npz"})  # doctest: +SKIP
        >>> Bundle.open("ctr:1").sparse["dict"].values.shape  # doctest: +SKIP
        (100000, 16)
    """

    hub: LocalHub

    def __init__(self, hub: LocalHub, name: str, manifest: Manifest) -> None:
        super().__init__(hub, name, manifest)

    @classmethod
    def pack(
        cls,
        folder: str | os.PathLike[str],
        *,
        name: str,
        version: str | int = AUTO,
        sparse: Mapping[str, TableSource] | None = None,
        signature: Signature | None = None,
        probes: Probes | None = None,
        lineage: Lineage | None = None,
        framework_version: str = "",
        parent: str | Bundle | None = None,
        on_duplicate: OnDuplicate = "refuse",
        copy: bool = False,
        hub: LocalHub | None = None,
        limits: Limits | None = None,
    ) -> Bundle:
        """Pack a folder of dense files and any sparse tables into a local hub.

        Args:
            folder: The dense files, taken as they are.
            name: The bundle's name.
            version: An integer, major.minor.patch, or "auto" for the next one.
            sparse: Tables by name: a file (.safetensors, .npz, .npy, .seq) or a mapping of arrays.
            signature: The model's inputs and outputs.
            probes: Requests with expected answers; probe keys are sampled from tables without any.
            lineage: The origin of the model.
            framework_version: The Paddle it was trained with; the installed one by default.
            parent: The bundle whose table rows are not stored again.
            on_duplicate: "refuse" a table with a repeated key, or keep the "last" of its rows.
            copy: Copy large files instead of linking them, so that the caller may write to them afterwards.
            hub: The local hub to pack into; the user's own by default.
            limits: Limits beyond which a table is packed as a new base instead of one more delta.

        Raises:
            InputError: an argument cannot be packed; the message names it and the place.
            Conflict: the version exists with other content.
            StorageError: the hub cannot be written.
        """
        local = hub or LocalHub()
        plan = plan_pack(
            folder,
            name=name,
            version=str(version),
            sparse=sparse or {},
            signature=signature or Signature(),
            probes=probes or Probes(),
            lineage=lineage or Lineage(),
            framework_version=framework_version,
            on_duplicate=on_duplicate,
            parent=cls.open(parent, hub=local) if isinstance(parent, str) else parent,
            copy=copy,
        )
        return cls(local, name, pack(local, plan, limits=limits or Limits()).manifest)

    @classmethod
    def open(cls, ref: str, *, hub: LocalHub | None = None) -> Bundle:
        """Open a bundle from a local hub.

        Raises:
            NotFound: the hub does not hold it.
        """
        local = hub or LocalHub()
        parsed = Ref.parse(ref)
        return cls(local, parsed.name, local.read_manifest(parsed.name, resolve(local, parsed).digest))

    @classmethod
    def pinned(cls, name: str, pin: str, *, hub: LocalHub | None = None) -> Bundle:
        """Open the version of a bundle that has the pin `pin`.

        Raises:
            NotFound: no version of that name in the hub has this pin.
            Conflict: several have it.
        """
        local = hub or LocalHub()
        every = {entry.target.digest for entry in local.tags(name)}
        found = [digest for digest in sorted(every) if digest.removeprefix("sha256:").startswith(pin)]
        if len(found) > 1:
            raise Conflict(f"{len(found)} versions of {name} in {local.url} have the pin {pin}: {', '.join(found)}")
        if found:
            return cls.open(f"{name}@{found[0]}", hub=local)
        raise NotFound(f"no version of {name} in {local.url} has the pin {pin}", name=name, pin=pin)

    @classmethod
    def pull(
        cls, ref: str, source: Hub | HubConfig | str, *, hub: LocalHub | None = None, jobs: int = 4, tables: bool = True
    ) -> Bundle:
        """Copy a bundle from another hub into a local one and open it.

        Args:
            ref: The bundle's reference in the other hub.
            source: The other hub, or its URL.
            hub: The local hub; the user's own by default.
            jobs: The number of parallel blob transfers.
            tables: False leaves the sparse tables out, for a replica that reads rows from shards.

        Raises:
            NotFound: the other hub does not have it.
            Interrupted: the transfer stopped; call again to continue.
        """
        local = hub or LocalHub()
        remote = open_hub(source) if isinstance(source, (str, HubConfig)) else source
        parsed = Ref.parse(ref)
        manifest = remote.read_manifest(parsed.name, resolve(remote, parsed).digest)
        bundle = cls(local, parsed.name, manifest)
        rows = () if tables else [layer.digest for layers in bundle.table_layers.values() for layer in layers]
        copy_bundle(
            remote, local, parsed.name, manifest.digest, tags=bundle.own_tags, by=who(), at=_now(), jobs=jobs,
            wanted=lambda blob: blob.digest not in rows,
        )  # fmt: skip
        return bundle

    def push(
        self,
        target: Hub | HubConfig | str,
        *,
        tags: Sequence[str] = (),
        jobs: int = 4,
        progress: Progress = lambda _: None,
    ) -> CopyPlan:
        """Copy the bundle with its signatures to another hub and set its version there, then `tags`.

        Args:
            target: The other hub, or its URL.
            tags: Further tags to set there, such as "prod".
            jobs: The number of parallel blob transfers.
            progress: Called with the bytes of each transfer as it settles.

        Returns:
            The blobs that travelled and those that were there already.

        Raises:
            Conflict: the version exists there with other content.
            Interrupted: the transfer stopped; call again to continue.
        """
        remote = open_hub(target) if isinstance(target, (str, HubConfig)) else target
        every = [*self.own_tags, *tags]
        return copy_bundle(
            self.hub, remote, self.name, self.digest, tags=every, by=who(), at=_now(), jobs=jobs, progress=progress
        )

    @property
    def dense(self) -> Mapping[str, Path]:
        """The path of each dense file's bytes in the hub. Read them, never write to them."""
        return {path: self.hub.blob_path(layer) for path, layer in self.dense_layers.items()}

    @cached_property
    def sparse(self) -> Mapping[str, Table]:
        """The sparse tables by name."""
        return {
            name: Table(
                [self.hub.blob_path(layer) for layer in layers],
                base_checksum=layers[0].annotations.get(media.TABLE_CHECKSUM, ""),
            )
            for name, layers in self.table_layers.items()
        }

    def verify_dense(self, progress: Progress = lambda _: None) -> VerifiedFiles:
        """Hash the dense files right before they are loaded.

        Raises:
            IntegrityError: one is missing or damaged.
        """
        return self._verified(self.dense_layers.values(), progress)

    def verify_tables(self, progress: Progress = lambda _: None) -> VerifiedFiles:
        """Hash the files of the tables right before they are read or mapped.

        Raises:
            IntegrityError: one is missing or damaged.
        """
        return self._verified((layer for layers in self.table_layers.values() for layer in layers), progress)

    def _verified(self, layers: Iterable[Descriptor], progress: Progress) -> VerifiedFiles:
        files = {self.hub.blob_path(layer): layer.digest for layer in layers}
        return VerifiedFiles(files, f"{self.name}:{self.version} {self.digest}", progress)

    def row_count(self, table: str) -> int:
        """Return how many rows a table has."""
        return len(self.sparse[table])

    def row_type(self, table: str) -> RowType:
        """Return the row type of a table."""
        return self.sparse[table].kind

    def verify(self, *, deep: bool = False, progress: Progress = lambda _: None) -> None:
        """Check every byte against the manifest, and that the parts are readable.

        Args:
            deep: Also read every table row and compare the rows' checksum with the recorded one.
            progress: Called with the number of bytes as they are hashed.

        Raises:
            IntegrityError: blobs are missing or damaged; names all of them.
        """
        blobs = self.manifest.blobs
        missing = [blob for blob in blobs if not self.hub.has_blob(self.name, blob)]
        present = [blob for blob in blobs if blob not in missing]
        hashes = hash_files([self.hub.blob_path(blob) for blob in present], progress=progress)
        damaged = [blob for blob, hashed in zip(present, hashes, strict=True) if hashed.digest != blob.digest]
        if missing or damaged:
            lines = [f"  missing, truncated or overwritten: {self._describe_blob(blob)}" for blob in missing]
            lines += [f"  damaged: {self._describe_blob(blob)}" for blob in damaged]
            raise IntegrityError(
                "\n".join([f"{self.name}:{self.version} in {self.hub.url} is not whole:", *lines]),
                hint="Pull it again from a hub where it verifies. Never write to a file that was linked while packing.",
                missing=[blob.digest for blob in missing],
                damaged=[blob.digest for blob in damaged],
            )
        for name, table in self.sparse.items():
            if deep and str(table.checksum) != table.recorded_checksum:
                raise IntegrityError(
                    f"{self!r}: the rows of table {name!r} have the checksum {table.checksum}, not the recorded "
                    f"{table.recorded_checksum}"
                )
        _ = self.dense_layers, self.signature, self.probes, self.lineage, self.needs

    def _describe_blob(self, blob: Descriptor) -> str:
        notes = blob.annotations
        name = notes.get(media.FILE_PATH) or notes.get(media.TABLE_NAME) or blob.media_type
        return f"{name} ({blob.size} bytes, {blob.digest})"

    def members(self) -> Iterator[Member]:
        """Yield the files of the unpacked bundle: dense files at the top, everything else in ``.bundle/``."""
        for path, layer in sorted(self.dense_layers.items()):
            yield self._member(path, layer)
        for name, table in sorted(self.sparse.items()):
            size = len(base_header(table.kind, len(table))) + len(table) * (8 + table.kind.row_bytes)
            yield Member(
                f"{OWN_FOLDER}/tables/{name}.safetensors", size, table_bytes(table.kind, len(table), table.stream)
            )
        for kind, name in _PART_FILES.items():
            for layer in self.manifest.layers:
                if layer.media_type == kind:
                    yield self._member(f"{OWN_FOLDER}/{name}", layer)

    def _member(self, path: str, layer: Descriptor) -> Member:
        try:
            chunks = verified(self.hub.read_blob(self.name, layer), layer, self.hub.url)
        except NotFound as error:
            raise IntegrityError(f"{self!r}: {self._describe_blob(layer)} is missing from {self.hub.url}") from error
        return Member(path, layer.size, chunks)


def _now() -> str:
    return rfc3339(SystemClock().now())


_PART_FILES = {
    media.SIGNATURE: "signature.json",
    media.PROBES: "probes.json",
    media.LINEAGE: "lineage.json",
    media.NEEDS: "needs.json",
}
