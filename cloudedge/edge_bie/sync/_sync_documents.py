"""The desired state as people write it: YAML documents in a file or a folder.

    kind: set         name: seed                      whose objects these are; once at most
    kind: config      name, labels, description, texts: {key: text or path}, files: {key: url or path, unpack, extra}
    kind: secret      name, description, values: {key: env:NAME, file:PATH or null}
    kind: registry    name, description, address, username, password: env:NAME, file:PATH or null
    kind: app         an app in BIE's own words (services, volumes, selector...), and probes of ours
    kind: node        name, labels: {key: value, or null to take it away}

Null where a secret should be means: whatever is there stays. Secrets themselves are never in a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from cloudedge.config import Secret as SecretReference
from cloudedge.edge_bie.client import is_secret
from cloudedge.errors import InputError, NotFound

__all__ = [
    "AppDocument",
    "ConfigDocument",
    "Document",
    "FileEntry",
    "NodeDocument",
    "Probe",
    "RegistryDocument",
    "SecretDocument",
    "SetDocument",
    "TextEntry",
    "dump_documents",
    "load_documents",
    "read_documents",
]

_LARGEST: Final = 16 << 20
_SUFFIXES: Final = (".yaml", ".yml")


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SetDocument(_Document):
    """Whose objects these are: others, with the same owner label and another set, are never touched."""

    kind: Literal["set"] = "set"
    name: str = Field("default", pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$")


class TextEntry(_Document):
    """A text that is kept in a file beside the document."""

    path: str


class FileEntry(_Document):
    """A file that nodes download: one on this machine, to be uploaded, or one that has its URL."""

    path: str = ""
    url: str = ""
    md5: str = ""
    sha256: str = ""
    unpack: str = ""
    source: str = "http"
    extra: dict[str, str | None] = {}
    """Whatever else BIE keeps with it; null keeps what is there. Keys of storage (``ak``, ``sk``, ``token``...) are
    named, as ``env:NAME`` or ``file:PATH``, and not written."""

    @model_validator(mode="after")
    def _one_of_two(self) -> FileEntry:
        if self.source == "http" and bool(self.path) == bool(self.url):
            raise ValueError("wanted either path, of a file to upload, or url")
        if self.path and (self.md5 or self.sha256):
            raise ValueError("md5 and sha256 of a file given by its path are computed")
        for key, value in self.extra.items():
            if is_secret(key) and value is not None and not value.startswith(("env:", "file:")):
                raise ValueError(
                    f"extra.{key} is a secret: name it as env:NAME or file:PATH, or null to keep what is there"
                )
        return self


class ConfigDocument(_Document):
    """A config: texts or files, not both."""

    kind: Literal["config"] = "config"
    name: str
    labels: dict[str, str] = {}
    description: str = ""
    texts: dict[str, str | TextEntry] = {}
    files: dict[str, FileEntry] = {}


class SecretDocument(_Document):
    """A secret: its values are named, not written."""

    kind: Literal["secret"] = "secret"
    name: str
    description: str = ""
    values: dict[str, SecretReference | None]


class RegistryDocument(_Document):
    """Where images are pulled from."""

    kind: Literal["registry"] = "registry"
    name: str
    description: str = ""
    address: str
    username: str
    password: SecretReference | None = None


class Probe(_Document):
    """A request that a deployed app must answer well."""

    url: str
    """``{address}`` stands for the node's address."""
    body: Any = None
    """Sent as JSON; a GET if left out. A text ``@PATH`` stands for the file's content in base64."""
    expect: dict[str, Any] = {}
    """Fields the answer's JSON must have, with these values."""
    timeout_s: float = Field(10.0, gt=0, le=600)


class AppDocument(BaseModel):
    """An app in BIE's own words; what cloudedge does not know is passed on."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: Literal["app"] = "app"
    name: str
    probes: list[Probe] = []

    @property
    def body(self) -> dict[str, Any]:
        """The app as BIE takes it."""
        return {"replica": 1, **(self.model_extra or {}), "name": self.name}


class NodeDocument(_Document):
    """Labels of a node that exists; labels that are not named here stay as they are."""

    kind: Literal["node"] = "node"
    name: str
    labels: dict[str, str | None]


Document = Annotated[
    SetDocument | ConfigDocument | SecretDocument | RegistryDocument | AppDocument | NodeDocument,
    Field(discriminator="kind"),
]
_DOCUMENTS: TypeAdapter[Any] = TypeAdapter(Document)


def load_documents(path: Path) -> list[tuple[Any, Path]]:
    """Read every document of a file, or of a folder and those below it, each with the folder its paths are relative to.

    Raises:
        NotFound: there is nothing at that path.
        InputError: a document is not understood, or two say the same thing.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    elif path.is_file():
        files = [path]
    else:
        raise NotFound(f"{path} is neither a file nor a folder", hint="Name a folder of YAML documents.")
    if not files:
        raise InputError(f"{path} has no YAML documents in it", hint="They end in .yaml or .yml.")
    found = [(document, file.parent, file) for file in files for document in _read(file)]
    seen: dict[tuple[str, str], Path] = {}
    for document, _, file in found:
        key = (document.kind, "" if document.kind == "set" else document.name)
        if key in seen:
            raise InputError(f"{file}: {document.kind} {document.name} is in {seen[key]} already")
        seen[key] = file
    return [(document, folder) for document, folder, _ in found]


def read_documents(values: Iterable[Any], where: str = "documents") -> list[Any]:
    """Check documents that were YAML or JSON.

    Raises:
        InputError: one is not understood; says which and where.
    """
    return [_document(value, f"{where}, document {number}") for number, value in enumerate(values, 1)]


def dump_documents(documents: Iterable[BaseModel]) -> str:
    """Write documents the way they are read; what has its default is left out."""
    parts = []
    for document in documents:
        value = {"kind": getattr(document, "kind", ""), **document.model_dump(mode="json", exclude_defaults=True)}
        parts.append(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
    return "---\n".join(parts)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, where YAML can."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _read(file: Path) -> Iterator[Any]:
    try:
        if file.stat().st_size > _LARGEST:
            raise InputError(f"{file} is larger than {_LARGEST} bytes", hint="Large content goes into files, by path.")
        values = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not YAML: {error}") from error
    yield from read_documents((value for value in values if value is not None), str(file))


def _document(value: Any, where: str) -> Any:
    try:
        return _DOCUMENTS.validate_python(value)
    except ValidationError as error:
        lines = [f"{where}:"]
        for item in error.errors(include_input=False, include_url=False):
            path = ".".join(str(step) for step in item["loc"]) or "the document"
            message = item["msg"].removeprefix("Value error, ")
            if item["type"] == "string_type":
                message = 'wanted a string; quote it: "..."'
            lines.append(f"  {path}: {message}")
        # Values are not repeated: one of them may be a secret that somebody pasted.
        raise InputError("\n".join(lines)) from None
