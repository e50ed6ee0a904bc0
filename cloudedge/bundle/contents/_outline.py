"""The outline of a bundle: its manifest and small parts, read from any hub without fetching dense files or rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from cloudedge.bundle import media_types as media
from cloudedge.bundle.contents._files import OWN_FOLDER, check_member_path
from cloudedge.bundle.contents._parts import Lineage, Needs, PartT, Probes, Signature, read_part
from cloudedge.bundle.tables import RowType, read_header, row_type
from cloudedge.errors import InputError
from cloudedge.hub import Descriptor, Digest, Hub, Manifest, is_version, verified

__all__ = ["Outline"]

_PART_LIMIT = 64 * 1024 * 1024
_PIN_LENGTH = 16
_KEY_BYTES = 8


class Outline:
    """A bundle in any hub, described without fetching its dense files and tables."""

    hub: Hub

    def __init__(self, hub: Hub, name: str, manifest: Manifest) -> None:
        if not manifest.layers:
            raise InputError(f"{manifest.digest} in {hub.url} has no layers: it is not a bundle")
        self.hub = hub
        self.name = name
        self.manifest = manifest
        _ = self.dense_layers, self.table_layers  # a bundle whose names contradict each other is none

    @property
    def own_tags(self) -> list[str]:
        """The version as a tag; empty if the version is no tag."""
        return [self.version] if is_version(self.version) else []

    @property
    def digest(self) -> Digest:
        """The digest of the manifest, which names this bundle."""
        return self.manifest.digest

    @property
    def version(self) -> str:
        """The version it was packed as; empty for an artifact of another tool."""
        return self.manifest.annotations.get(media.VERSION, "")

    @property
    def pin(self) -> str:
        """The bundle's name at shards and serving replicas: one per digest, short enough for every request."""
        return self.digest.removeprefix("sha256:")[:_PIN_LENGTH]

    @property
    def size_bytes(self) -> int:
        """The total size of its blobs and its manifest."""
        return len(self.manifest.raw) + sum(blob.size for blob in self.manifest.blobs)

    def __repr__(self) -> str:
        return f"<Bundle {self.name}:{self.version} {self.digest[:19]}>"

    @cached_property
    def dense_layers(self) -> Mapping[str, Descriptor]:
        """The dense files' layers by path.

        Raises:
            InputError: two layers claim one path, or a path leaves the bundle.
        """
        layers: dict[str, Descriptor] = {}
        for layer in self.manifest.layers:
            path = layer.annotations.get(media.FILE_PATH)
            if path is None:
                continue
            if check_member_path(path) in layers or path.startswith(f"{OWN_FOLDER}/"):
                raise InputError(f"{self!r} has two members at {path!r}, or a dense file among cloudedge's own")
            layers[path] = layer
        return layers

    @cached_property
    def table_layers(self) -> Mapping[str, tuple[Descriptor, ...]]:
        """The tables' layers by name, base first.

        Raises:
            InputError: a table has no name.
        """
        tables: dict[str, list[Descriptor]] = {}
        for layer in self.manifest.layers:
            if layer.media_type in (media.TABLE_BASE, media.TABLE_DELTA):
                name = layer.annotations.get(media.TABLE_NAME)
                if name is None:
                    raise InputError(f"{self!r} has a table without a name: {layer.digest}")
                tables.setdefault(name, []).append(layer)
        return {name: tuple(layers) for name, layers in tables.items()}

    @cached_property
    def signature(self) -> Signature:
        """The inputs and outputs of the model."""
        return self._load_part(Signature, media.SIGNATURE)

    @cached_property
    def probes(self) -> Probes:
        """Recorded requests and keys that verify a loaded bundle."""
        return self._load_part(Probes, media.PROBES)

    @cached_property
    def lineage(self) -> Lineage:
        """The origin of the model: data, job, code, metrics, parent."""
        return self._load_part(Lineage, media.LINEAGE)

    @cached_property
    def needs(self) -> Needs:
        """The framework and memory that a place needs to run it."""
        return self._load_part(Needs, media.NEEDS)

    def _load_part(self, kind: type[PartT], media_type: str) -> PartT:
        layer = next((layer for layer in self.manifest.layers if layer.media_type == media_type), None)
        if layer is None:
            return kind()
        if layer.size > _PART_LIMIT:
            raise InputError(f"{self!r}: its {kind.__name__} of {layer.size} bytes is over the limit of {_PART_LIMIT}")
        raw = b"".join(verified(self.hub.read_blob(self.name, layer), layer, self.hub.url))
        return read_part(kind, raw, f"{self!r}: {kind.__name__}")

    def row_count(self, table: str) -> int:
        """Return how many rows a table has, as recorded when it was packed; else an estimate from its size."""
        layers = self.table_layers[table]
        noted = layers[-1].annotations.get(media.TABLE_ROWS, "")
        return int(noted) if noted.isdecimal() else layers[0].size // (_KEY_BYTES + self.row_type(table).row_bytes)

    def row_type(self, table: str) -> RowType:
        """Read the row type of a table from its first bytes.

        Raises:
            InputError: the bytes do not begin a table.
        """
        base = self.table_layers[table][0]
        head = _StreamPrefix(self.hub.read_blob(self.name, base))
        try:
            return row_type(read_header(head.read, base.size)[0])
        except InputError as error:
            raise InputError(f"{self!r}: {table!r} is not a table: {error.message}") from None


class _StreamPrefix:
    """The first bytes of a stream, read only as far as requested."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._seen = b""

    def read(self, at: int, length: int) -> bytes:
        while len(self._seen) < at + length:
            more = next(self._chunks, b"")
            if not more:
                break
            self._seen += more
        return self._seen[at : at + length]
