"""The document format of the desired state: YAML documents in a file or a folder.

    kind: set         name: seed                      the owner of these objects; at most once
    kind: config      name, labels, description, texts: {key: text or path}, files: {key: url or path, unpack, extra}
    kind: secret      name, description, values: {key: env:NAME, file:PATH or null}
    kind: registry    name, description, address, username, password: env:NAME, file:PATH or null
    kind: app         an app in BIE's own form (services, volumes, selector...), and cloudedge's probes
    kind: node        name, labels: {key: value, or null to remove it}

Null in place of a secret keeps its current value. Documents never contain secrets themselves.
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

_SIZE_LIMIT: Final = 16 << 20
_SUFFIXES: Final = (".yaml", ".yml")


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SetDocument(_Document):
    """The owner of these objects; objects of another set are never touched."""

    kind: Literal["set"] = "set"
    name: str = Field("default", pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$")


class TextEntry(_Document):
    """A text in a file beside the document."""

    path: str


class FileEntry(_Document):
    """A file that nodes download: a local one to upload, or one with a URL."""

    path: str = ""
    url: str = ""
    md5: str = ""
    sha256: str = ""
    unpack: str = ""
    source: str = "http"
    extra: dict[str, str | None] = {}
    """All other fields that BIE keeps with it; null keeps the current value. Credentials of storage (``ak``, ``sk``,
    ``token``...) are given as ``env:NAME`` or ``file:PATH``, not written out."""

    @model_validator(mode="after")
    def _path_or_url(self) -> FileEntry:
        if self.source == "http" and bool(self.path) == bool(self.url):
            raise ValueError("give either path, of a file to upload, or url")
        if self.path and (self.md5 or self.sha256):
            raise ValueError("md5 and sha256 of a file given by its path are computed")
        for key, value in self.extra.items():
            if is_secret(key) and value is not None and not value.startswith(("env:", "file:")):
                raise ValueError(
                    f"extra.{key} is a secret: give env:NAME or file:PATH, or null to keep the current value"
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
    """A secret, whose values are references, not the values themselves."""

    kind: Literal["secret"] = "secret"
    name: str
    description: str = ""
    values: dict[str, SecretReference | None]


class RegistryDocument(_Document):
    """A registry to pull images from."""

    kind: Literal["registry"] = "registry"
    name: str
    description: str = ""
    address: str
    username: str
    password: SecretReference | None = None


class Probe(_Document):
    """A request that a deployed app must answer correctly."""

    url: str
    """``{address}`` stands for the node's address."""
    body: Any = None
    """Sent as JSON; without it a GET is sent. A text ``@PATH`` stands for the file's content in base64."""
    expect: dict[str, Any] = {}
    """Fields the answer's JSON must have, with these values."""
    timeout_s: float = Field(10.0, gt=0, le=600)


class AppDocument(BaseModel):
    """An app in BIE's own form; unknown fields are passed on."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: Literal["app"] = "app"
    name: str
    probes: list[Probe] = []

    @property
    def body(self) -> dict[str, Any]:
        """The app in BIE's form."""
        return {"replica": 1, **(self.model_extra or {}), "name": self.name}


class NodeDocument(_Document):
    """Labels of an existing node; labels not listed here stay unchanged."""

    kind: Literal["node"] = "node"
    name: str
    labels: dict[str, str | None]


Document = Annotated[
    SetDocument | ConfigDocument | SecretDocument | RegistryDocument | AppDocument | NodeDocument,
    Field(discriminator="kind"),
]
_DOCUMENTS: TypeAdapter[Any] = TypeAdapter(Document)


def load_documents(path: Path) -> list[tuple[Any, Path]]:
    """Read every document of a file or a folder tree, each with the folder that its paths are relative to.

    Raises:
        NotFound: the path does not exist.
        InputError: a document is invalid, or two describe the same object.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    elif path.is_file():
        files = [path]
    else:
        raise NotFound(f"{path} is neither a file nor a folder", hint="Give a folder of YAML documents.")
    if not files:
        raise InputError(f"{path} has no YAML documents in it", hint="Give files that end in .yaml or .yml.")
    found = [(document, file.parent, file) for file in files for document in _read(file)]
    seen: dict[tuple[str, str], Path] = {}
    for document, _, file in found:
        key = (document.kind, "" if document.kind == "set" else document.name)
        if key in seen:
            raise InputError(f"{file}: {document.kind} {document.name} is in {seen[key]} already")
        seen[key] = file
    return [(document, folder) for document, folder, _ in found]


def read_documents(values: Iterable[Any], where: str = "documents") -> list[Any]:
    """Validate documents that were YAML or JSON.

    Raises:
        InputError: one is invalid; the message names it and the place.
    """
    return [_document(value, f"{where}, document {number}") for number, value in enumerate(values, 1)]


def dump_documents(documents: Iterable[BaseModel]) -> str:
    """Write documents as YAML, without fields that have their default."""
    parts = []
    for document in documents:
        value = {"kind": getattr(document, "kind", ""), **document.model_dump(mode="json", exclude_defaults=True)}
        parts.append(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
    return "---\n".join(parts)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, if YAML can."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _read(file: Path) -> Iterator[Any]:
    try:
        if file.stat().st_size > _SIZE_LIMIT:
            raise InputError(f"{file} is larger than {_SIZE_LIMIT} bytes", hint="Put large content into files.")
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
                message = 'expected a string; quote it: "..."'
            lines.append(f"  {path}: {message}")
        # The message shows no values: one of them may be a pasted secret.
        raise InputError("\n".join(lines)) from None
