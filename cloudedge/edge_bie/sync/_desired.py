"""The desired objects of documents: hash files, read texts, look up secrets, add owner labels.

Nothing is uploaded or written here. Documents come out *resolved*: with URLs and digests instead of paths, and with
texts instead of files, so that they mean the same after the folder has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudedge.config import reveal
from cloudedge.edge_bie.client import (
    App,
    Config,
    File,
    Objects,
    Registry,
    Secret,
    Text,
    check_app,
    check_config,
    check_labels,
    check_registry,
    check_secret,
    is_secret,
)
from cloudedge.edge_bie.model import OWNER_LABEL
from cloudedge.edge_bie.sync._sync_documents import (
    AppDocument,
    ConfigDocument,
    FileEntry,
    NodeDocument,
    Probe,
    RegistryDocument,
    SecretDocument,
    SetDocument,
    TextEntry,
)
from cloudedge.errors import ConfigError, InputError
from cloudedge.io import digest_file, storage_errors

__all__ = [
    "KEEP",
    "SET_LABEL",
    "DesiredAccount",
    "Upload",
    "app_of",
    "desired_state",
    "mark",
    "owner_of",
    "owner_of_words",
    "unmarked",
]

SET_LABEL = "cloudedge-set"
"""On every config and app of a folder, beside the owner label: the name of its set."""
_MOUNTED = ("config", "secret", "certificate")
KEEP = "\0keep"
"""Stands for a secret that keeps its current value."""


@dataclass(frozen=True)
class Upload:
    """A file that must be downloadable for nodes before anything refers to it."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True)
class DesiredAccount:
    """The desired objects of an account."""

    set: str = "default"
    configs: Mapping[str, Config] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    registries: Mapping[str, Registry] = field(default_factory=dict)
    apps: Mapping[str, App] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """Node to labels."""
    probes: Mapping[str, tuple[tuple[Probe, Path], ...]] = field(default_factory=dict)
    """App to its probes, each with the folder its paths are relative to."""
    uploads: tuple[Upload, ...] = ()
    documents: tuple[Any, ...] = field(default=(), repr=False)
    """Resolved."""


def desired_state(documents: Iterable[tuple[Any, Path]], objects: Objects | None = None) -> DesiredAccount:
    """Build the desired objects of documents.

    Args:
        documents: Each with the folder its paths are relative to.
        objects: The storage of uploaded files; needed only if there are any.

    Raises:
        InputError: BIE would refuse an object, or nodes could not use it.
        ConfigError: a secret or a place for files is missing.
    """
    known = list(documents)
    named = next((document.name for document, _ in known if isinstance(document, SetDocument)), "default")
    state = _Builder(named, objects)
    for document, folder in known:
        if isinstance(document, ConfigDocument):
            state.config(document, folder)
        elif isinstance(document, SecretDocument):
            state.secret(document)
        elif isinstance(document, RegistryDocument):
            state.registry(document)
        elif isinstance(document, AppDocument):
            state.app(document, folder)
        elif isinstance(document, NodeDocument):
            state.node(document)
    return state.built()


def app_of(document: AppDocument) -> App:
    """Return the app of a document, without owner labels.

    Raises:
        InputError: it does not have BIE's form.
    """
    try:
        return App.from_json(_expand_references(document.body))
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"app {document.name} does not have BIE's form: {error!r}") from error


def mark(words: str, owner: str) -> str:
    """Return a description that names the owner: BIE gives secrets and registries no labels."""
    return f"{unmarked(words)} [cloudedge: {owner}]".strip()


def owner_of(labels: Mapping[str, str]) -> str | None:
    """Return the set of a config or app; None: not cloudedge's; "": cloudedge's, but of no set."""
    return labels.get(SET_LABEL, "") if labels.get(OWNER_LABEL) == "owned" else None


def owner_of_words(words: str) -> str | None:
    """Return the set of a secret or registry; None: not cloudedge's."""
    _, found, rest = words.rpartition("[cloudedge: ")
    return rest.removesuffix("]") if found and rest.endswith("]") else None


def unmarked(words: str) -> str:
    """Return a description without the owner mark."""
    return words.rpartition("[cloudedge: ")[0].rstrip() if owner_of_words(words) is not None else words


