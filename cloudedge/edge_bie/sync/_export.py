"""Export of an account as documents. Secrets are not exported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cloudedge.edge_bie.client import App, Bie, Config, File, Text, masked, normal
from cloudedge.edge_bie.model import OWNER_LABEL
from cloudedge.edge_bie.sync._desired import SET_LABEL, owner_of, unmarked
from cloudedge.edge_bie.sync._sync_documents import (
    AppDocument,
    ConfigDocument,
    FileEntry,
    NodeDocument,
    RegistryDocument,
    SecretDocument,
    SetDocument,
    dump_documents,
)
from cloudedge.edge_bie.sync._sync_plan import Thing, owner
from cloudedge.errors import Conflict
from cloudedge.io import storage_errors, write_atomically

__all__ = ["export_documents", "write_documents"]

_FILES: Final = {"set": "set", "config": "configs", "secret": "secrets", "registry": "registries", "app": "apps"}
_BIE_PREFIX: Final = "baetyl-"


def export_documents(bie: Bie, *, only: str = "") -> list[Any]:
    """Read an account as documents.

    Args:
        bie: The control plane.
        only: Export the objects of this set; by default everything that is not a fleet's. The documents then belong
            to the only set there is, so that they can be edited and applied; else to ``default``.
    """

    def wanted(thing: Thing) -> bool:
        # Objects of fleets are created for every release and must not be edited.
        return owner(thing) == only if only else owner(thing) != ""

    apps = [app for summary in bie.apps() if wanted(summary) and (app := bie.app(summary.name)) is not None]
    secrets = [s for each in bie.secrets() if wanted(each) and (s := bie.secret(each.name)) is not None]
    configs = [each for each in bie.configs() if wanted(each)]
    registries = [each for each in bie.registries() if wanted(each)]
    things: list[Thing] = [*configs, *secrets, *registries, *apps]
    sets = {whose for each in things if (whose := owner(each))}
    documents: list[Any] = [SetDocument(name=only or (sets.pop() if len(sets) == 1 else "default"))]
    documents += [_config(each) for each in configs]
    documents += [
        SecretDocument(name=s.name, description=unmarked(s.description), values=dict.fromkeys(s.data)) for s in secrets
    ]
    documents += [
        RegistryDocument(name=r.name, description=unmarked(r.description), address=r.address, username=r.username)
        for r in registries
    ]
    documents += [_app(each) for each in apps]
    if not only:
        labels = {n.name: {k: v for k, v in n.labels.items() if not k.startswith(_BIE_PREFIX)} for n in bie.nodes()}
        documents += [NodeDocument(name=name, labels=dict(found)) for name, found in sorted(labels.items()) if found]
    return sorted(documents, key=lambda d: (list(_FILES).index(d.kind) if d.kind in _FILES else len(_FILES), d.name))


def write_documents(documents: list[Any], path: Path, *, overwrite: bool = False) -> list[Path]:
    """Write documents to a ``.yaml`` file, or to a folder with one file per kind.

    Raises:
        Conflict: a file exists already.
    """
    groups: dict[Path, list[Any]] = {}
    for document in documents:
        is_file = path.suffix in (".yaml", ".yml")
        name = path if is_file else path / f"{_FILES.get(document.kind, 'nodes')}.yaml"
        groups.setdefault(name, []).append(document)
    there = [str(file) for file in groups if file.exists()]
    if there and not overwrite:
        raise Conflict(f"{', '.join(there)} would be overwritten", hint="Choose another folder, or pass `--overwrite`.")
    for file, group in groups.items():
        with storage_errors("writing documents", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, dump_documents(group))
    return list(groups)


def _config(config: Config) -> ConfigDocument:
    texts = {key: item.value for key, item in config.items.items() if isinstance(item, Text)}
    files = {key: _file(item) for key, item in config.items.items() if isinstance(item, File)}
    return ConfigDocument(
        name=config.name,
        labels=_without_owner_labels(config.labels),
        description=config.description,
        texts=dict(texts),
        files=files,
    )


def _file(item: File) -> FileEntry:
    # Masked values are not exported: null keeps them.
    shown = masked(dict(item.extra))
    extra = {key: value if shown[key] == value else None for key, value in item.extra.items()}
    return FileEntry(
        url=item.url, md5=item.md5, sha256=item.sha256, unpack=item.unpack, source=item.source, extra=extra
    )


def _app(app: App) -> AppDocument:
    body = normal(app)
    volumes = [
        {"name": name, **{kind: ref["name"] if kind in ("config", "secret") else ref for kind, ref in volume.items()}}
        for name, volume in body.pop("volumes", {}).items()
    ]
    labels = _without_owner_labels(app.labels)
    more = {key: value for key, value in (("labels", labels), ("volumes", volumes)) if value}
    return AppDocument.model_validate({k: v for k, v in body.items() if k != "labels"} | more | {"kind": "app"})


def _without_owner_labels(labels: Mapping[str, str]) -> dict[str, str]:
    ours = (OWNER_LABEL, SET_LABEL) if owner_of(labels) is not None else ()
    return {k: v for k, v in labels.items() if k not in ours and k != "baetyl-app-mode"}