class _Builder:
    def __init__(self, named: str, objects: Objects | None) -> None:
        self._set = named
        self._objects = objects
        self._owned = {OWNER_LABEL: "owned", SET_LABEL: named}
        self._configs: dict[str, Config] = {}
        self._secrets: dict[str, Secret] = {}
        self._registries: dict[str, Registry] = {}
        self._apps: dict[str, App] = {}
        self._labels: dict[str, Mapping[str, str | None]] = {}
        self._probes: dict[str, tuple[tuple[Probe, Path], ...]] = {}
        self._uploads: dict[str, Upload] = {}
        self._documents: list[Any] = [SetDocument(name=named)]

    def built(self) -> DesiredAccount:
        return DesiredAccount(
            set=self._set,
            configs=self._configs,
            secrets=self._secrets,
            registries=self._registries,
            apps=self._apps,
            labels=self._labels,
            probes=self._probes,
            uploads=tuple(self._uploads.values()),
            documents=tuple(self._documents),
        )

    def config(self, document: ConfigDocument, folder: Path) -> None:
        texts = {key: _text(entry, folder) for key, entry in document.texts.items()}
        files = {key: self._file(entry, folder) for key, entry in document.files.items()}
        items = {key: Text(text) for key, text in texts.items()} | {key: _file_reference(e) for key, e in files.items()}
        self._configs[document.name] = check_config(
            Config(document.name, items, labels=document.labels | self._owned, description=document.description)
        )
        self._documents.append(document.model_copy(update={"texts": texts, "files": files}))

    def secret(self, document: SecretDocument) -> None:
        values = {key: KEEP if value is None else reveal(value) for key, value in document.values.items()}
        self._secrets[document.name] = check_secret(
            Secret(document.name, values, description=mark(document.description, self._set))
        )
        self._documents.append(document)

    def registry(self, document: RegistryDocument) -> None:
        self._registries[document.name] = check_registry(
            Registry(
                document.name,
                document.address,
                document.username,
                password="" if document.password is None else reveal(document.password),
                description=mark(document.description, self._set),
            )
        )
        self._documents.append(document)

    def app(self, document: AppDocument, folder: Path) -> None:
        app = app_of(document)
        self._apps[document.name] = check_app(replace(app, labels={**app.labels, **self._owned}, is_summary=False))
        self._probes[document.name] = tuple((probe, folder) for probe in document.probes)
        self._documents.append(document)

    def node(self, document: NodeDocument) -> None:
        check_labels({k: v for k, v in document.labels.items() if v is not None}, f"node {document.name}")
        self._labels[document.name] = document.labels
        self._documents.append(document)

    def _file(self, entry: FileEntry, folder: Path) -> FileEntry:
        if not entry.path:
            return entry
        if self._objects is None:
            raise ConfigError(
                f"{entry.path} cannot be uploaded: this cloud has no storage for files",
                hint="Add an `objects` section to the cloud in cloudedge.yaml, or give the file's url.",
            )
        path = folder / entry.path
        md5, sha256, size = _hash_upload(path)
        self._uploads[sha256] = Upload(path, f"sha256:{sha256}", size)
        url = self._objects.url_of(f"sha256:{sha256}")
        return entry.model_copy(update={"path": "", "url": url, "md5": md5, "sha256": sha256})


def _file_reference(entry: FileEntry) -> File:
    extra = {
        key: KEEP if value is None else reveal(value) if is_secret(key) else value for key, value in entry.extra.items()
    }
    return File(entry.url, entry.md5, entry.unpack, entry.sha256, entry.source, extra)


def _expand_references(body: Mapping[str, Any]) -> dict[str, Any]:
    """Expand a plain name where BIE requires an object with a name."""
    value = dict(body)
    value["volumes"] = [
        {k: {"name": v} if k in _MOUNTED and isinstance(v, str) else v for k, v in volume.items()}
        for volume in value.get("volumes") or ()
    ]
    value["registries"] = [{"name": e} if isinstance(e, str) else e for e in value.get("registries") or ()]
    return value


def _text(entry: str | TextEntry, folder: Path) -> str:
    if isinstance(entry, str):
        return entry
    path = folder / entry.path
    with storage_errors("reading a text", path):
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not a text", hint="List it under files.") from error


def _hash_upload(path: Path) -> tuple[str, str, int]:
    with storage_errors("reading a file to upload", path):
        found = digest_file(path, md5=True)
    return found.md5, found.sha256, found.size
